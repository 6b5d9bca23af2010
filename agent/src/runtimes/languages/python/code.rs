//! Reads code objects: the name, file and lines of a Python function.
//!
//! The program may free or change a code object at any moment. Invariant: a code object is returned only if it had the
//! wanted identity before and after all other reads.

use super::layout::Layout;
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::{ProcessMemory, fold};

/// Largest size of a line table, in bytes. A function with ten thousand lines has about 50 KB.
const LINES_BYTES_MAX: usize = 64 << 10;

/// A function, as its code object describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    name: String,
    file: String,
    first_line: u32,
    lines: Box<[u8]>,
}

impl Code {
    /// Reads a code object. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(memory: &ProcessMemory, layout: &Layout, address: u64, identity: u32) -> Option<Self> {
        let has_identity = || identity_of(memory, layout, address) == Some(identity);
        memory.read_same(has_identity, || Self::parts(memory, layout, address))
    }

    fn parts(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        let pointer = |offset: u16| word(memory, address.checked_add(offset.into())?);
        let first_line = memory.array(address.checked_add(layout.code.first_line.into())?).map(u32::from_ne_bytes)?;
        let mut name = text(memory, layout, pointer(layout.code.name)?, Part::Start)?;
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        let file = text(memory, layout, pointer(layout.code.file)?, Part::End)?;
        let end = file.ceil_char_boundary(file.len().saturating_sub(NAME_BYTES_MAX));
        let file = file[end..].to_owned();
        let lines = bytes(memory, layout, pointer(layout.code.lines)?).unwrap_or_default();
        Some(Self { name, file, first_line, lines })
    }

    /// Returns the function, and the line of an instruction. `position` is as BPF reports it.
    pub(crate) fn call(&self, layout: &Layout, position: u32) -> Call {
        let line = self.line(layout, position).unwrap_or_default();
        Call { function: self.name.clone(), file: self.file.clone(), line, start_line: self.first_line }
    }

    fn line(&self, layout: &Layout, position: u32) -> Option<u32> {
        // The position is negative before the first instruction has begun.
        if position.cast_signed() < 0 {
            return Some(self.first_line);
        }
        let position = position.checked_mul(layout.code.position_unit.into())?;
        layout.code.line_table.line(&self.lines, self.first_line, position)
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len() + self.lines.len()
    }
}

/// Returns the identity of a code object, as BPF computes it (`python_identity` in `ebpf/bpf/runtimes/python.h`).
pub(crate) fn identity_of(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<u32> {
    let (start, end) = layout.code.identity;
    let mut bytes = vec![0; end.checked_sub(start)?.into()];
    if !memory.read(address.checked_add(start.into())?, &mut bytes) {
        return None;
    }
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let hash = match layout.code.identified_name {
        Some(name) => {
            let name = words.get(usize::from(name.checked_sub(start)?) / size_of::<u64>())?;
            Some(word(memory, name.checked_add(layout.text.hash()?.into())?)?)
        }
        None => None,
    };
    Some(fold(words.into_iter().chain(hash)))
}

fn word(memory: &ProcessMemory, address: u64) -> Option<u64> {
    memory.array(address).map(u64::from_ne_bytes)
}

/// Part of a text that is read if the text is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Start,
    End,
}

/// Reads a `str` object, at most [`NAME_BYTES_MAX`] characters of it.
fn text(memory: &ProcessMemory, layout: &Layout, address: u64, part: Part) -> Option<String> {
    let layout = layout.text;
    let length = usize::try_from(word(memory, address.checked_add(layout.length.into())?)?).ok()?;
    let read = length.min(NAME_BYTES_MAX);
    let first = if part == Part::End { length - read } else { 0 };
    let state = memory.array(address.checked_add(layout.state.into())?).map(u32::from_ne_bytes)? >> layout.kind_shift;
    let (width, is_compact, is_ascii) = (state & 7, state & 1 << 3 != 0, state & 1 << 4 != 0);
    if !is_compact {
        return None;
    }
    let header = if is_ascii { layout.ascii_header } else { layout.header };
    let width = match width {
        1 | 2 | 4 => width as usize,
        _ => return None,
    };
    let mut bytes = vec![0; read * width];
    let start = u64::from(header).checked_add(first.checked_mul(width)? as u64)?;
    if !memory.read(address.checked_add(start)?, &mut bytes) {
        return None;
    }
    let characters = bytes.chunks_exact(width).map(|bytes| {
        let mut number = [0; 4];
        number[..width].copy_from_slice(bytes);
        char::from_u32(u32::from_le_bytes(number)).unwrap_or(char::REPLACEMENT_CHARACTER)
    });
    Some(characters.collect())
}

/// Reads a `bytes` object. `None` if it is too long.
fn bytes(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Box<[u8]>> {
    let length = usize::try_from(word(memory, address.checked_add(layout.bytes_length.into())?)?).ok()?;
    let mut bytes = vec![0; Some(length).filter(|length| *length <= LINES_BYTES_MAX)?];
    memory.read(address.checked_add(layout.bytes_data.into())?, &mut bytes).then(|| bytes.into())
}

#[cfg(test)]
pub(crate) mod tests;
