//! Functions, mappings and locations of code.
//!
//! Fields hold IDs of entries of the same [`Dictionary`](crate::Dictionary). The identity of a location with lines is
//! its mapping file, frame type and lines, without an address. The identity of a location without lines is its frame
//! type, its address, and the build ID and file of its mapping. So processes, pods and hosts share locations.

use smallvec::SmallVec;

use crate::build_id::BuildId;

/// A function, with the names from the source code or the language runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// ID of the text of the name that people see.
    pub name: u32,
    /// ID of the text of the mangled name. The text is "" if there is none.
    pub system_name: u32,
    /// ID of the text of the source file's name. The text is "" if there is none.
    pub file: u32,
    /// Line number at which the function begins, or 0 if unknown.
    pub start_line: i64,
}

/// A mapped file.
///
/// A file with one build ID and several names, such as a binary and its stripped copy, is several mappings. So a
/// service's frames never carry a file name of another service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Build ID of the file, if the sender has one.
    pub build_id: Option<BuildId>,
    /// ID of the text of the file's name. The text is "" if there is none.
    pub file: u32,
}

/// An address in a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Virtual address, as in the file's ELF headers. OTLP profiles have such addresses.
    Virtual(u64),
    /// Offset in the file, in bytes. pprof profiles have such addresses.
    FileOffset(u64),
}

/// A line entry of a location: a function, and a position in its source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// ID of the function.
    pub function: u32,
    /// Line number, or 0 if unknown.
    pub line: i64,
    /// Column number, or 0 if unknown.
    pub column: i64,
}

/// Lines of a location. A single line, which is the usual case, needs no allocation.
pub type Lines = SmallVec<[Line; 1]>;

/// A position in code. Stacks are lists of locations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A location that is not symbolized. The symbol store finds its name when a query reads the location.
    Address {
        /// ID of the mapping.
        mapping: u32,
        /// Address in the mapping.
        address: Address,
        /// ID of the text of the frame type. The default is `native`.
        frame_type: u32,
    },
    /// A location that the sender symbolized: frames of interpreters and the kernel, and of symbolized pprof profiles.
    Lines {
        /// ID of the text of the mapping file's name. The text is "" if there is none.
        mapping_file: u32,
        /// ID of the text of the frame type. The text is "" if there is none.
        frame_type: u32,
        /// Lines of the location, innermost first. The function of each line but the last is inlined into the next.
        lines: Lines,
    },
}

/// Identity of a stack: the xxh3-128 of the hashes of its locations, or 0 for the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackHash(pub u128);

impl StackHash {
    /// First half of the hash, big-endian. By it, an entry of a log refers to a stack.
    #[must_use]
    pub fn first_half(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Returns a hash of which only the first half is known.
    #[must_use]
    pub fn of_first_half(half: u64) -> Self {
        Self(u128::from(half) << 64)
    }
}
