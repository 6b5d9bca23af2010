//! Rules from call frame information: the sections `.eh_frame` and `.debug_frame` of an executable file, read by gimli. Of Go code, its own
//! table is better. Where code is left that none of them describes, a `.debug_frame` may be elsewhere; of what is left then, the
//! instructions tell.
//!
//! Invariant: whatever the bytes say, work and memory are bounded, and what is not understood is [`Rule::Invalid`].

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, Encoding, EndianSlice, Expression,
    NativeEndian, Operation, RegisterRule, UnwindContext, UnwindOffset, UnwindSection, UnwindTableRow,
};

use super::go_frames;
#[cfg(target_arch = "x86_64")]
use super::instructions::{self, Stretch};
use super::rule::{Cfa, Register, Rule, Saved};
use super::table::{TableBuilder, TableError};
use crate::go::GoTable;

/// Functions between which no more bytes lie are taken as one behind the other: linkers pad them to 16.
const PADDING_MAX: u64 = 15;
/// More code that nothing describes is a function's. What a C compiler puts around every program, and describes nowhere, is 206 bytes.
const GAP_MAX: u64 = 256;
/// More code that nothing describes is not looked through, all of a file taken together. musl's C library is 0.4 MB; what is larger is
/// generated, as node's own functions are, and keeps frame pointers.
#[cfg(target_arch = "x86_64")]
const INSTRUCTIONS_BYTES_MAX: u64 = 1 << 20;
/// Code at the entry point that nothing describes: as much of it is the outermost function. `_start` of musl and of Go is shorter.
pub(super) const ENTRY_BYTES: u64 = 64;
/// Bytes of instructions that are carried out. Each function carries out those that it shares with others, too; of the largest libraries
/// known here all together are 9 MB.
const WORK_BYTES_MAX: u64 = 128 << 20;
/// Longer expressions are none that is known.
const OPERATIONS_MAX: usize = 9;

/// The registers that are followed, by DWARF's numbers.
#[cfg(target_arch = "x86_64")]
mod registers {
    pub(super) const FP: u16 = 6;
    pub(super) const BX: u16 = 3;
    pub(super) const SP: u16 = 7;
    pub(super) const PC: u16 = 16;
    /// Registers that a CFA may be found by.
    pub(super) const COUNT: u16 = 16;
    /// Every call leaves the return address in memory.
    pub(super) const HAS_LINK: bool = false;
}
#[cfg(target_arch = "aarch64")]
mod registers {
    pub(super) const FP: u16 = 29;
    pub(super) const BX: u16 = 19;
    pub(super) const SP: u16 = 31;
    pub(super) const PC: u16 = 32;
    pub(super) const COUNT: u16 = 32;
    pub(super) const HAS_LINK: bool = true;
}

type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// A section of call frame information.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) bytes: &'a [u8],
    /// Where the file has it loaded.
    pub(crate) address: u64,
}

/// What a file has. Addresses are as the file numbers them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallFrames<'a> {
    pub(crate) eh_frame: Option<Section<'a>>,
    pub(crate) debug_frame: Option<&'a [u8]>,
    /// Where `.text` is loaded; empty if there is none.
    pub(crate) text: Range<u64>,
    /// Where the program begins; 0 of what is none.
    pub(crate) entry: u64,
    pub(crate) go: Option<&'a GoTable>,
}

/// A function's place, and where it is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    start: u64,
    end: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    EhFrame(usize),
    DebugFrame(usize),
    Go,
    /// A stretch of code, whose functions the instructions tell.
    Instructions(usize),
    Entry,
}

impl CallFrames<'_> {
    /// Adds the rules of all code that is described, and of what its instructions tell. Two are asked only if the file leaves code without
    /// a description: `elsewhere` finds a `.debug_frame` that is not in this file, or packed, if it has none, and `code` reads a range.
    ///
    /// # Errors
    /// There are more than a table may have.
    pub(crate) fn add_to(
        &self,
        table: &mut TableBuilder,
        elsewhere: impl FnOnce() -> Option<Vec<u8>>,
        code: impl Fn(Range<u64>) -> Option<Vec<u8>>,
    ) -> Result<(), TableError> {
        let bases = BaseAddresses::default().set_text(self.text.start);
        let eh_frame = self.eh_frame.unwrap_or(Section { bytes: &[], address: 0 });
        let eh_bases = bases.clone().set_eh_frame(eh_frame.address);
        let mut eh_section = EhFrame::new(eh_frame.bytes, NativeEndian);
        eh_section.set_address_size(size_of::<u64>() as u8);
        let mut eh_frame = Descriptions::new(eh_section, eh_bases);
        let go = self.go.map(GoTable::code);
        let go_code = go.iter().map(|code| Function { start: code.start, end: code.end, source: Source::Go });
        let mut functions: Vec<Function> = go_code.collect();
        eh_frame.list(&mut functions, Source::EhFrame);
        let found = match self.debug_frame {
            None if has_functions(&self.gaps(&mut functions)) => elsewhere().unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut debug_section = DebugFrame::new(self.debug_frame.unwrap_or(&found), NativeEndian);
        debug_section.set_address_size(size_of::<u64>() as u8);
        let mut debug_frame = Descriptions::new(debug_section, bases);
        debug_frame.list(&mut functions, Source::DebugFrame);
        if let Some(code) = go {
            let is_gos = |of: &Function| of.start < code.end && code.start < of.end;
            functions.retain(|function| function.source == Source::Go || !is_gos(function));
        }
        let gaps = self.gaps(&mut functions);
        let told = if has_functions(&gaps) { self.told(&gaps, code) } else { Vec::new() };
        let stretches = (0..).zip(&told).filter_map(|(number, rules)| {
            Some(Function { start: rules.first()?.0, end: rules.last()?.0, source: Source::Instructions(number) })
        });
        functions.extend(stretches);
        if self.entry != 0 && !functions.iter().any(|of| of.start <= self.entry && self.entry < of.end) {
            let end = self.entry.saturating_add(ENTRY_BYTES);
            functions.push(Function { start: self.entry, end, source: Source::Entry });
        }
        functions.sort_unstable();
        let (mut end, mut work) = (None::<u64>, 0);
        for function in functions {
            if let Some(end) = end.filter(|end| end.saturating_add(PADDING_MAX) < function.start) {
                table.push(end, Rule::Unknown)?;
            }
            // What two describe is the first one's.
            let start = end.map_or(function.start, |end| function.start.max(end));
            if function.end <= start || WORK_BYTES_MAX < work {
                continue;
            }
            table.push(start, Rule::Invalid)?;
            match function.source {
                Source::EhFrame(offset) => work += eh_frame.add(offset, start, function.end, table)?,
                Source::DebugFrame(offset) => work += debug_frame.add(offset, start, function.end, table)?,
                Source::Go => self.go.map_or(Ok(()), |go| go_frames::add_to(go, table))?,
                Source::Instructions(number) => {
                    told[number].iter().try_for_each(|(address, rule)| table.push((*address).max(start), *rule))?;
                }
                Source::Entry => table.push(start, Rule::Root)?,
            }
            end = Some(function.end);
        }
        end.map_or(Ok(()), |end| table.push(end, Rule::Unknown))
    }

    /// The parts of `.text` that are none of these functions, without paddings. Sorts them.
    fn gaps(&self, functions: &mut [Function]) -> Vec<Range<u64>> {
        functions.sort_unstable();
        let mut described = self.text.start;
        let mut gap = |start: u64, end: u64| {
            let gap = described..start.min(self.text.end);
            described = described.max(end);
            (PADDING_MAX < gap.end.saturating_sub(gap.start)).then_some(gap)
        };
        let mut gaps: Vec<_> = functions.iter().filter_map(|of| gap(of.start, of.end)).collect();
        gaps.extend(gap(self.text.end, self.text.end));
        gaps
    }

    /// What instructions tell of these parts: the rules of each, the last one behind its end.
    #[cfg(target_arch = "x86_64")]
    fn told(&self, gaps: &[Range<u64>], code: impl Fn(Range<u64>) -> Option<Vec<u8>>) -> Vec<Vec<(u64, Rule)>> {
        let bytes = gaps.iter().fold(0_u64, |bytes, gap| bytes.saturating_add(gap.end - gap.start));
        if INSTRUCTIONS_BYTES_MAX < bytes {
            return Vec::new();
        }
        let stretches = gaps.iter().filter_map(|gap| Some(Stretch { address: gap.start, code: code(gap.clone())? }));
        instructions::rules(&stretches.collect::<Vec<_>>(), self.entry)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn told(&self, _: &[Range<u64>], _: impl Fn(Range<u64>) -> Option<Vec<u8>>) -> Vec<Vec<(u64, Rule)>> {
        Vec::new()
    }
}

/// Whether there are functions in these parts, and not only what a compiler puts around a program.
fn has_functions(gaps: &[Range<u64>]) -> bool {
    gaps.iter().any(|gap| GAP_MAX < gap.end - gap.start)
}

/// The descriptions of functions (FDE) of one section, and what they share (CIE).
struct Descriptions<'a, S: UnwindSection<Bytes<'a>>> {
    section: S,
    bases: BaseAddresses,
    shared: HashMap<usize, CommonInformationEntry<Bytes<'a>>>,
    context: UnwindContext<usize>,
}

impl<'a, S: UnwindSection<Bytes<'a>>> Descriptions<'a, S>
where
    S::Offset: UnwindOffset<usize>,
{
    fn new(section: S, bases: BaseAddresses) -> Self {
        Self { section, bases, shared: HashMap::new(), context: UnwindContext::new() }
    }

    /// Lists all functions; behind what cannot be read, none.
    fn list(&mut self, functions: &mut Vec<Function>, source: fn(usize) -> Source) {
        let Self { section, bases, shared, .. } = self;
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(partial) = entry else { continue };
            let Ok(fde) = partial.parse(|section, bases, offset| {
                if let Some(known) = shared.get(&UnwindOffset::into(offset)) {
                    return Ok(known.clone());
                }
                let read = section.cie_from_offset(bases, offset)?;
                shared.insert(UnwindOffset::into(offset), read.clone());
                Ok(read)
            }) else {
                continue;
            };
            let (start, end) = (fde.initial_address(), fde.end_address());
            // Address 0 is what linkers leave of functions that they dropped.
            if 0 < start && start < end {
                functions.push(Function { start, end, source: source(fde.offset()) });
            }
        }
    }

    /// Adds the rows of one function from `start` on; returns how many bytes it carried out.
    fn add(&mut self, offset: usize, start: u64, end: u64, table: &mut TableBuilder) -> Result<u64, TableError> {
        let Self { section, bases, shared, context } = self;
        let known =
            |offset: S::Offset| shared.get(&UnwindOffset::into(offset)).cloned().ok_or(gimli::Error::NotCieId(0));
        let fde = section.fde_from_offset(bases, offset.into(), |_, _, offset| known(offset));
        let Ok(fde) = fde else { return Ok(0) };
        let work = (fde.entry_len() + fde.cie().entry_len()) as u64;
        if fde.is_signal_trampoline() {
            table.push(start, Rule::Signal)?;
            return Ok(work);
        }
        let encoding = fde.cie().encoding();
        let Ok(mut rows) = fde.rows(section, bases, context) else { return Ok(work) };
        let mut behind = start;
        loop {
            match rows.next_row() {
                Ok(Some(row)) if row.start_address() < end => {
                    behind = row.end_address().clamp(start, end);
                    table.push(row.start_address().max(start), rule(row, section, encoding))?;
                }
                Ok(_) => return Ok(work),
                // The rows before stand.
                Err(_) => {
                    table.push(behind, Rule::Invalid)?;
                    return Ok(work);
                }
            }
        }
    }
}

/// What a row says.
fn rule<'a, S: UnwindSection<Bytes<'a>>>(row: &UnwindTableRow<usize>, section: &S, encoding: Encoding) -> Rule {
    let read = |expression: gimli::UnwindExpression<usize>| {
        expression.get(section).ok().and_then(|expression| operations(expression, encoding))
    };
    let return_address = match row.register(gimli::Register(registers::PC)) {
        Some(RegisterRule::Undefined) => return Rule::Root,
        Some(RegisterRule::Offset(offset)) => words(offset),
        None | Some(RegisterRule::SameValue) if registers::HAS_LINK => Some(0),
        _ => None,
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            base(*register).and_then(|base| Some(Cfa::Register { base, offset: i32::try_from(*offset).ok()? }))
        }
        CfaRule::Expression(expression) => read(*expression).and_then(|operations| cfa_of(&operations)),
    };
    let (Some(cfa), Some(return_address)) = (cfa, return_address) else { return Rule::Invalid };
    let saved = |register| match row.register(gimli::Register(register)) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Saved::InPlace,
        Some(RegisterRule::Offset(offset)) => words(offset).map_or(Saved::Lost, Saved::AtCfa),
        Some(RegisterRule::Expression(expression)) => match read(expression).as_deref() {
            Some(&[Operation::RegisterOffset { register: gimli::Register(registers::FP), offset, .. }]) => {
                words(offset).map_or(Saved::Lost, Saved::AtFp)
            }
            _ => Saved::Lost,
        },
        Some(_) => Saved::Lost,
    };
    Rule::Frame { cfa, fp: saved(registers::FP), bx: saved(registers::BX), return_address }
}

/// The shapes of expressions that compilers and hand-written assembly use.
fn cfa_of(operations: &[Operation<Bytes<'_>>]) -> Option<Cfa> {
    let constant = |operation: &Operation<Bytes<'_>>| match operation {
        Operation::UnsignedConstant { value } | Operation::PlusConstant { value } => Some(*value),
        _ => None,
    };
    let memory = |register: gimli::Register, offset: i64, after: u64| {
        let (offset, after) = (i32::try_from(offset).ok()?, i16::try_from(after).ok()?);
        Some(Cfa::Memory { base: base(register)?, offset, after })
    };
    match operations {
        // Stack that a function has aligned: GCC keeps the way back in it.
        [Operation::RegisterOffset { register, offset, .. }, Operation::Deref { space: false, .. }] => {
            memory(*register, *offset, 0)
        }
        // Assembly of OpenSSL.
        [
            Operation::RegisterOffset { register, offset, .. },
            Operation::Deref { space: false, .. },
            plus @ Operation::PlusConstant { .. },
        ] => memory(*register, *offset, constant(plus)?),
        // Procedure linkage tables.
        [
            Operation::RegisterOffset { register: gimli::Register(registers::SP), offset: 8, .. },
            Operation::RegisterOffset { register: gimli::Register(registers::PC), offset: 0, .. },
            mask,
            Operation::And,
            from,
            Operation::Ge,
            shift,
            Operation::Shl,
            Operation::Plus,
        ] if constant(mask) == Some(15) && constant(shift) == Some(3) => {
            Some(Cfa::LinkageTable { from: u8::try_from(constant(from)?).ok()? })
        }
        _ => None,
    }
}

fn operations<'a>(expression: Expression<Bytes<'a>>, encoding: Encoding) -> Option<Vec<Operation<Bytes<'a>>>> {
    let mut read = expression.operations(encoding);
    let mut operations = Vec::new();
    while let Some(operation) = read.next().ok()? {
        if operations.len() == OPERATIONS_MAX {
            return None;
        }
        operations.push(operation);
    }
    Some(operations)
}

fn base(register: gimli::Register) -> Option<Register> {
    (register.0 < registers::COUNT).then_some(Register(register.0 as u8))
}

fn words(offset: i64) -> Option<i16> {
    if offset % 8 == 0 { i16::try_from(offset / 8).ok() } else { None }
}

#[cfg(test)]
pub(super) mod tests;
