//! Table of interned texts.

use crate::dictionary::identity::text_hash;
use crate::dictionary::ids::{Ids, dense, kept};

/// Table of texts with dense IDs. Each text is stored once, and all texts share one allocation. The text with ID 0 is
/// "".
///
/// Two texts are the same if their hashes are equal. The hashes of functions and locations are made of the hashes of
/// their texts. So each text is hashed once, for any number of references and copies.
#[derive(Clone, Debug)]
pub struct Strings {
    text: String,
    /// Offset of the end of each text, in bytes. The next text begins at this offset.
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
    /// Returns the ID of the text with this [`text_hash`], if the table has it.
    #[must_use]
    pub fn find_hash(&self, hash: u128) -> Option<u32> {
        self.ids.find(kept(hash), |id| self.hashes[id as usize] == hash)
    }

    /// Returns the ID of a text. Adds the text if it is new.
    pub fn intern(&mut self, text: &str) -> u32 {
        self.intern_hashed(text_hash(text.as_bytes()), text)
    }

    /// Returns the ID of a text, given its [`text_hash`]. Adds the text if it is new.
    pub fn intern_hashed(&mut self, hash: u128, text: &str) -> u32 {
        let new = self.len();
        let hashes = &self.hashes;
        let id = self.ids.find_or_insert(kept(hash), new, |id| hashes[id as usize] == hash);
        if id == new {
            self.text.push_str(text);
            self.ends.push(self.text.len());
            self.hashes.push(hash);
        }
        id
    }

    /// Returns the [`text_hash`] of a text. Panics if the table has no such ID.
    #[must_use]
    #[inline]
    pub fn hash(&self, id: u32) -> u128 {
        self.hashes[id as usize]
    }

    /// Returns the text with this ID. Panics if the table has no such ID.
    #[must_use]
    #[inline]
    pub fn get(&self, id: u32) -> &str {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.text[start..self.ends[id]]
    }

    /// Returns the ID of a text, if the table has the text.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<u32> {
        self.find_hash(text_hash(text.as_bytes()))
    }

    /// Number of texts, "" included.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        dense(self.ends.len())
    }

    /// Always false, because the table has "".
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

    /// Size in memory, in bytes.
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
    fn each_text_has_one_id_while_other_texts_are_added() {
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
