//! What differs between the versions of Go whose tables are read.

/// How the records of a version are laid out. Numbers are in bytes from the start of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(super) function: FunctionLayout,
    pub(super) inlined: InlinedLayout,
}

/// Of a function's record. Before `tail`, all versions are the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionLayout {
    /// The line that the function begins in, if a record has it.
    pub(super) start_line: Option<usize>,
    /// The id of the function for the runtime, flags, a byte of padding, and how many data there are: a byte each.
    pub(super) tail: usize,
}

/// Of one call in an inline tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlinedLayout {
    pub(super) bytes: usize,
    pub(super) name: usize,
    /// An instruction of the caller that has the call's line, from the start of the function's code.
    pub(super) parent: usize,
    pub(super) start_line: Option<usize>,
}

impl Version {
    /// The version of a table by its first four bytes.
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

/// Go 1.20 and later.
pub(super) const GO_1_20: u32 = 0xffff_fff1;
/// Go 1.18 and 1.19.
pub(super) const GO_1_18: u32 = 0xffff_fff0;
