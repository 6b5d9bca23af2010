//! Which stacks pass the conditions of a question: sets of locations, looked for in the vocabulary's tree.
//!
//! In the tree callers stand before callees, so one way up its numbers finds what each node has in any of its frames. A set tells
//! of the locations that the router knows; a stack that has another one cannot be told, and then there is no answer at all:
//! partitions are still read into memory, so that the router finds all that it lacks in the vocabulary.

use proto::{FramePlace, LocationSets};

use crate::partition::Pair;
use crate::vocabulary::{ROOT, Vocabulary};

/// A bit for each condition: whether it is met, without negation. The last: whether that cannot be told.
type Mask = u32;

const LACKING: Mask = 1 << 31;

/// See the module.
pub(crate) struct StackFiltering<'a> {
    sets: &'a LocationSets,
    /// Of each location that is known.
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
pub(crate) struct Passing(Vec<u64>);

impl Passing {
    /// Whether a pair's stack passes; `None` if there is no such pair.
    #[inline]
    pub(crate) fn has(&self, pair: u32) -> Option<bool> {
        self.0.get(pair as usize / 64).map(|word| word & 1 << (pair % 64) != 0)
    }
}

impl<'a> StackFiltering<'a> {
    /// `None` where all stacks pass.
    pub(crate) fn new(sets: &'a LocationSets) -> Option<Self> {
        if sets.filters.is_empty() {
            return None;
        }
        let mut locations = vec![0; sets.known.count as usize];
        let (mut leaf, mut negated, mut empty, mut all) = (0, 0, 0, 0);
        for (i, filter) in sets.filters.iter().enumerate() {
            let bit = 1 << i;
            all |= bit;
            leaf |= if filter.place == FramePlace::Leaf { bit } else { 0 };
            negated |= if filter.is_negated { bit } else { 0 };
            empty |= if filter.has_empty { bit } else { 0 };
            for location in filter.iter() {
                if let Some(mask) = locations.get_mut(location as usize) {
                    *mask |= bit;
                }
            }
        }
        Some(Self { sets, locations, paths: Vec::new(), generation: 0, leaf, negated, empty, all, lacks: false })
    }

    /// Whether there was a stack of which the sets do not tell.
    pub(crate) fn lacks(&self) -> bool {
        self.lacks
    }

    /// Which of some pairs pass.
    pub(crate) fn passing(&mut self, vocabulary: &Vocabulary, pairs: impl ExactSizeIterator<Item = Pair>) -> Passing {
        self.follow(vocabulary);
        let mut words = vec![0; pairs.len().div_ceil(64)];
        for (i, pair) in pairs.enumerate() {
            let met = self.met(vocabulary, pair);
            self.lacks |= met & LACKING != 0;
            if met & self.all ^ self.negated == self.all {
                words[i / 64] |= 1 << (i % 64);
            }
        }
        Passing(words)
    }

    /// What a stack's locations have at the places of the conditions.
    fn met(&self, vocabulary: &Vocabulary, pair: Pair) -> Mask {
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

    /// Goes on with the nodes that are new.
    fn follow(&mut self, vocabulary: &Vocabulary) {
        if self.generation != vocabulary.generation() || self.paths.is_empty() {
            self.generation = vocabulary.generation();
            self.paths.clear();
            self.paths.push(0);
            if self.sets.known.generation != self.generation {
                // Nothing is known of these numbers.
                self.locations.clear();
            }
        }
        self.paths.reserve(vocabulary.nodes() - self.paths.len());
        for node in self.paths.len()..vocabulary.nodes() {
            let node = vocabulary.node(u32::try_from(node).unwrap_or(u32::MAX));
            self.paths.push(self.paths[node.parent as usize] | self.location(node.location));
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::{KnownLocations, StackFilter};

    use super::*;

    const GENERATION: u64 = 3;

    /// Stacks of location numbers, leaf first, and the nodes at which they end.
    fn vocabulary(stacks: &[&[u32]]) -> (Vocabulary, Vec<u32>) {
        let mut vocabulary = Vocabulary::new(GENERATION);
        let ends = stacks.iter().zip(1..).map(|(stack, hash)| vocabulary.add_stack(proto::StackHash(hash), stack));
        let ends = ends.collect();
        (vocabulary, ends)
    }

    fn filter(place: FramePlace, is_negated: bool, locations: &[u32]) -> StackFilter {
        let mut filter = StackFilter::new(place, is_negated, false);
        locations.iter().for_each(|&location| filter.insert(location));
        filter
    }

    fn passing(
        of: &(Vocabulary, Vec<u32>),
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
        let passing = filtering.passing(vocabulary, pairs.iter().copied());
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
}
