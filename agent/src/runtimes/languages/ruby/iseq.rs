//! Reads the body of an iseq: the name, file and lines of a Ruby function.
//!
//! The program may free or change it at any moment. Invariant: a function is returned only if it had the wanted
//! identity before and after all other reads.

use super::layout::{BodyLayout, Layout};
use super::objects::{Part, int, path, string, word};
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::{ProcessMemory, fold};

/// Largest number of instructions and operands of a function whose lines are read. A function of a thousand lines has
/// about 20,000.
const SIZE_MAX: u32 = 1 << 16;

// Fields of a body.
const SIZE: u64 = 4;
const INSTRUCTIONS: u64 = 8;
const PATH: u64 = 64;
const LABEL: u64 = 80;
const FIRST_LINE: u64 = 88;

/// Field of an iseq: its body.
const BODY: u64 = 16;
/// Label of a text without a name.
const TEXT: &str = "<compiled>";
/// Largest number of texts within each other whose function is found.
const PARENTS_MAX: usize = 8;

/// Number of positions in a word of the first part of an index, and in this part.
const WORD_POSITIONS: u32 = 9;
const FIRST_POSITIONS: u32 = 54;
/// Number of bytes of the first part, if it has its full length.
const FIRST_BYTES: u64 = 48;
/// Number of positions in a block of the second part, and of its bytes.
const BLOCK_POSITIONS: u32 = 512;
const BLOCK_BYTES: usize = 80;

/// A function: a method, a block, or the code of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Iseq {
    label: String,
    file: String,
    first_line: u32,
    /// The lines, each with the first position that it has, ascending by position.
    lines: Box<[(u32, u32)]>,
}

impl Iseq {
    /// Reads the body of an iseq. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(memory: &ProcessMemory, layout: &Layout, address: u64, identity: u32) -> Option<Self> {
        let has_identity = || identity_of(memory, address) == Some(identity);
        memory.read_same(has_identity, || Self::parts(memory, layout, address))
    }

    fn parts(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        let label = label(memory, layout, address)?;
        let file = path(memory, layout, word(memory, address, PATH)?)?;
        let first_line = if layout.body.is_line_object {
            u32::try_from(word(memory, address, FIRST_LINE)? >> 1).ok()?
        } else {
            int(memory, address, FIRST_LINE)?
        };
        let lines = lines(memory, &layout.body, address).unwrap_or_default();
        Some(Self { label, file, first_line, lines })
    }

    /// Returns the function, and the line at a position: the number of words before the next instruction.
    pub(crate) fn call(&self, position: u32) -> Call {
        let running = position.saturating_sub(1);
        let after = self.lines.partition_point(|(first, _)| *first <= running);
        let line = after.checked_sub(1).filter(|_| position != u32::MAX).map(|at| self.lines[at].1);
        Call {
            function: self.label.clone(),
            file: self.file.clone(),
            line: line.unwrap_or(self.first_line),
            start_line: self.first_line,
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.label.len() + self.file.len() + size_of_val(&*self.lines)
    }
}

/// Returns the label of a function, as `caller` has it.
fn label(memory: &ProcessMemory, layout: &Layout, body: u64) -> Option<String> {
    let label_of = |body: u64| string(memory, layout, word(memory, body, LABEL)?, Part::Start);
    let mut label = label_of(body)?;
    if !label.ends_with(TEXT) {
        return Some(label);
    }
    // The parser of Ruby 3.4 gives the text of an eval no name. It is part of the function around it.
    let mut around = body;
    for _ in 0..PARENTS_MAX {
        let parent = word(memory, around, layout.body.parent).filter(|parent| *parent != 0);
        let Some(parent) = parent else { break };
        around = word(memory, parent, BODY)?;
        let name = label_of(around)?;
        if !name.ends_with(TEXT) {
            label.truncate(label.len() - TEXT.len());
            label.push_str(&name);
            label.truncate(label.floor_char_boundary(NAME_BYTES_MAX));
            break;
        }
    }
    Some(label)
}

/// Returns the identity of a body, as BPF computes it (`read_ruby_function` in `ebpf/bpf/runtimes/ruby.h`).
pub(crate) fn identity_of(memory: &ProcessMemory, address: u64) -> Option<u32> {
    let location: [u8; 32] = memory.array(address.checked_add(PATH)?)?;
    let instructions = word(memory, address, INSTRUCTIONS)?;
    Some(fold(location.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).chain([instructions])))
}

/// Reads the lines of a function; `None` if they are damaged or too many.
fn lines(memory: &ProcessMemory, layout: &BodyLayout, body: u64) -> Option<Box<[(u32, u32)]>> {
    let size = int(memory, body, SIZE).filter(|size| *size <= SIZE_MAX)?;
    let count = int(memory, body, layout.entry_count).filter(|count| *count <= size)?;
    let mut entries = vec![0; usize::try_from(u64::from(count) * layout.entry_bytes).ok()?];
    if !memory.read(word(memory, body, layout.entries)?, &mut entries) {
        return None;
    }
    let entries = entries.chunks_exact(usize::try_from(layout.entry_bytes).ok()?);
    let number = |entry: &[u8], at: usize| Some(u32::from_ne_bytes(*entry.get(at..)?.first_chunk()?));
    let Some(index_at) = layout.index else {
        return entries.map(|entry| Some((number(entry, 0)?, number(entry, 4)?))).collect();
    };
    let of_entries: Vec<u32> = entries.map(|entry| number(entry, 0)).collect::<Option<_>>()?;
    if let [line] = of_entries[..] {
        return Some([(0, line)].into());
    }
    let index = Index::read(memory, word(memory, body, index_at)?, size)?;
    let mut lines = Vec::with_capacity(of_entries.len());
    let mut before = 0;
    for position in 0..size {
        let rank = index.rank(position)?;
        if rank != before {
            lines.push((position, *of_entries.get(usize::try_from(rank).ok()?.checked_sub(1)?)?));
            before = rank;
        }
    }
    Some(lines.into())
}

/// Index of the entries of a line table: a set of the positions at which an entry begins.
struct Index {
    first: Vec<u64>,
    blocks: Vec<[u8; BLOCK_BYTES]>,
}

impl Index {
    fn read(memory: &ProcessMemory, address: u64, size: u32) -> Option<Self> {
        let words = size.min(FIRST_POSITIONS).div_ceil(WORD_POSITIONS);
        let first = (0..words).map(|at| word(memory, address, u64::from(at) * 8)).collect::<Option<_>>()?;
        let blocks = size.saturating_sub(FIRST_POSITIONS).div_ceil(BLOCK_POSITIONS);
        let mut blocks = vec![[0; BLOCK_BYTES]; blocks as usize];
        let is_read = memory.read(address.checked_add(FIRST_BYTES)?, blocks.as_flattened_mut());
        is_read.then_some(Self { first, blocks })
    }

    /// Returns the number of entries that begin at a position or before it.
    fn rank(&self, position: u32) -> Option<u32> {
        let Some(after) = position.checked_sub(FIRST_POSITIONS) else {
            let word = self.first.get((position / WORD_POSITIONS) as usize)?;
            return Some((word >> (7 * (position % WORD_POSITIONS)) & 0x7f) as u32);
        };
        let block = self.blocks.get((after / BLOCK_POSITIONS) as usize)?;
        let words = block.as_chunks::<8>().0;
        let bit = after % BLOCK_POSITIONS;
        let (part, bit) = (bit / 64, bit % 64);
        let before = u64::from_ne_bytes(words[1]) >> (9 * part.checked_sub(1).unwrap_or(7)) & 0x1ff;
        let bits = u64::from_ne_bytes(words[2 + part as usize]) << (63 - bit);
        let all = u32::from_ne_bytes(*words[0].first_chunk()?);
        all.checked_add(if part == 0 { 0 } else { before as u32 })?.checked_add(bits.count_ones())
    }
}

#[cfg(test)]
pub(super) mod tests;
