//! Fields of structures in the memory of a process.

use crate::runtimes::memory::ProcessMemory;

/// Factor of BPF's hash.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// An integer in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Integer {
    pub(crate) offset: u16,
    /// Size, in bytes: 1, 2, 4 or 8.
    pub(crate) bytes: u8,
    pub(crate) is_signed: bool,
}

impl Integer {
    /// Reads the integer of the structure at an address.
    pub(crate) fn read(self, memory: &ProcessMemory, structure: u64) -> Option<i64> {
        let mut bytes = [0; 8];
        let size = usize::from(self.bytes).min(8);
        if !memory.read(structure.checked_add(self.offset.into())?, &mut bytes[..size]) {
            return None;
        }
        let unused = 64 - 8 * size as u32;
        let number = u64::from_ne_bytes(bytes);
        Some(if self.is_signed { (number << unused).cast_signed() >> unused } else { number.cast_signed() })
    }
}

/// Reads the word at an offset from an address.
pub(crate) fn word(memory: &ProcessMemory, address: u64, offset: u16) -> Option<u64> {
    memory.array(address.checked_add(offset.into())?).map(u64::from_ne_bytes)
}

/// Reads the word at an offset, which must be a pointer to a structure of words.
pub(crate) fn pointer(memory: &ProcessMemory, address: u64, offset: u16) -> Option<u64> {
    word(memory, address, offset).filter(|pointer| *pointer != 0 && pointer.is_multiple_of(8))
}

pub(crate) fn int(memory: &ProcessMemory, address: u64, offset: u16) -> Option<i32> {
    memory.array(address.checked_add(offset.into())?).map(i32::from_ne_bytes)
}

pub(crate) fn short(memory: &ProcessMemory, address: u64, offset: u16) -> Option<u16> {
    memory.array(address.checked_add(offset.into())?).map(u16::from_ne_bytes)
}

/// Reads a text that a zero byte ends; `None` if it has more than `bytes_max` bytes, at most 128.
pub(crate) fn text(memory: &ProcessMemory, address: u64, bytes_max: usize) -> Option<String> {
    const PAGE: u64 = 4096;
    let mut bytes = [0; 128];
    let bytes_max = bytes_max.min(bytes.len() - 1);
    // The page after the text may be missing.
    let in_page = (PAGE - address % PAGE).min(bytes_max as u64 + 1) as usize;
    if !memory.read(address, &mut bytes[..in_page]) {
        return None;
    }
    if !bytes[..in_page].contains(&0) && !memory.read(address, &mut bytes[..=bytes_max]) {
        return None;
    }
    let end = bytes[..=bytes_max].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Returns the identity of an object as BPF computes it from words of the object.
pub(crate) fn mix(words: impl IntoIterator<Item = u64>) -> u32 {
    let mixed = words.into_iter().fold(0_u64, |mixed, word| (mixed ^ word).wrapping_mul(HASH_FACTOR));
    (mixed >> 32) as u32 | 1
}
