//! Reads Ruby's strings and arrays. Types are checked before fields are read, because the program may change all
//! objects at any moment.

use super::layout::Layout;
use crate::names::location::NAME_BYTES_MAX;
use crate::runtimes::memory::ProcessMemory;

// Types of objects, in the lowest bits of their flags.
const TYPE: u64 = 0x1f;
const STRING: u64 = 5;
const ARRAY: u64 = 7;

/// Flag of a string whose bytes are not in the object.
const IS_STRING_APART: u64 = 0x2000;
/// Flag of an array whose elements are in the object.
const IS_ARRAY_WHOLE: u64 = 0x2000;

pub(super) fn word(memory: &ProcessMemory, address: u64, offset: u64) -> Option<u64> {
    memory.array(address.checked_add(offset)?).map(u64::from_ne_bytes)
}

pub(super) fn int(memory: &ProcessMemory, address: u64, offset: u64) -> Option<u32> {
    memory.array(address.checked_add(offset)?).map(u32::from_ne_bytes)
}

/// Part of a text that is read if the text is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Start,
    End,
}

/// Reads a string, at most [`NAME_BYTES_MAX`] bytes of it.
pub(super) fn string(memory: &ProcessMemory, layout: &Layout, address: u64, part: Part) -> Option<String> {
    let flags = word(memory, address, 0)?;
    if flags & TYPE != STRING {
        return None;
    }
    let (length, start) = if flags & IS_STRING_APART != 0 {
        (word(memory, address, 16)?, word(memory, address, 24)?)
    } else if layout.is_length_in_flags {
        (flags >> 14 & 0x1f, address.checked_add(16)?)
    } else {
        (word(memory, address, 16)?, address.checked_add(24)?)
    };
    let read = length.min(NAME_BYTES_MAX as u64);
    let skipped = if part == Part::End { length - read } else { 0 };
    let mut bytes = vec![0; usize::try_from(read).ok()?];
    memory.read(start.checked_add(skipped)?, &mut bytes).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads an element of an array; `None` if the array has no such element.
pub(super) fn element(memory: &ProcessMemory, array: u64, index: u64) -> Option<u64> {
    let flags = word(memory, array, 0)?;
    if flags & TYPE != ARRAY {
        return None;
    }
    let (length, first) = if flags & IS_ARRAY_WHOLE != 0 {
        (flags >> 15 & 0x7f, array.checked_add(16)?)
    } else {
        (word(memory, array, 16)?, word(memory, array, 32)?)
    };
    if index < length { word(memory, first, index.checked_mul(8)?) } else { None }
}

/// Reads the path of a function: a string, or an array of the path and the path without links.
pub(super) fn path(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<String> {
    let flags = word(memory, address, 0)?;
    if flags & TYPE != ARRAY {
        return string(memory, layout, address, Part::End);
    }
    string(memory, layout, element(memory, address, 0)?, Part::End)
}
