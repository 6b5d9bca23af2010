//! What is asked of a symbol table and what it answers.

use std::sync::Arc;

use proto::BuildId;
use thiserror::Error;

use crate::reason::Reason;

/// The mapped file to which addresses belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey<'a> {
    /// Its identity; without one its addresses get no names.
    pub build_id: Option<&'a BuildId>,
    /// Its path as the profile gives it, only used to find the file on this host: what is found there is believed by
    /// its build ID alone. Empty if unknown.
    pub file: &'a str,
}

/// An instruction's place in a file. A return address was already moved into the call by whoever unwound the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// The ELF virtual address.
    Virtual(u64),
    /// The offset in the file, in bytes.
    FileOffset(u64),
}

/// One function that was running at an address: the innermost is the one whose code it is, each further one is the
/// caller into which the one before was inlined, and the last is the function that exists in the binary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The name without parameters and return type, demangled. Never empty.
    pub function: Arc<str>,
    /// The name as the linker knows it; the same as `function` where nothing is mangled.
    pub system_name: Arc<str>,
    /// The path of the source file as the compiler wrote it; empty if unknown.
    pub file: Arc<str>,
    /// The line in `file`; 0 if unknown. In a caller it is the line of the call.
    pub line: u32,
    /// The line in `file` on which the function is declared; 0 if unknown.
    pub start_line: u32,
    /// Whether calls that were inlined into it here are left out, since one answer would have more frames than
    /// [`crate::limits::FRAMES_PER_ADDRESS_MAX`] allows.
    pub is_cut: bool,
}

/// An address without a name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct Nameless {
    /// Why it has no name.
    pub reason: Reason,
    /// The virtual address where its function begins, if the call frame information of the file says so.
    pub function_start: Option<u64>,
}

impl From<Reason> for Nameless {
    fn from(reason: Reason) -> Self {
        Self { reason, function_start: None }
    }
}
