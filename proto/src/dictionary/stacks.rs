//! Table of stacks, which are lists of location IDs. A stack is found by its hash.

use crate::dictionary::ids::{Ids, dense, kept};
use crate::dictionary::location::StackHash;

/// Table of stacks with dense IDs, each stored once. The locations of all stacks are in one list.
///
/// A stack without locations is called a reference. The receiver of the batch knows the stack by its hash. In an entry
/// of a log, only the first half of this hash is known.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    hashes: Vec<StackHash>,
    spans: Vec<Span>,
    locations: Vec<u32>,
    ids: Ids,
}

/// Range of one stack's locations in the list of all locations.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    length: u32,
}

/// Ranges of all stacks, as they were before some stacks became references.
#[derive(Debug)]
pub(crate) struct Spans(Vec<Span>);

/// Range that marks a reference. The limits of a dictionary are far below 2^32 locations.
const REFERENCE: Span = Span { start: u32::MAX, length: 0 };

impl Span {
    fn is_reference(self) -> bool {
        self.start == u32::MAX
    }
}

impl Stacks {
    /// Number of stacks, references included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Returns whether there are no stacks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Hashes of all stacks, by ID.
    pub fn keys(&self) -> std::slice::Iter<'_, StackHash> {
        self.hashes.iter()
    }

    /// Returns the ID of the stack with this hash; `None` if the table does not have the stack.
    #[must_use]
    #[inline]
    pub fn find(&self, hash: &StackHash) -> Option<u32> {
        self.ids.find(kept(hash.0), |id| self.hashes[id as usize] == *hash)
    }

    /// Returns whether the table has a stack with this hash.
    #[must_use]
    pub fn contains_key(&self, hash: &StackHash) -> bool {
        self.find(hash).is_some()
    }

    /// Locations of a stack, leaf first; `None` if the stack is a reference. Panics if the table has no such ID.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u32]> {
        self.at(self.spans[id as usize])
    }

    fn at(&self, span: Span) -> Option<&[u32]> {
        let start = span.start as usize;
        (!span.is_reference()).then(|| &self.locations[start..start + span.length as usize])
    }

    /// Hash of a stack. Panics if the table has no such ID.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> StackHash {
        self.hashes[id as usize]
    }

    /// Hash and locations of each stack, by ID; `None` for a reference.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&StackHash, Option<&[u32]>)> {
        self.hashes.iter().zip(&self.spans).map(|(hash, span)| (hash, self.at(*span)))
    }

    /// Hashes of the references, by ID.
    pub fn references(&self) -> impl Iterator<Item = StackHash> + '_ {
        self.iter().filter_map(|(hash, stack)| stack.is_none().then_some(*hash))
    }

    /// Returns the ID of the stack with this hash. Adds the stack if it is new. If the stack is a reference, adds its
    /// locations.
    pub(crate) fn intern(&mut self, hash: StackHash, stack: Option<&[u32]>) -> u32 {
        let id = self.find(&hash).unwrap_or_else(|| {
            let id = dense(self.hashes.len());
            self.hashes.push(hash);
            self.spans.push(REFERENCE);
            self.ids.insert(kept(hash.0), id);
            id
        });
        let span = &mut self.spans[id as usize];
        if let Some(stack) = stack.filter(|_| span.is_reference()) {
            *span = Span { start: dense(self.locations.len()), length: dense(stack.len()) };
            self.locations.extend_from_slice(stack);
        }
        id
    }

    /// Turns each stack into a reference if `is_stripped` returns true for its ID. Returns the ranges for
    /// [`Stacks::restore`].
    pub(crate) fn strip(&mut self, is_stripped: impl Fn(usize) -> bool) -> Spans {
        let before = Spans(self.spans.clone());
        let stripped = self.spans.iter_mut().enumerate().filter(|(id, _)| is_stripped(*id));
        stripped.for_each(|(_, span)| *span = REFERENCE);
        before
    }

    /// Puts back the ranges that [`Stacks::strip`] returned.
    pub(crate) fn restore(&mut self, before: Spans) {
        self.spans = before.0;
    }

    pub(crate) fn reserve(&mut self, additional: usize, locations: usize) {
        self.locations.reserve(locations);
        self.hashes.reserve(additional);
        self.spans.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Size in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<StackHash>()
            + self.spans.capacity() * size_of::<Span>()
            + self.locations.capacity() * size_of::<u32>()
            + self.ids.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_receives_its_locations_once() {
        let mut stacks = Stacks::default();
        // Both hashes have the same lower 64 bits.
        let [a, b] = [1_u128 << 64, 2 << 64].map(StackHash);
        assert_eq!((stacks.intern(a, None), stacks.intern(b, Some(&[7]))), (0, 1));
        assert_eq!((stacks.get(0), stacks.get(1)), (None, Some([7].as_slice())));
        assert_eq!(stacks.intern(a, Some(&[8, 9])), 0);
        assert_eq!(stacks.intern(a, Some(&[1])), 0);
        assert_eq!(stacks.intern(b, None), 1);
        let all: Vec<_> = stacks.iter().collect();
        assert_eq!(all, [(&a, Some([8, 9].as_slice())), (&b, Some([7].as_slice()))]);
        assert_eq!(stacks.find(&StackHash(0)), None);
    }

    #[test]
    fn a_stripped_stack_is_a_reference_until_it_is_restored() {
        let mut stacks = Stacks::default();
        let hashes = [1, 2, 3].map(StackHash);
        hashes.iter().for_each(|&hash| {
            stacks.intern(hash, Some(&[hash.0 as u32]));
        });
        let before = stacks.strip(|id| id != 1);
        assert_eq!([0, 1, 2].map(|id| stacks.get(id)), [None, Some([2].as_slice()), None]);
        assert!(stacks.keys().eq(&hashes));
        stacks.restore(before);
        assert_eq!([0, 1, 2].map(|id| stacks.get(id)), [1, 2, 3].each_ref().map(|id| Some(std::slice::from_ref(id))));
    }
}
