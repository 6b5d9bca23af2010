//! Evaluates the stack filters of a query on the tenant dictionary's tree of stacks.
//!
//! Callers precede callees in the tree, so one pass over its nodes computes the matching filters of each node. A filter
//! is a set of locations that the router knows. If a stack has a location that the router does not know, the response
//! is empty and reports that. In this case partitions are still read into memory, so that the router can fetch all
//! missing locations. If the tenant dictionary is rebuilt while partitions are read, locations are matched by their
//! hashes.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{FramePlace, LocationSets};

use crate::memory::tenant_dictionary::{Pair, ROOT, TenantDictionary};
use crate::select::view::{PartView, View};

/// Set of the filters that match a location or a stack, before negation: one bit for each filter. The highest bit means
/// that the router does not know a location.
type Mask = u32;

const UNKNOWN: Mask = 1 << 31;

/// Number of nodes or pairs that are processed while the locks are held without a break, which takes some milliseconds.
const NODES_PER_LOCK: usize = 1 << 16;

/// Evaluation of the stack filters of one query.
pub(crate) struct StackFiltering<'a> {
    sets: &'a LocationSets,
    /// Mask of each location that the router knows, up to the last one that is in a filter.
    known: Vec<Mask>,
    /// Hashes of the locations that the router knows. They are recorded while the tenant dictionary still has their
    /// generation.
    hashes: Vec<u128>,
    /// Masks by hash of the location; `None` until the tenant dictionary is rebuilt.
    by_hash: Option<HashMap<u128, Mask, FixedState>>,
    /// Mask of each location of the tenant dictionary that was processed so far.
    locations: Vec<Mask>,
    /// Mask of each processed node of the tenant dictionary: the combined masks of the locations from the node to the
    /// root.
    paths: Vec<Mask>,
    /// Generation of the tenant dictionary that `paths` refers to.
    generation: u64,
    /// Mask of the filters that look only at the leaf.
    leaf: Mask,
    /// Mask of the negated filters.
    negated: Mask,
    /// Mask of the filters that match the empty stack.
    empty: Mask,
    /// Mask of all filters.
    all: Mask,
    has_unknown: bool,
}

/// Pairs of a partition whose stacks pass the filters, one bit each.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    words: Vec<u64>,
    pairs: usize,
}

impl Passing {
    /// Returns whether a pair's stack passes; `None` if there is no such pair.
    #[inline]
    pub(crate) fn has(&self, pair: u32) -> Option<bool> {
        self.words.get(pair as usize / 64).map(|word| word & 1 << (pair % 64) != 0)
    }

    /// Returns the number of pairs that were evaluated.
    fn pairs(&self) -> usize {
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
    /// Creates the evaluation of these filters; `None` if there are none, so that all stacks pass.
    pub(crate) fn new(sets: &'a LocationSets) -> Option<Self> {
        if sets.filters.is_empty() {
            return None;
        }
        let mut known: Vec<Mask> = Vec::new();
        let mut leaf = 0;
        let mut negated = 0;
        let mut empty = 0;
        let mut all = 0;
        for (i, filter) in sets.filters.iter().enumerate() {
            let bit = 1 << i;
            all |= bit;
            leaf |= if filter.place == FramePlace::Leaf { bit } else { 0 };
            negated |= if filter.is_negated { bit } else { 0 };
            empty |= if filter.has_empty { bit } else { 0 };
            for location in filter.iter() {
                // The size of the request limits the highest location.
                if known.len() <= location as usize {
                    known.resize(location as usize + 1, 0);
                }
                known[location as usize] |= bit;
            }
        }
        Some(Self {
            sets,
            known,
            hashes: Vec::new(),
            by_hash: None,
            locations: Vec::new(),
            paths: Vec::new(),
            generation: 0,
            leaf,
            negated,
            empty,
            all,
            has_unknown: false,
        })
    }

    /// Returns whether any stack had a location that the router does not know.
    pub(crate) fn has_unknown(&self) -> bool {
        self.has_unknown
    }

    /// Returns the pairs of a partition that pass; `None` if the partition was dropped meanwhile. Releases the locks
    /// now and then, because `apply` waits for them.
    pub(crate) fn passing(&mut self, view: &View<'_>, part: &PartView) -> Option<Passing> {
        let mut passing = Passing::default();
        while passing.pairs() < part.known.pairs {
            let shared = view.shared.as_ref()?.read();
            let partition = part.partition.read();
            if partition.generation != shared.generation() {
                return None;
            }
            if self.follow(&shared) {
                let next =
                    partition.pairs.as_slice().iter().take(part.known.pairs).skip(passing.pairs()).take(NODES_PER_LOCK);
                if next.len() == 0 {
                    return None;
                }
                self.add_passing(&shared, next.copied(), &mut passing);
            }
        }
        Some(passing)
    }

    /// Processes up to [`NODES_PER_LOCK`] new nodes of the tenant dictionary. Returns whether all nodes are now
    /// processed.
    fn follow(&mut self, shared: &TenantDictionary) -> bool {
        if self.generation != shared.generation() || self.paths.is_empty() {
            self.begin(shared);
        }
        let dictionary = &shared.dictionary;
        for location in self.locations.len()..dictionary.locations.len() {
            let mask = match &self.by_hash {
                Some(by_hash) => {
                    let hash = dictionary.location_hash(u32::try_from(location).unwrap_or(u32::MAX));
                    by_hash.get(&hash).copied().unwrap_or(UNKNOWN)
                }
                None if location < self.sets.known.count as usize => self.known.get(location).copied().unwrap_or(0),
                None => UNKNOWN,
            };
            self.locations.push(mask);
        }
        let end = shared.nodes().min(self.paths.len() + NODES_PER_LOCK);
        self.paths.reserve(end - self.paths.len());
        for node in self.paths.len()..end {
            let node = shared.node(u32::try_from(node).unwrap_or(u32::MAX));
            self.paths.push(self.paths[node.parent as usize] | self.location(node.location));
        }
        end == shared.nodes()
    }

    /// Starts again from the root, for another generation of the tenant dictionary.
    fn begin(&mut self, shared: &TenantDictionary) {
        self.generation = shared.generation();
        self.paths.clear();
        self.paths.push(0);
        self.locations.clear();
        let count = self.sets.known.count;
        if self.sets.known.generation == self.generation {
            let count = count.min(u32::try_from(shared.dictionary.locations.len()).unwrap_or(u32::MAX));
            self.hashes = (0..count).map(|location| shared.dictionary.location_hash(location)).collect();
            self.by_hash = None;
        } else if self.by_hash.is_none() {
            // The hashes are unknown if the tenant dictionary never had the generation of the filters. Then all
            // locations are unknown.
            let mask = |(location, &hash): (usize, &u128)| (hash, self.known.get(location).copied().unwrap_or(0));
            self.by_hash = Some(self.hashes.iter().enumerate().map(mask).collect());
        }
    }

    /// Evaluates pairs and adds the results to `passing`. The nodes of the pairs must be processed already.
    fn add_passing(&mut self, shared: &TenantDictionary, pairs: impl Iterator<Item = Pair>, passing: &mut Passing) {
        for pair in pairs {
            let met = self.met(shared, pair);
            self.has_unknown |= met & UNKNOWN != 0;
            passing.push(met & self.all ^ self.negated == self.all);
        }
    }

    /// Returns the filters that match a stack. A filter on leaves is compared with the leaf, and any other filter with
    /// all frames.
    fn met(&self, shared: &TenantDictionary, pair: Pair) -> Mask {
        let leaf = if pair.kernel == ROOT { pair.user } else { pair.kernel };
        if leaf == ROOT {
            return self.empty;
        }
        let any = self.paths[pair.user as usize] | self.paths[pair.kernel as usize];
        any & !self.leaf | self.location(shared.node(leaf).location) & self.leaf
    }

    #[inline]
    fn location(&self, location: u32) -> Mask {
        self.locations.get(location as usize).copied().unwrap_or(UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use proto::{Dictionary, Function, KnownLocations, Line, Location, StackFilter};

    use super::*;

    const GENERATION: u64 = 3;

    /// Returns a tenant dictionary with stacks of location numbers below 5, leaf first, and the nodes at which these
    /// end.
    fn tenant_dictionary(stacks: &[&[u32]]) -> (TenantDictionary, Vec<u32>) {
        let mut shared = TenantDictionary::new(GENERATION);
        let dictionary = &mut shared.dictionary;
        (0..5).for_each(|number| assert_eq!(location(dictionary, &number.to_string()), number));
        let ends = stacks.iter().zip(1..).map(|(stack, hash)| shared.add_stack(proto::StackHash(hash), stack));
        let ends = ends.collect();
        (shared, ends)
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
        let (shared, ends) = of;
        let sets = LocationSets { known: KnownLocations { generation, count }, filters };
        let mut filtering = StackFiltering::new(&sets).unwrap();
        // The empty stack, each stack alone, and each with the next one as its kernel part.
        let mut pairs = vec![Pair { user: ROOT, kernel: ROOT }];
        pairs.extend(ends.iter().map(|&user| Pair { user, kernel: ROOT }));
        pairs.extend(ends.windows(2).map(|ends| Pair { user: ends[0], kernel: ends[1] }));
        while !filtering.follow(shared) {}
        let mut passing = Passing::default();
        filtering.add_passing(shared, pairs.iter().copied(), &mut passing);
        assert_eq!(passing.has(64), None);
        let passes = (0..pairs.len() as u32).map(|pair| passing.has(pair).unwrap()).collect();
        (passes, filtering.has_unknown())
    }

    #[test]
    fn filters_match_frames_of_both_parts_and_the_leaf_is_the_kernels() {
        let of = tenant_dictionary(&[&[2, 1], &[3, 1], &[4]]);
        let pass = |filters| passing(&of, 5, GENERATION, filters);
        let any = FramePlace::Any;
        let leaf = FramePlace::Leaf;
        // The six stacks, root first: empty, 1-2, 1-3, 4, 1-2-1-3, 1-3-4.
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
    fn stacks_with_unknown_locations_are_reported() {
        let of = tenant_dictionary(&[&[2, 1], &[3, 1]]);
        let only = |place| vec![filter(place, false, &[2])];
        assert!(!passing(&of, 4, GENERATION, only(FramePlace::Any)).1);
        assert!(passing(&of, 3, GENERATION, only(FramePlace::Any)).1, "3 is not known");
        assert!(passing(&of, 4, GENERATION + 1, only(FramePlace::Any)).1, "other numbers");
        assert!(passing(&of, 4, GENERATION + 1, only(FramePlace::Leaf)).1, "other numbers");
    }

    // Regression: when the tenant dictionary was rebuilt while partitions were read, every stack counted as having
    // unknown locations, again at each retry.
    #[test]
    fn filters_match_the_same_locations_after_their_numbers_change() {
        let first = dictionary_of(1, &["a", "b", "c"]);
        let second = dictionary_of(2, &["c", "x", "b"]);
        let known = KnownLocations { generation: 1, count: 3 };
        let pass = |of: &[&TenantDictionary], filters: Vec<StackFilter>| {
            let sets = LocationSets { known, filters };
            let mut filtering = StackFiltering::new(&sets).unwrap();
            let mut passing = Passing::default();
            for shared in of {
                while !filtering.follow(shared) {}
                passing = Passing::default();
                // Node n has only location n - 1.
                let pairs = (1..4).map(|user| Pair { user, kernel: ROOT });
                filtering.add_passing(shared, pairs, &mut passing);
            }
            ((0..3).map(|pair| passing.has(pair).unwrap()).collect::<Vec<_>>(), filtering.has_unknown())
        };
        let of_b = || vec![filter(FramePlace::Any, false, &[1])];
        assert_eq!(pass(&[&first], of_b()), (vec![false, true, false], false));
        let (passing, has_unknown) = pass(&[&first, &second], of_b());
        assert_eq!((passing[0], passing[2], has_unknown), (false, true, true), "x is not known");
        let third = dictionary_of(3, &["b", "a", "c"]);
        assert_eq!(pass(&[&first, &third], of_b()), (vec![true, false, false], false));
        assert!(pass(&[&third], of_b()).1, "of these numbers nothing was ever known");
    }

    /// Returns a tenant dictionary with one stack of one frame for each function.
    fn dictionary_of(generation: u64, functions: &[&str]) -> TenantDictionary {
        let mut shared = TenantDictionary::new(generation);
        for (name, hash) in functions.iter().zip(1..) {
            let location = location(&mut shared.dictionary, name);
            shared.add_stack(proto::StackHash(hash), &[location]);
        }
        shared
    }
}
