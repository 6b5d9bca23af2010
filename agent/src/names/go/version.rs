//! Differences between the versions of Go whose tables are read.

/// Layout of the records of a version. Numbers are offsets from the start of a record, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(super) function: FunctionLayout,
    pub(super) inlined: InlinedLayout,
}

/// Layout of a function's record. Its first 36 bytes are the same in all versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionLayout {
    /// Offset of the first line of the function; `None` if records do not have it.
    pub(super) start_line: Option<usize>,
    /// Offset of the last four bytes before the offsets of tables and data. They are the runtime's id of the function,
    /// flags, padding, and the number of data.
    pub(super) tail: usize,
}

/// Layout of one call in an inline tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedLayout {
    pub(super) bytes: usize,
    pub(super) name: usize,
    /// Offset of the field with the position of the call. That position is the offset, from the start of the function's
    /// code, of an instruction of the caller that belongs to the line of the call.
    pub(super) parent: usize,
    pub(super) start_line: Option<usize>,
}

impl Version {
    /// Returns the version of a table by its first four bytes.
    pub(super) fn of_magic(magic: u32) -> Option<Self> {
        match magic {
            GO_1_20 => Some(Self {
                function: FunctionLayout { start_line: Some(36), tail: 40 },
                inlined: InlinedLayout { bytes: 16, name: 4, parent: 8, start_line: Some(12) },
            }),
            GO_1_18 => Some(Self {
                function: FunctionLayout { start_line: None, tail: 36 },
                inlined: InlinedLayout { bytes: 20, name: 12, parent: 16, start_line: None },
            }),
            _ => None,
        }
    }
}

/// First four bytes of the tables of Go 1.20 and later.
pub(super) const GO_1_20: u32 = 0xffff_fff1;
/// First four bytes of the tables of Go 1.18 and 1.19.
pub(super) const GO_1_18: u32 = 0xffff_fff0;
