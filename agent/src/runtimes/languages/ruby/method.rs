//! Reads the names of methods that are written in C.
//!
//! | structure | fields |
//! | --- | --- |
//! | method entry | flags, class, definition, name, owner; words |
//! | definition | 32 bytes, and then the name with which the method was defined |
//! | table of symbols | largest number u32, a pointer, and an array of arrays |
//!
//! A name is a number. Each of the arrays has 512 pairs of a string and an object, by the numbers.
//!
//! The program may free or change all of them at any moment. Invariant: a name is returned only if the entry had the
//! wanted identity before and after all other reads.

use super::layout::Layout;
use super::objects::{Part, element, string, word};
use crate::names::location::Call;
use crate::runtimes::memory::{ProcessMemory, fold};

// Words of an entry that identify the method, and its definition.
const IDENTITY: u64 = 8;
const IDENTITY_WORDS: usize = 4;
const DEFINITION: u64 = 16;
/// In a definition: the name.
const NAME: u64 = 32;
/// In the table of symbols: the names.
pub(super) const NAMES: u64 = 16;
/// Names of operators are smaller than this, and are their own numbers. Other names are larger, and have four bits for
/// their kind.
const WITH_KIND_MIN: u64 = 1024;
const KIND_BITS: u32 = 4;
/// Number of names in an array.
const ARRAY_NAMES: u64 = 512;

/// A method that is written in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    name: String,
}

impl Method {
    /// Reads the name of a method, from the address of its entry, and from that at which the file with Ruby is loaded.
    /// `None` if the method is gone, or if its name cannot be read.
    pub(super) fn read(
        memory: &ProcessMemory,
        layout: &Layout,
        (entry, load): (u64, u64),
        identity: u32,
    ) -> Option<Self> {
        let symbols = load.checked_add(layout.symbols?)?;
        let has_identity = || identity_of(memory, entry) == Some(identity);
        memory.read_same(has_identity, || Some(Self { name: name(memory, layout, entry, symbols)? }))
    }

    /// Returns the method, which has no place.
    pub(super) fn call(&self) -> Call {
        Call { function: self.name.clone(), ..Call::default() }
    }

    /// Approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }
}

fn name(memory: &ProcessMemory, layout: &Layout, entry: u64, symbols: u64) -> Option<String> {
    let name = word(memory, word(memory, entry, DEFINITION)?, NAME)?;
    let number = if name < WITH_KIND_MIN { name } else { name >> KIND_BITS };
    let names = element(memory, word(memory, symbols, NAMES)?, number / ARRAY_NAMES)?;
    string(memory, layout, element(memory, names, number % ARRAY_NAMES * 2)?, Part::Start)
}

/// Returns the identity of an entry, as BPF computes it.
pub(super) fn identity_of(memory: &ProcessMemory, entry: u64) -> Option<u32> {
    let words: [u8; 8 * IDENTITY_WORDS] = memory.array(entry.checked_add(IDENTITY)?)?;
    Some(fold(words.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word))))
}

#[cfg(test)]
mod tests;
