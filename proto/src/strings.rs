//! Interned text.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;

use crate::ids::{Ids, kept};

/// Interned text; id 0 is "". All of it lies in one piece of memory.
#[derive(Clone, Debug)]
pub struct Strings {
    text: String,
    /// Where each text ends and the next begins.
    ends: Vec<usize>,
    ids: Ids,
}

impl Default for Strings {
    fn default() -> Self {
        let mut strings = Self { text: String::new(), ends: Vec::new(), ids: Ids::default() };
        strings.intern("");
        strings
    }
}

impl Strings {
    fn hash(text: &str) -> u32 {
        kept(FixedState::default().hash_one(text))
    }

    fn find_hashed(&self, hash: u32, text: &str) -> Option<u32> {
        self.ids.find(hash, |id| self.get(id) == text)
    }

    /// The id of a text, new or old.
    pub fn intern(&mut self, text: &str) -> u32 {
        let hash = Self::hash(text);
        if let Some(id) = self.find_hashed(hash, text) {
            return id;
        }
        let id = self.len();
        self.text.push_str(text);
        self.ends.push(self.text.len());
        self.ids.insert(hash, id);
        id
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
        self.find_hashed(Self::hash(text), text)
    }

    /// How many there are, "" included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        crate::dictionary::dense(self.ends.len())
    }

    /// Never: "" is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(crate) fn reserve(&mut self, additional: usize, text_bytes: usize) {
        self.text.reserve(text_bytes);
        self.ends.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Bytes that it takes in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<usize>() + self.ids.memory_bytes()
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
