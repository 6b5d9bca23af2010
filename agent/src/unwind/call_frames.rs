//! Rules from call frame information: the sections `.eh_frame` and `.debug_frame` of an executable file, read by gimli.
//!
//! For Go code, Go's own table is used. If these sources do not describe all code, a compressed or separate
//! `.debug_frame` is read. For code that is still not described, rules are derived from its instructions.
//!
//! Invariant: for any bytes, work and memory are bounded, and malformed descriptions become [`Rule::Invalid`].

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DebugFrame, EhFrame, Encoding, EndianSlice, Expression,
    NativeEndian, Operation, RegisterRule, UnwindContext, UnwindOffset, UnwindSection, UnwindTableRow,
};

use super::go_frames;
#[cfg(target_arch = "x86_64")]
use super::instructions::{self, Stretch};
use super::rule::{Cfa, ENTRY_BYTES, Register, Rule, Saved};
use super::table::{TableBuilder, TableError};
#[cfg(target_arch = "x86_64")]
use super::v8_builtins;
use crate::names::go::GoTable;

/// Largest number of bytes between two functions that count as padding. Linkers align functions to 16 bytes.
const PADDING_MAX: u64 = 15;
/// Largest length, in bytes, of a stretch of undescribed code that is ignored. A C compiler adds 206 bytes of such code
/// to every program.
const GAP_MAX: u64 = 256;
/// Largest size, in bytes, of all undescribed code of a file for which rules are derived. musl's C library has 0.4 MB.
/// Files with more undescribed code have generated code, which often keeps frame pointers.
#[cfg(target_arch = "x86_64")]
const INSTRUCTIONS_BYTES_MAX: u64 = 1 << 20;
/// Smallest and largest size of V8's builtin functions, in bytes. Known versions have 1.1 to 2.2 MB.
#[cfg(target_arch = "x86_64")]
pub(crate) const V8_BUILTINS_BYTES: Range<u64> = 512 << 10..16 << 20;
/// Largest number of bytes of call frame instructions that are executed for a file. Instructions that several functions
/// share are executed, and counted, for each function. The largest known libraries need 9 MB.
const WORK_BYTES_MAX: u64 = 128 << 20;
/// Number of operations of the longest known expression.
const OPERATIONS_MAX: usize = 9;

/// The registers that are tracked, by DWARF number.
#[cfg(target_arch = "x86_64")]
mod registers {
    pub(super) const FP: u16 = 6;
    pub(super) const BX: u16 = 3;
    pub(super) const SP: u16 = 7;
    pub(super) const PC: u16 = 16;
    /// Number of registers that a CFA may be computed from.
    pub(super) const COUNT: u16 = 16;
    /// True if a call leaves the return address in a register. It is false here, because every call stores the address
    /// in memory.
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
    /// ELF virtual address of the section.
    pub(crate) address: u64,
}

/// The call frame information of a file. Addresses are ELF virtual addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallFrames<'a> {
    pub(crate) eh_frame: Option<Section<'a>>,
    pub(crate) debug_frame: Option<&'a [u8]>,
    /// Addresses of `.text`; empty if there is none.
    pub(crate) text: Range<u64>,
    /// Entry point; 0 if the file is not a program.
    pub(crate) entry: u64,
    pub(crate) go: Option<&'a GoTable>,
    /// True if the largest part of `.text` that nothing describes has V8's builtin functions.
    pub(crate) has_v8: bool,
}

/// A function, and the source of its rules.
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
    /// A stretch of code whose rules are derived from its instructions.
    Instructions(usize),
    Entry,
}

impl CallFrames<'_> {
    /// Adds the rules of all code.
    ///
    /// `separate` and `code` are called only if the file has code without a description. `separate` returns a
    /// compressed or separate `.debug_frame`, and is called only if the file has no plain `.debug_frame`. `code` reads
    /// a range of code.
    ///
    /// # Errors
    /// The table would be too large.
    pub(crate) fn add_to(
        &self,
        table: &mut TableBuilder,
        separate: impl FnOnce() -> Option<Vec<u8>>,
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
            None if has_functions(&self.gaps(&mut functions)) => separate().unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut debug_section = DebugFrame::new(self.debug_frame.unwrap_or(&found), NativeEndian);
        debug_section.set_address_size(size_of::<u64>() as u8);
        let mut debug_frame = Descriptions::new(debug_section, bases);
        debug_frame.list(&mut functions, Source::DebugFrame);
        if let Some(code) = go {
            let is_go = |of: &Function| of.start < code.end && code.start < of.end;
            functions.retain(|function| function.source == Source::Go || !is_go(function));
        }
        let gaps = self.gaps(&mut functions);
        let derived = if has_functions(&gaps) { self.derived(&gaps, code) } else { Vec::new() };
        let stretches = (0..).zip(&derived).filter_map(|(number, rules)| {
            Some(Function { start: rules.first()?.0, end: rules.last()?.0, source: Source::Instructions(number) })
        });
        functions.extend(stretches);
        if self.entry != 0 && !functions.iter().any(|of| of.start <= self.entry && self.entry < of.end) {
            let end = self.entry.saturating_add(ENTRY_BYTES);
            functions.push(Function { start: self.entry, end, source: Source::Entry });
        }
        functions.sort_unstable();
        let mut end = None::<u64>;
        let mut work = 0;
        for function in functions {
            if let Some(end) = end.filter(|end| end.saturating_add(PADDING_MAX) < function.start) {
                table.push(end, Rule::Unknown)?;
            }
            // If two functions overlap, the first one counts.
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
                    derived[number].iter().try_for_each(|(address, rule)| table.push((*address).max(start), *rule))?;
                }
                Source::Entry => table.push(start, Rule::Root)?,
            }
            end = Some(function.end);
        }
        end.map_or(Ok(()), |end| table.push(end, Rule::Unknown))
    }

    /// Returns the parts of `.text` outside of `functions`, without padding. Sorts `functions`.
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

    /// Derives the rules of `gaps` from their instructions. The last rule of each gap begins at the end of the gap.
    #[cfg(target_arch = "x86_64")]
    fn derived(&self, gaps: &[Range<u64>], code: impl Fn(Range<u64>) -> Option<Vec<u8>>) -> Vec<Vec<(u64, Rule)>> {
        let size = |gap: &Range<u64>| gap.end - gap.start;
        let stretch = |gap: &Range<u64>| Some(Stretch { address: gap.start, code: code(gap.clone())? });
        let largest = gaps.iter().max_by_key(|gap| size(gap));
        let v8 = largest.filter(|gap| self.has_v8 && V8_BUILTINS_BYTES.contains(&size(gap)));
        let others = || gaps.iter().filter(|gap| Some(*gap) != v8);
        let mut rules: Vec<_> = v8.and_then(stretch).iter().map(v8_builtins::rules).collect();
        let bytes = others().fold(0_u64, |bytes, gap| bytes.saturating_add(size(gap)));
        if bytes <= INSTRUCTIONS_BYTES_MAX {
            let stretches: Vec<_> = others().filter_map(stretch).collect();
            rules.extend(instructions::rules(&stretches, self.entry));
        }
        rules
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn derived(&self, _: &[Range<u64>], _: impl Fn(Range<u64>) -> Option<Vec<u8>>) -> Vec<Vec<(u64, Rule)>> {
        Vec::new()
    }
}

/// Returns the address ranges of the functions that an `.eh_frame` describes. A function whose parts a compiler placed
/// apart has a range for each part. `text` is the address of `.text`.
pub(crate) fn described_functions(eh_frame: Section<'_>, text: u64) -> Vec<Range<u64>> {
    let bases = BaseAddresses::default().set_text(text).set_eh_frame(eh_frame.address);
    let mut section = EhFrame::new(eh_frame.bytes, NativeEndian);
    section.set_address_size(size_of::<u64>() as u8);
    let mut functions = Vec::new();
    Descriptions::new(section, bases).list(&mut functions, Source::EhFrame);
    functions.into_iter().map(|function| function.start..function.end).collect()
}

/// True if `gaps` have more code than a compiler adds to every program.
fn has_functions(gaps: &[Range<u64>]) -> bool {
    gaps.iter().any(|gap| GAP_MAX < gap.end - gap.start)
}

/// The function descriptions (FDE) of one section, and the common information that they share (CIE).
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

    /// Adds all functions of the section. Skips malformed descriptions, and stops at an entry whose end cannot be
    /// found.
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
            let start = fde.initial_address();
            let end = fde.end_address();
            // Linkers leave entries with address 0 for functions that they removed.
            if 0 < start && start < end {
                functions.push(Function { start, end, source: source(fde.offset()) });
            }
        }
    }

    /// Adds the rules of one function for the addresses from `start` to `end`. Returns the number of bytes of
    /// instructions that were executed.
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
        let mut row_end = start;
        loop {
            match rows.next_row() {
                Ok(Some(row)) if row.start_address() < end => {
                    row_end = row.end_address().clamp(start, end);
                    table.push(row.start_address().max(start), rule(row, section, encoding))?;
                }
                Ok(_) => return Ok(work),
                // The rows before the error are valid.
                Err(_) => {
                    table.push(row_end, Rule::Invalid)?;
                    return Ok(work);
                }
            }
        }
    }
}

/// Returns the rule of a row of call frame information.
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

/// Returns the CFA of an expression, if it has one of the forms that compilers and assembly code use.
fn cfa_of(operations: &[Operation<Bytes<'_>>]) -> Option<Cfa> {
    let constant = |operation: &Operation<Bytes<'_>>| match operation {
        Operation::UnsignedConstant { value } | Operation::PlusConstant { value } => Some(*value),
        _ => None,
    };
    let memory = |register: gimli::Register, offset: i64, after: u64| {
        let offset = i32::try_from(offset).ok()?;
        let after = i16::try_from(after).ok()?;
        Some(Cfa::Memory { base: base(register)?, offset, after })
    };
    match operations {
        // A function that aligns its stack: GCC saves the old stack pointer in the frame.
        [Operation::RegisterOffset { register, offset, .. }, Operation::Deref { space: false, .. }] => {
            memory(*register, *offset, 0)
        }
        // Assembly code of OpenSSL.
        [
            Operation::RegisterOffset { register, offset, .. },
            Operation::Deref { space: false, .. },
            plus @ Operation::PlusConstant { .. },
        ] => memory(*register, *offset, constant(plus)?),
        // A PLT.
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
            Some(Cfa::Plt { from: u8::try_from(constant(from)?).ok()? })
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
