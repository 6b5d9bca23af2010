//! Which stacks pass the conditions of a question: sets of locations, looked for in the vocabulary's tree.
//!
//! In the tree callers stand before callees, so one way up its numbers finds what each node has in any of its frames. A set tells
//! of the locations that the router knows; a stack that has another one cannot be told, and then there is no answer at all:
//! partitions are still read into memory, so that the router finds all that it lacks in the vocabulary. Where that is made anew
//! while partitions are read, locations are found by their hashes.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{FramePlace, LocationSets};

use crate::memory::partition::Pair;
use crate::memory::tenant_dictionary::{ROOT, TenantDictionary};

/// A bit for each condition: whether it is met, without negation. The last: whether that cannot be told.
type Mask = u32;

const LACKING: Mask = 1 << 31;

/// Nodes, and pairs, that are looked at under one hold of the locks: some milliseconds.
pub(crate) const LOOKED_AT_ONCE: usize = 1 << 16;

/// See the module.
pub(crate) struct StackFiltering<'a> {
    sets: &'a LocationSets,
    /// Of each location up to the last that is in a set; others that are known have none.
    known: Vec<Mask>,
    /// Of the known locations, since they were seen.
    hashes: Vec<u128>,
    /// The same of each hash, once the vocabulary is another.
    by_hash: Option<HashMap<u128, Mask, FixedState>>,
    /// Of each location of the vocabulary, as far as it was looked at.
    locations: Vec<Mask>,
    /// Of each node of the vocabulary, what its locations up to the root have.
    paths: Vec<Mask>,
    /// Whose nodes those are.
    generation: u64,
    /// Conditions on leaves, those that are negated, and what the empty stack has.
    leaf: Mask,
    negated: Mask,
    empty: Mask,
    all: Mask,
    lacks: bool,
}

/// The pairs of a partition whose stacks pass, a bit each.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    words: Vec<u64>,
    pairs: usize,
}

impl Passing {
    /// Whether a pair's stack passes; `None` if there is no such pair.
    #[inline]
    pub(crate) fn has(&self, pair: u32) -> Option<bool> {
        self.words.get(pair as usize / 64).map(|word| word & 1 << (pair % 64) != 0)
    }

    /// Of how many pairs it tells.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs
    }

    fn push(&mut self, passes: bool) {
        let bit = self.pairs % 64;
        if bit == 0 {
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut() {
            *word |= u64::from(passes) << bit;
        }
        self.pairs += 1;
    }
}

impl<'a> StackFiltering<'a> {
    /// `None` where all stacks pass.
    pub(crate) fn new(sets: &'a LocationSets) -> Option<Self> {
        if sets.filters.is_empty() {
            return None;
        }
        let mut known: Vec<Mask> = Vec::new();
        let (mut leaf, mut negated, mut empty, mut all) = (0, 0, 0, 0);
        for (i, filter) in sets.filters.iter().enumerate() {
            let bit = 1 << i;
            all |= bit;
            leaf |= if filter.place == FramePlace::Leaf { bit } else { 0 };
            negated |= if filter.is_negated { bit } else { 0 };
            empty |= if filter.has_empty { bit } else { 0 };
            for location in filter.iter() {
                // They ascend, and those of a set are as many as its bytes say.
                if known.len() <= location as usize {
                    known.resize(location as usize + 1, 0);
                }
                known[location as usize] |= bit;
            }
        }
        let (hashes, by_hash, locations, paths) = (Vec::new(), None, Vec::new(), Vec::new());
        let (generation, lacks) = (0, false);
        Some(Self { sets, known, hashes, by_hash, locations, paths, generation, leaf, negated, empty, all, lacks })
    }

    /// Whether there was a stack of which the sets do not tell.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Goes on with the nodes of the vocabulary that are new, so many of them at most; whether that is all.
    pub(crate) fn follow(&mut self, vocabulary: &TenantDictionary) -> bool {
        if self.generation != vocabulary.generation() || self.paths.is_empty() {
            self.begin(vocabulary);
        }
        let dictionary = &vocabulary.dictionary;
        for location in self.locations.len()..dictionary.locations.len() {
            let mask = match &self.by_hash {
                Some(by_hash) => {
                    let hash = dictionary.location_hash(u32::try_from(location).unwrap_or(u32::MAX));
                    by_hash.get(&hash).copied().unwrap_or(LACKING)
                }
                None if location < self.sets.known.count as usize => self.known.get(location).copied().unwrap_or(0),
                None => LACKING,
            };
            self.locations.push(mask);
        }
        let end = vocabulary.nodes().min(self.paths.len() + LOOKED_AT_ONCE);
        self.paths.reserve(end - self.paths.len());
        for node in self.paths.len()..end {
            let node = vocabulary.node(u32::try_from(node).unwrap_or(u32::MAX));
            self.paths.push(self.paths[node.parent as usize] | self.location(node.location));
        }
        end == vocabulary.nodes()
    }

    /// Begins with another vocabulary.
    fn begin(&mut self, vocabulary: &TenantDictionary) {
        self.generation = vocabulary.generation();
        self.paths.clear();
        self.paths.push(0);
        self.locations.clear();
        let count = self.sets.known.count;
        if self.sets.known.generation == self.generation {
            let count = count.min(u32::try_from(vocabulary.dictionary.locations.len()).unwrap_or(u32::MAX));
            self.hashes = (0..count).map(|location| vocabulary.dictionary.location_hash(location)).collect();
            self.by_hash = None;
        } else if self.by_hash.is_none() {
            // None, if the sets were never of a vocabulary that was seen: then nothing is known of these numbers.
            let mask = |(location, &hash): (usize, &u128)| (hash, self.known.get(location).copied().unwrap_or(0));
            self.by_hash = Some(self.hashes.iter().enumerate().map(mask).collect());
        }
    }

    /// Which of some pairs pass, all of whose nodes were looked at.
    pub(crate) fn add_passing(
        &mut self,
        vocabulary: &TenantDictionary,
        pairs: impl Iterator<Item = Pair>,
        passing: &mut Passing,
    ) {
        for pair in pairs {
            let met = self.met(vocabulary, pair);
            self.lacks |= met & LACKING != 0;
            passing.push(met & self.all ^ self.negated == self.all);
        }
    }

    /// What a stack's locations have at the places of the conditions.
    fn met(&self, vocabulary: &TenantDictionary, pair: Pair) -> Mask {
        let leaf = if pair.kernel == ROOT { pair.user } else { pair.kernel };
        if leaf == ROOT {
            return self.empty;
        }
        let any = self.paths[pair.user as usize] | self.paths[pair.kernel as usize];
        any & !self.leaf | self.location(vocabulary.node(leaf).location) & self.leaf
    }

    #[inline]
    fn location(&self, location: u32) -> Mask {
        self.locations.get(location as usize).copied().unwrap_or(LACKING)
    }
}

#[cfg(test)]
mod tests {
    use proto::{Dictionary, Function, KnownLocations, Line, Location, StackFilter};

    use super::*;

    const GENERATION: u64 = 3;

    /// Stacks of location numbers below 5, leaf first, and the nodes at which they end.
    fn vocabulary(stacks: &[&[u32]]) -> (TenantDictionary, Vec<u32>) {
        let mut vocabulary = TenantDictionary::new(GENERATION);
        let dictionary = &mut vocabulary.dictionary;
        (0..5).for_each(|number| assert_eq!(location(dictionary, &number.to_string()), number));
        let ends = stacks.iter().zip(1..).map(|(stack, hash)| vocabulary.add_stack(proto::StackHash(hash), stack));
        let ends = ends.collect();
        (vocabulary, ends)
    }

    fn location(dictionary: &mut Dictionary, name: &str) -> u32 {
        let name = dictionary.strings.intern(name);
        let function = dictionary.intern_function(Function { name, ..Function::default() });
        let lines = [Line { function, line: 1, column: 0 }].into();
        dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
    }

    fn filter(place: FramePlace, is_negated: bool, locations: &[u32]) -> StackFilter {
        let mut filter = StackFilter::new(place, is_negated, false);
        locations.iter().for_each(|&location| filter.insert(location));
        filter
    }

    fn passing(
        of: &(TenantDictionary, Vec<u32>),
        count: u32,
        generation: u64,
        filters: Vec<StackFilter>,
    ) -> (Vec<bool>, bool) {
        let (vocabulary, ends) = of;
        let sets = LocationSets { known: KnownLocations { generation, count }, filters };
        let mut filtering = StackFiltering::new(&sets).unwrap();
        // No stack; each alone; each with the next below it as its kernel part.
        let mut pairs = vec![Pair { user: ROOT, kernel: ROOT }];
        pairs.extend(ends.iter().map(|&user| Pair { user, kernel: ROOT }));
        pairs.extend(ends.windows(2).map(|ends| Pair { user: ends[0], kernel: ends[1] }));
        while !filtering.follow(vocabulary) {}
        let mut passing = Passing::default();
        filtering.add_passing(vocabulary, pairs.iter().copied(), &mut passing);
        assert_eq!(passing.has(64), None);
        let passes = (0..pairs.len() as u32).map(|pair| passing.has(pair).unwrap()).collect();
        (passes, filtering.lacks())
    }

    #[test]
    fn any_frame_of_both_parts_counts_and_the_leaf_is_the_kernels() {
        let of = vocabulary(&[&[2, 1], &[3, 1], &[4]]);
        let pass = |filters| passing(&of, 5, GENERATION, filters);
        let (any, leaf) = (FramePlace::Any, FramePlace::Leaf);
        //  empty, 1-2, 1-3, 4, 1-2-1-3, 1-3-4
        let ways = |bits: [u8; 6]| (bits.map(|bit| bit == 1).to_vec(), false);
        assert_eq!(pass(vec![filter(any, false, &[2])]), ways([0, 1, 0, 0, 1, 0]));
        assert_eq!(pass(vec![filter(any, true, &[2])]), ways([1, 0, 1, 1, 0, 1]));
        assert_eq!(pass(vec![filter(leaf, false, &[2, 4])]), ways([0, 1, 0, 1, 0, 1]));
        assert_eq!(pass(vec![filter(leaf, true, &[2, 4])]), ways([1, 0, 1, 0, 1, 0]));
        assert_eq!(pass(vec![filter(any, false, &[1]), filter(leaf, true, &[3])]), ways([0, 1, 0, 0, 0, 1]));
        assert_eq!(pass(vec![filter(any, false, &[])]), ways([0; 6]));
        let empty = StackFilter { has_empty: true, ..filter(any, false, &[3]) };
        assert_eq!(pass(vec![empty.clone()]), ways([1, 0, 1, 0, 1, 1]));
        assert_eq!(pass(vec![StackFilter { is_negated: true, ..empty }]), ways([0, 1, 0, 1, 0, 0]));
    }

    #[test]
    fn what_the_sets_do_not_tell_is_said() {
        let of = vocabulary(&[&[2, 1], &[3, 1]]);
        let only = |place| vec![filter(place, false, &[2])];
        assert!(!passing(&of, 4, GENERATION, only(FramePlace::Any)).1);
        assert!(passing(&of, 3, GENERATION, only(FramePlace::Any)).1, "3 is not known");
        assert!(passing(&of, 4, GENERATION + 1, only(FramePlace::Any)).1, "other numbers");
        assert!(passing(&of, 4, GENERATION + 1, only(FramePlace::Leaf)).1, "other numbers");
    }

    // Found by review: a vocabulary that is made anew while partitions are read left every stack untold, in each try again.
    #[test]
    fn sets_are_of_what_locations_are_also_when_their_numbers_change() {
        let (first, second) = (vocabulary_of(1, &["a", "b", "c"]), vocabulary_of(2, &["c", "x", "b"]));
        let known = KnownLocations { generation: 1, count: 3 };
        let pass = |of: &[&TenantDictionary], filters: Vec<StackFilter>| {
            let sets = LocationSets { known, filters };
            let mut filtering = StackFiltering::new(&sets).unwrap();
            let mut passing = Passing::default();
            for vocabulary in of {
                while !filtering.follow(vocabulary) {}
                passing = Passing::default();
                // Node n has location n - 1 alone.
                let pairs = (1..4).map(|user| Pair { user, kernel: ROOT });
                filtering.add_passing(vocabulary, pairs, &mut passing);
            }
            ((0..3).map(|pair| passing.has(pair).unwrap()).collect::<Vec<_>>(), filtering.lacks())
        };
        let of_b = || vec![filter(FramePlace::Any, false, &[1])];
        assert_eq!(pass(&[&first], of_b()), (vec![false, true, false], false));
        let (passing, lacks) = pass(&[&first, &second], of_b());
        assert_eq!((passing[0], passing[2], lacks), (false, true, true), "x is not known");
        let third = vocabulary_of(3, &["b", "a", "c"]);
        assert_eq!(pass(&[&first, &third], of_b()), (vec![true, false, false], false));
        assert!(pass(&[&third], of_b()).1, "of these numbers nothing was ever known");
    }

    /// A stack of each function alone.
    fn vocabulary_of(generation: u64, functions: &[&str]) -> TenantDictionary {
        let mut vocabulary = TenantDictionary::new(generation);
        for (name, hash) in functions.iter().zip(1..) {
            let location = location(&mut vocabulary.dictionary, name);
            vocabulary.add_stack(proto::StackHash(hash), &[location]);
        }
        vocabulary
    }
}
