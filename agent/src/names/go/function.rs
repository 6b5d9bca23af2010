//! The record of one function.

use super::version::Version;

/// Number of bytes at the start of a record that have the same layout in all versions.
const COMMON_BYTES: usize = 36;
/// Largest number of tables of values that a function may have. A record is read as if its data had the same limit.
const TABLES_MAX: usize = 64;
/// Length of the longest record, in bytes.
pub(super) const RECORD_BYTES_MAX: usize = 44 + 2 * 4 * TABLES_MAX;

/// Number of the table of values that gives, for each address, an index in the inline tree.
const INLINE_INDEX: usize = 2;
/// Number of the inline tree among the data of a function.
const INLINE_TREE: usize = 3;
const NO_DATA: u32 = u32::MAX;

/// Properties of a function that matter to unwinding, as the compiler encodes them for Go's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// True for an outermost function, at which stacks end.
    pub(crate) fn is_outermost(self) -> bool {
        self.0 & 1 != 0
    }

    /// True for a function that sets the stack pointer to values that its table does not have.
    pub(crate) fn sets_stack_pointer(self) -> bool {
        self.0 & 2 != 0
    }

    pub(crate) fn is_assembly(self) -> bool {
        self.0 & 4 != 0
    }
}

/// A function. Tables and names are offsets within their parts of the Go table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    /// Address of the first instruction.
    pub(crate) start: u64,
    /// Address after the last instruction.
    pub(crate) end: u64,
    pub(crate) flags: Flags,
    pub(super) name: u32,
    pub(super) stack: u32,
    pub(super) files: u32,
    pub(super) lines: u32,
    pub(super) unit: u32,
    pub(super) start_line: u32,
    /// Two offsets: of the table that maps an address to an index in the inline tree, and of the inline tree. `None` if
    /// no call is inlined into the function.
    pub(super) inlined: Option<(u32, u32)>,
}

impl Function {
    /// Decodes a record. Returns `None` if `bytes` are too short, or if the record has too many tables.
    pub(super) fn parse(bytes: &[u8], version: Version, start: u64, end: u64) -> Option<Self> {
        let u32_at = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let tail = version.function.tail;
        let common = bytes.get(..COMMON_BYTES)?.as_chunks::<4>().0.first_chunk::<9>()?;
        let [_, name, _, _, stack, files, lines, tables, unit] = common.map(u32::from_ne_bytes);
        let [_, flags, _, data] = *bytes.get(tail..)?.first_chunk::<4>()?;
        let tables = usize::try_from(tables).ok().filter(|tables| *tables <= TABLES_MAX)?;
        let data = usize::from(data);
        let first_table = tail + 4;
        let first_data = first_table + tables * 4;
        let index = (INLINE_INDEX < tables).then(|| u32_at(first_table + INLINE_INDEX * 4)).flatten();
        let tree = (INLINE_TREE < data).then(|| u32_at(first_data + INLINE_TREE * 4)).flatten();
        let inlined = index.filter(|index| *index != 0).zip(tree.filter(|tree| *tree != NO_DATA));
        let start_line = version.function.start_line.and_then(u32_at).unwrap_or_default();
        Some(Self { start, end, flags: Flags(flags), name, stack, files, lines, unit, start_line, inlined })
    }
}
