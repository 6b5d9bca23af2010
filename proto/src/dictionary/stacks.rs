//! Stacktraces: location ids under the hash of what they stand for.

use crate::dictionary::ids::{Ids, dense, kept};
use crate::dictionary::location::StackHash;

/// Stacktraces by dense ids, each once; of some nothing but the hash is here, since the holder of the batch knows the rest.
/// The locations of all lie in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    hashes: Vec<StackHash>,
    spans: Vec<Span>,
    locations: Vec<u32>,
    ids: Ids,
}

/// A stack's place in the locations of all.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    length: u32,
}

/// Where the locations of all stacks were.
#[derive(Debug)]
pub(crate) struct Spans(Vec<Span>);

/// Only the hash is here. Dictionaries are bounded (`limits`) long before they hold 2^32 locations.
const REFERENCE: Span = Span { start: u32::MAX, length: 0 };

impl Span {
    fn is_reference(self) -> bool {
        self.start == u32::MAX
    }
}

impl Stacks {
    /// How many there are, references included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// All hashes, by id.
    pub fn keys(&self) -> std::slice::Iter<'_, StackHash> {
        self.hashes.iter()
    }

    /// The id of a hash that is here.
    #[must_use]
    #[inline]
    pub fn find(&self, hash: &StackHash) -> Option<u32> {
        self.ids.find(kept(hash.0), |id| self.hashes[id as usize] == *hash)
    }

    /// Whether a hash is here.
    #[must_use]
    pub fn contains_key(&self, hash: &StackHash) -> bool {
        self.find(hash).is_some()
    }

    /// The locations of an id of this table, leaf first; none if only its hash is here.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u32]> {
        self.at(self.spans[id as usize])
    }

    fn at(&self, span: Span) -> Option<&[u32]> {
        let start = span.start as usize;
        (!span.is_reference()).then(|| &self.locations[start..start + span.length as usize])
    }

    /// The hash of an id of this table.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> StackHash {
        self.hashes[id as usize]
    }

    /// Hash and locations of each, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&StackHash, Option<&[u32]>)> {
        self.hashes.iter().zip(&self.spans).map(|(hash, span)| (hash, self.at(*span)))
    }

    /// The id of a hash, new or old. One whose locations are not here gets them.
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

    /// Makes references of some, of which nothing but the hash is here then; returns what [`Stacks::put_back`] needs.
    pub(crate) fn leave_out(&mut self, is_left_out: impl Fn(usize) -> bool) -> Spans {
        let before = Spans(self.spans.clone());
        let left_out = self.spans.iter_mut().enumerate().filter(|(id, _)| is_left_out(*id));
        left_out.for_each(|(_, span)| *span = REFERENCE);
        before
    }

    /// Undoes [`Stacks::leave_out`].
    pub(crate) fn put_back(&mut self, before: Spans) {
        self.spans = before.0;
    }

    pub(crate) fn reserve(&mut self, additional: usize, locations: usize) {
        self.locations.reserve(locations);
        self.hashes.reserve(additional);
        self.spans.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Bytes that it takes in memory.
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
    fn a_reference_gets_its_locations_once() {
        let mut stacks = Stacks::default();
        // The same in the bits that the index keeps.
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
    fn what_is_left_out_is_a_reference_until_it_is_put_back() {
        let mut stacks = Stacks::default();
        let hashes = [1, 2, 3].map(StackHash);
        hashes.iter().for_each(|&hash| {
            stacks.intern(hash, Some(&[hash.0 as u32]));
        });
        let before = stacks.leave_out(|id| id != 1);
        assert_eq!([0, 1, 2].map(|id| stacks.get(id)), [None, Some([2].as_slice()), None]);
        assert!(stacks.keys().eq(&hashes));
        stacks.put_back(before);
        assert_eq!([0, 1, 2].map(|id| stacks.get(id)), [1, 2, 3].each_ref().map(|id| Some(std::slice::from_ref(id))));
    }
}
