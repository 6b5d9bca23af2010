//! Reads subs: their names, files and first lines.
//!
//! The program may free or change a sub at any moment. Invariant: a function is returned only if it had the wanted
//! identity before and after all other reads.

use super::layout::Layout;
use super::scalars::{c_string, glob_name, int, key, package_name, sub_body, word};
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::{ProcessMemory, fold};

/// Lowest bits of an address, which tell what it is the address of.
const TAGS: u64 = 7;
// Tags, as in `ebpf/bpf/runtimes/perl.h`.
const SUB_TAG: u64 = 0;
const PROGRAM_TAG: u64 = 1;
const EVAL_TAG: u64 = 2;

// Fields in the body of a sub. The first five and the number of the sub in the parser identify it, without its name,
// which may move while the sub runs.
const PACKAGE: u64 = 0x20;
const FIRST_OPERATION: u64 = 0x28;
const NAME: u64 = 0x38;
const FILE: u64 = 0x40;
const FLAGS: u64 = 0x5c;

/// Flag of a sub whose name is not that of a glob.
const HAS_OWN_NAME: u32 = 0x8000;
/// Flag of a sub whose name is visible in its block only.
const IS_LEXICAL: u32 = 0x1_0000;

// Fields of a statement.
const STATEMENT_LINE: u64 = 0x24;
const STATEMENT_FILE: u64 = 0x30;

/// Name of a sub without a name.
const ANONYMOUS: &str = "__ANON__";

/// Number of bytes of a file's name that identify the code in it.
const NAME_START_BYTES: usize = 16;

/// A sub, the main program, or the text of an eval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sub {
    name: String,
    file: String,
    start_line: u32,
}

impl Sub {
    /// Reads a function. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(memory: &ProcessMemory, layout: &Layout, address: u64, identity: u32) -> Option<Self> {
        let has_identity = || identity_of(memory, address) == Some(identity);
        let at = address & !TAGS;
        memory.read_same(has_identity, || match address & TAGS {
            SUB_TAG => sub(memory, layout, at),
            tag => {
                let name = if tag == PROGRAM_TAG { "<toplevel>" } else { "(eval)" };
                Some(Self { name: name.to_owned(), file: path(&c_string(memory, at)?), start_line: 0 })
            }
        })
    }

    /// Returns the tag of a sub. Perl copies the sub for each closure.
    pub(crate) fn copied_kind(address: u64) -> Option<u64> {
        (address & TAGS == SUB_TAG).then_some(SUB_TAG)
    }

    /// True if the copies of this sub have no name of their own. A program can give each copy a name.
    pub(crate) fn is_nameless(&self) -> bool {
        self.name.ends_with("::__ANON__")
    }

    /// Returns the function, and the line that BPF reports.
    pub(crate) fn call(&self, line: u32) -> Call {
        let line = if line == 0 { self.start_line } else { line };
        Call { function: self.name.clone(), file: self.file.clone(), line, start_line: self.start_line }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }
}

/// Returns the identity of a function, as BPF computes it (`perl_identity` and `push_perl_unit` in
/// `ebpf/bpf/runtimes/perl.h`).
pub(crate) fn identity_of(memory: &ProcessMemory, address: u64) -> Option<u32> {
    let at = address & !TAGS;
    match address & TAGS {
        SUB_TAG => {
            let body = sub_body(memory, at)?;
            let mut words = [0; 5];
            for (word_of, offset) in words.iter_mut().zip([PACKAGE, FIRST_OPERATION, 0x30, 0x58, FILE]) {
                *word_of = word(memory, body, offset)?;
            }
            // The flags of the sub, which may change, follow its number.
            words[3] &= u64::from(u32::MAX);
            Some(fold(words))
        }
        PROGRAM_TAG | EVAL_TAG => {
            let mut bytes: [u8; NAME_START_BYTES] = memory.array(at)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            bytes[end..].fill(0);
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
            // If the name ends in the first word, BPF does not read further.
            let used = if end < 8 { 1 } else { 2 };
            Some(fold(words.take(used)))
        }
        _ => None,
    }
}

fn sub(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Sub> {
    let body = sub_body(memory, address)?;
    let file = word(memory, body, FILE).filter(|file| *file != 0).and_then(|file| c_string(memory, file));
    let file = file.unwrap_or_default();
    let start_line = start_line(memory, word(memory, body, FIRST_OPERATION)?, &file).unwrap_or_default();
    let mut name = name(memory, layout, body)?;
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    Some(Sub { name, file: path(&file), start_line })
}

/// Returns the name of a sub with its package, as `caller` does.
fn name(memory: &ProcessMemory, layout: &Layout, body: u64) -> Option<String> {
    let (flags, at) = (int(memory, body, FLAGS)?, word(memory, body, NAME)?);
    let package = || word(memory, body, PACKAGE).and_then(|package| package_name(memory, layout, package));
    if flags & HAS_OWN_NAME == 0 {
        let (package, name) = match at {
            0 => (package().unwrap_or_else(|| ANONYMOUS.to_owned()), ANONYMOUS.to_owned()),
            glob => glob_name(memory, layout, glob)?,
        };
        return Some(format!("{package}::{name}"));
    }
    let name = key(memory, at)?;
    if flags & IS_LEXICAL != 0 {
        return Some(name);
    }
    Some(format!("{}::{name}", package()?))
}

/// Returns the line of a sub's first operation, if it is a statement of the sub's file.
fn start_line(memory: &ProcessMemory, operation: u64, file: &[u8]) -> Option<u32> {
    let of_operation = c_string(memory, word(memory, operation, STATEMENT_FILE)?)?;
    int(memory, operation, STATEMENT_LINE).filter(|_| of_operation == file)
}

/// Returns the end of a path, at most [`NAME_BYTES_MAX`] bytes.
fn path(bytes: &[u8]) -> String {
    let path = String::from_utf8_lossy(bytes);
    path[path.ceil_char_boundary(path.len().saturating_sub(NAME_BYTES_MAX))..].to_owned()
}

#[cfg(test)]
mod tests;
