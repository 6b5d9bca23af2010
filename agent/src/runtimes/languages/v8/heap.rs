//! Objects in the memory of a process that runs V8.
//!
//! A word is a small integer, or the address of an object plus a tag. The first word of an object is its map, which has
//! the number of the object's type. The program may move or change any object at any moment, so every object is taken
//! for one only if it has the expected type.

use super::layout::{ELEMENTS, LENGTH, Layout};
use crate::runtimes::memory::ProcessMemory;

/// In a map: the number of the type.
const TYPE: u64 = 12;
/// Largest depth of strings that consist of other strings.
const DEPTH_MAX: u32 = 8;
/// Number of bytes of a string that are read at once.
const PIECE_BYTES: u32 = 64 << 10;
/// Limit of the addresses of objects.
const ADDRESS_LIMIT: u64 = 1 << 47;

/// Largest length of a table, in bytes. A function with ten thousand lines has about 100 KB.
pub(crate) const TABLE_BYTES_MAX: usize = 1 << 20;

// In a string: its length, the characters of a plain one, and the parts of others.
const STRING_LENGTH: u64 = 12;
const STRING_CHARACTERS: u64 = 16;
const STRING_FIRST: u64 = 16;
const STRING_SECOND: u64 = 24;

/// Address of an object, without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object(pub(crate) u64);

/// Consecutive characters of a string.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// Characters below 256.
    Narrow(&'a [u8]),
    /// UTF-16, in the byte order of the machine.
    Wide(&'a [[u8; 2]]),
}

/// Part of a text that is read if the text is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Start,
    End,
}

/// The objects of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heap<'a> {
    pub(crate) memory: &'a ProcessMemory,
    pub(crate) layout: &'a Layout,
}

/// Returns the object that a word points to; `None` for a small integer.
pub(crate) fn object(word: u64) -> Option<Object> {
    let address = word & !3;
    (word & 1 == 1 && 0 < address && address < ADDRESS_LIMIT).then_some(Object(address))
}

/// Returns the small integer in a word; `None` for a pointer.
pub(crate) fn small(word: u64) -> Option<i32> {
    (word as u32 == 0).then_some((word >> 32) as i32)
}

impl Heap<'_> {
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.memory.array(address).map(u64::from_ne_bytes)
    }

    pub(crate) fn field(&self, of: Object, offset: u16) -> Option<u64> {
        self.word(of.0.checked_add(offset.into())?)
    }

    pub(crate) fn int(&self, of: Object, offset: u16) -> Option<u32> {
        self.memory.array(of.0.checked_add(offset.into())?).map(u32::from_ne_bytes)
    }

    /// Returns the object that a field points to.
    pub(crate) fn pointer(&self, of: Object, offset: u16) -> Option<Object> {
        object(self.field(of, offset)?)
    }

    /// Returns the number of an object's type.
    pub(crate) fn type_of(&self, of: Object) -> Option<u16> {
        let map = object(self.word(of.0)?)?;
        self.memory.array(map.0.checked_add(TYPE)?).map(u16::from_ne_bytes)
    }

    /// Returns the object if it has a type.
    pub(crate) fn typed(&self, of: Object, wanted: u16) -> Option<Object> {
        (self.type_of(of)? == wanted).then_some(of)
    }

    /// True if a word is the map of objects of a type.
    pub(crate) fn is_map_of(&self, word: u64, wanted: u16) -> bool {
        // A map has a tag, and its upper bits are zero, which excludes nearly all machine code without a read.
        let map = object(word).filter(|_| word & 3 == 1);
        map.is_some_and(|map| {
            let found = map.0.checked_add(TYPE).and_then(|at| self.memory.array(at)).map(u16::from_ne_bytes);
            found == Some(wanted) && self.type_of(map) == Some(self.layout.types.map)
        })
    }

    /// Returns an element of an array.
    pub(crate) fn element(&self, of: Object, index: u64) -> Option<u64> {
        let at = index.checked_mul(8)?.checked_add(ELEMENTS.into())?;
        self.word(of.0.checked_add(at)?)
    }

    /// Reads an array of bytes. `None` if it is too long.
    pub(crate) fn bytes(&self, of: Object) -> Option<Box<[u8]>> {
        let (found, types) = (self.type_of(of)?, &self.layout.types);
        if found != types.byte_array && Some(found) != types.trusted_byte_array {
            return None;
        }
        let length = usize::try_from(small(self.field(of, LENGTH)?)?).ok()?;
        let mut bytes = vec![0; Some(length).filter(|length| *length <= TABLE_BYTES_MAX)?];
        self.memory.read(of.0 + u64::from(ELEMENTS), &mut bytes).then(|| bytes.into())
    }

    /// Returns the number of characters of a string; `None` for other objects.
    pub(crate) fn length(&self, string: Object) -> Option<u32> {
        if self.layout.types.no_string <= self.type_of(string)? {
            return None;
        }
        let length = self.memory.array(string.0 + STRING_LENGTH).map(u32::from_ne_bytes)?;
        (length < 1 << 30).then_some(length)
    }

    /// Reads a string, at most `units` UTF-16 units of it.
    pub(crate) fn text(&self, string: Object, units: u32, part: Part) -> Option<String> {
        let length = self.length(string)?;
        let first = if part == Part::End { length.saturating_sub(units) } else { 0 };
        let mut text = Vec::new();
        self.pieces(string, first, length.min(units), &mut |piece| match piece {
            Piece::Narrow(bytes) => text.extend(bytes.iter().copied().map(u16::from)),
            Piece::Wide(units) => text.extend(units.iter().copied().map(u16::from_ne_bytes)),
        })?;
        Some(String::from_utf16_lossy(&text))
    }

    /// Passes `count` characters of a string to `each`, from the character `first` on.
    pub(crate) fn pieces(&self, string: Object, first: u32, count: u32, each: &mut dyn FnMut(Piece<'_>)) -> Option<()> {
        self.pieces_of(string, first, count, DEPTH_MAX, each)
    }

    fn pieces_of(
        &self,
        string: Object,
        first: u32,
        count: u32,
        depth: u32,
        each: &mut dyn FnMut(Piece<'_>),
    ) -> Option<()> {
        let length = self.length(string)?;
        if count == 0 {
            return Some(());
        }
        if length < first.checked_add(count)? {
            return None;
        }
        let kind = self.type_of(string)?;
        let part = |at: u64| object(self.word(string.0 + at)?);
        let depth = depth.checked_sub(1)?;
        match kind & 7 {
            0 => self.characters(string.0 + STRING_CHARACTERS, kind & 8 != 0, first, count, each),
            2 => self.characters(self.word(string.0 + STRING_SECOND)?, kind & 8 != 0, first, count, each),
            1 => {
                let left = part(STRING_FIRST)?;
                let middle = self.length(left)?;
                let in_left = middle.saturating_sub(first).min(count);
                self.pieces_of(left, first, in_left, depth, each)?;
                if in_left == count {
                    return Some(());
                }
                let from = first.saturating_sub(middle);
                self.pieces_of(part(STRING_SECOND)?, from, count - in_left, depth, each)
            }
            3 => {
                let offset = u32::try_from(small(self.word(string.0 + STRING_SECOND)?)?).ok()?;
                self.pieces_of(part(STRING_FIRST)?, first.checked_add(offset)?, count, depth, each)
            }
            5 => self.pieces_of(part(STRING_FIRST)?, first, count, depth, each),
            _ => None,
        }
    }

    fn characters(
        &self,
        data: u64,
        is_narrow: bool,
        first: u32,
        mut count: u32,
        each: &mut dyn FnMut(Piece<'_>),
    ) -> Option<()> {
        let width = if is_narrow { 1 } else { 2 };
        let mut at = data.checked_add(u64::from(first) * width)?;
        let mut bytes = Vec::new();
        while 0 < count {
            let units = count.min(PIECE_BYTES / 2);
            bytes.resize(units as usize * width as usize, 0);
            if !self.memory.read(at, &mut bytes) {
                return None;
            }
            each(if is_narrow { Piece::Narrow(&bytes) } else { Piece::Wide(bytes.as_chunks::<2>().0) });
            at = at.checked_add(bytes.len() as u64)?;
            count -= units;
        }
        Some(())
    }
}
