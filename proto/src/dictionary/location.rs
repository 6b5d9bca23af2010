//! Where code was: functions, mappings, locations, and their identity.
//!
//! Text and nested things are ids into the tables of the [`Dictionary`](crate::Dictionary) that holds them. A location's identity is, with
//! lines: mapping file, frame type and all lines, no address; without lines: build ID and address, or, where there is no
//! build ID, file and address. So ASLR, pods and hosts share locations.

use smallvec::SmallVec;

use crate::build_id::BuildId;

/// A function as the source or the runtime names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Id of the name people read.
    pub name: u32,
    /// Id of the mangled name, or of "".
    pub system_name: u32,
    /// Id of the source file's name, or of "".
    pub file: u32,
    /// First line of the function; 0 if unknown.
    pub start_line: i64,
}

/// What tells one mapped file from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MappingIdentity {
    /// The file's build ID, wherever it lies.
    BuildId(BuildId),
    /// Id of the file's name: all there is.
    File(u32),
}

/// An address in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// As in the file's ELF headers: what OTLP sends.
    Virtual(u64),
    /// An offset in the file: all that pprof can tell.
    FileOffset(u64),
}

/// One line of a location: a function, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// Id of the function.
    pub function: u32,
    /// 0 if unknown.
    pub line: i64,
    /// 0 if unknown.
    pub column: i64,
}

/// The lines of one location; nearly always one, which takes no memory of its own.
pub type Lines = SmallVec<[Line; 1]>;

/// Where a stack passed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// Not symbolized: named when it is read, by the symbol store.
    Address {
        /// Id of the mapping.
        mapping: u32,
        /// Where in it.
        address: Address,
        /// Id of the frame type's name, `native` where the push says nothing.
        frame_type: u32,
    },
    /// Symbolized by the sender: interpreters, kernel, symbolized pprof.
    Lines {
        /// Id of the mapping file's name, or of "".
        mapping_file: u32,
        /// Id of the frame type's name, or of "".
        frame_type: u32,
        /// Innermost first: every line but the last is inlined into the next.
        lines: Lines,
    },
}

/// xxh3-128 of a stacktrace's canonical encoding; 0 is the empty stacktrace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackHash(pub u128);
