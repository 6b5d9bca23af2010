//! Interned text.

use crate::dictionary::identity::text_hash;
use crate::dictionary::ids::{Ids, dense, kept};

/// Interned text; id 0 is "". All of it lies in one piece of memory. Two texts are the same if their hashes are, of which those of
/// functions and locations are made: so text is read once, however many refer to it and wherever it is copied to.
#[derive(Clone, Debug)]
pub struct Strings {
    text: String,
    /// Where each text ends and the next begins.
    ends: Vec<usize>,
    hashes: Vec<u128>,
    ids: Ids,
}

impl Default for Strings {
    fn default() -> Self {
        let mut strings = Self { text: String::new(), ends: Vec::new(), hashes: Vec::new(), ids: Ids::default() };
        strings.intern("");
        strings
    }
}

impl Strings {
    /// The id of a text that is here, by its [`text_hash`].
    #[must_use]
    pub fn find_hash(&self, hash: u128) -> Option<u32> {
        self.ids.find(kept(hash), |id| self.hashes[id as usize] == hash)
    }

    /// The id of a text, new or old.
    pub fn intern(&mut self, text: &str) -> u32 {
        self.intern_hashed(text_hash(text.as_bytes()), text)
    }

    /// The id of a text whose [`text_hash`](crate::dictionary::identity::text_hash) is known, new or old.
    pub fn intern_hashed(&mut self, hash: u128, text: &str) -> u32 {
        let (new, hashes) = (self.len(), &self.hashes);
        let id = self.ids.find_or_insert(kept(hash), new, |id| hashes[id as usize] == hash);
        if id == new {
            self.text.push_str(text);
            self.ends.push(self.text.len());
            self.hashes.push(hash);
        }
        id
    }

    /// The [`text_hash`](text_hash) of an id of this table.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// The text of an id of this table.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> &str {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start..self.ends[id]]
    }

    /// The id of a text that is here.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<u32> {
        self.find_hash(text_hash(text.as_bytes()))
    }

    /// How many there are, "" included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        dense(self.ends.len())
    }

    /// Never: "" is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn reserve(&mut self, additional: usize, text_bytes: usize) {
        self.text.reserve(text_bytes);
        self.ends.reserve(additional);
        self.hashes.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Bytes that it takes in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.text.capacity()
            + self.ends.capacity() * size_of::<usize>()
            + self.hashes.capacity() * size_of::<u128>()
            + self.ids.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_there_once_and_keeps_its_id_while_others_come() {
        let mut strings = Strings::default();
        let text = |i: u32| "ä".repeat(i as usize % 7) + &i.to_string();
        for i in 0..5000 {
            assert_eq!(strings.intern(&text(i)), i + 1);
        }
        for i in 0..5000 {
            assert_eq!((strings.intern(&text(i)), strings.find(&text(i))), (i + 1, Some(i + 1)));
            assert_eq!(strings.get(i + 1), text(i));
        }
        assert_eq!((strings.len(), strings.find("x"), strings.find(""), strings.get(0)), (5001, None, Some(0), ""));
    }
}
