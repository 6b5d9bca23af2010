//! Functions, mappings and locations of code.
//!
//! Their fields hold IDs of entries of the same [`Dictionary`](crate::Dictionary). The identity of a location with
//! lines is its mapping file, frame type and lines, without an address. The identity of a location without lines is
//! its frame type, its address, and the build ID and file of its mapping. So processes, pods and hosts share
//! locations.

use smallvec::SmallVec;

use crate::build_id::BuildId;

/// A function as the source or the runtime names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// ID of the name for people.
    pub name: u32,
    /// ID of the mangled name, or of "".
    pub system_name: u32,
    /// ID of the name of the source file, or of "".
    pub file: u32,
    /// Number of its first line, or 0 if unknown.
    pub start_line: i64,
}

/// A mapped file.
///
/// Files of one build ID under several names are several mappings: a binary and its stripped copy, for example. So a
/// service's frames never carry the file name of another service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Build ID of the file, if the sender has one.
    pub build_id: Option<BuildId>,
    /// ID of the file's name, or of "".
    pub file: u32,
}

/// An address in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Virtual address, as in the file's ELF headers. OTLP has these.
    Virtual(u64),
    /// Offset in the file, in bytes. pprof has these.
    FileOffset(u64),
}

/// A line of a location: a function, and a position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// ID of the function.
    pub function: u32,
    /// Line number, or 0 if unknown.
    pub line: i64,
    /// Column, or 0 if unknown.
    pub column: i64,
}

/// Lines of a location. A single line, which is the usual case, needs no allocation.
pub type Lines = SmallVec<[Line; 1]>;

/// A position in code that stacks contain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Not symbolized. The symbol store names it when a query reads it.
    Address {
        /// ID of the mapping.
        mapping: u32,
        /// Address in the mapping.
        address: Address,
        /// ID of the name of the frame type. The default is `native`.
        frame_type: u32,
    },
    /// Symbolized by the sender: frames of interpreters and the kernel, and symbolized pprof.
    Lines {
        /// ID of the name of the mapping file, or of "".
        mapping_file: u32,
        /// ID of the name of the frame type, or of "".
        frame_type: u32,
        /// Lines, innermost first. Every line but the last is inlined into the next.
        lines: Lines,
    },
}

/// Identity of a stack: the xxh3-128 of the hashes of its locations, or 0 for the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackHash(pub u128);
