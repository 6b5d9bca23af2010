//! Reads functions: names, file, and the lines of all code of a function that BPF has seen.
//!
//! The program may move, change or free a function at any moment. Invariant: a function is returned only if it had the
//! wanted identity before and after all other reads, and lines of machine code are those of code of this function.

use std::sync::{Arc, Weak};

use super::code::{Inlining, MachineCode};
use super::heap::{Heap, Object, Part, TABLE_BYTES_MAX, small};
use super::layout::{LENGTH, Layout};
use super::positions::{SourcePosition, baseline_starts, position_at};
use super::scope::Scope;
use super::source::{Lines, Sources};
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::ProcessMemory;

// The lower bits of an address, as in `ebpf/bpf/runtimes/v8.h`.
const INTERPRETED: u64 = 1;
const COMPILED: u64 = 2;
/// Bit of an address that is not a function but a program counter.
const PC: u64 = 1 << 47;

/// Factor of BPF's hash.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Largest depth of inlined calls.
const DEPTH_MAX: usize = 64;
/// Largest number of functions that are named for one code object.
const NAMES_MAX: usize = 1024;

// In a script.
const SCRIPT_NAME: u16 = 16;
const SCRIPT_ID: u16 = 64;
/// In the debugger's information about a function: the script.
const DEBUG_SCRIPT: u16 = 24;
/// In a function that is not compiled: the inferred name.
const UNCOMPILED_NAME: u16 = 8;

/// A function, or code that belongs to none.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    own: Named,
    /// Lower half of the program counter whose code was searched.
    pc: Option<u32>,
    code: Code,
}

/// Name and source of a function.
#[derive(Clone, Debug, Default)]
struct Named {
    name: String,
    file: String,
    /// Position of the function in its script.
    start: Option<u32>,
    lines: Weak<Lines>,
}

/// Tables of the code of a function.
#[derive(Clone, Debug)]
enum Code {
    Unknown,
    Bytecodes {
        positions: Box<[u8]>,
    },
    Baseline {
        start: u64,
        bytes: u32,
        /// Offset in the code at which the code of each bytecode begins, and the offset of the bytecode.
        starts: Box<[(u32, u32)]>,
        positions: Box<[u8]>,
    },
    Optimized {
        start: u64,
        bytes: u32,
        positions: Box<[u8]>,
        /// Offsets of deoptimization exits, and the offsets that they stand for.
        exits: Box<[(u32, u32)]>,
        /// The position of the call of each inlined function, and the function if it could be read.
        inlined: Box<[(u64, Option<Arc<Named>>)]>,
    },
}

impl Function {
    /// Reads the function at an address that BPF reported. `None` if it is gone, or if it cannot be read.
    pub(crate) fn read(
        memory: &ProcessMemory,
        layout: &Layout,
        sources: &Sources,
        (address, position, identity): (u64, u32, u32),
    ) -> Option<Self> {
        let heap = Heap { memory, layout };
        if address & PC != 0 {
            return Self::of_pc(&heap, sources, address & !PC, identity);
        }
        let (function, kind) = (Object(address & !7), address & 7);
        let has_identity = || {
            let found = identity_of(&heap, function);
            found.is_some_and(|found| match kind {
                COMPILED => found >> 16 == identity >> 1 & 0xffff,
                _ => found | 1 == identity,
            })
        };
        memory.read_same(has_identity, || {
            let own = Named::read(&heap, sources, function)?;
            let code = match kind {
                INTERPRETED => bytecode_positions(&heap, function).map(|positions| Code::Bytecodes { positions }),
                COMPILED => {
                    let pc = u64::from(identity >> 17) << 32 | u64::from(position);
                    let found = MachineCode::find(&heap, pc);
                    found.and_then(|found| Code::read(&heap, sources, &found, function))
                }
                _ => None,
            };
            let pc = (kind == COMPILED).then_some(position);
            Some(Self { own, pc, code: code.unwrap_or(Code::Unknown) })
        })
    }

    /// Reads the function whose code is at an address.
    fn of_pc(heap: &Heap<'_>, sources: &Sources, pc: u64, identity: u32) -> Option<Self> {
        let has_identity = || heap.word(pc).map(|code| mix(&[code]) | 1) == Some(identity);
        heap.memory.read_same(has_identity, || {
            let found = MachineCode::find(heap, pc);
            let form = &heap.layout.form.code;
            Some(match found {
                Some(code) if code.is_optimized(form) => {
                    let function = Inlining::read(heap, &code)?.function;
                    let tables = Code::read(heap, sources, &code, function)?;
                    Self { own: Named::read(heap, sources, function)?, pc: None, code: tables }
                }
                Some(code) if code.kind == form.regexp => Self::nameless("(regexp)"),
                Some(code) if Some(code.kind) == form.baseline => Self::nameless("(baseline)"),
                Some(_) => Self::nameless("(stub)"),
                None => Self::nameless("(wasm)"),
            })
        })
    }

    fn nameless(name: &str) -> Self {
        Self { own: Named { name: name.to_owned(), ..Named::default() }, pc: None, code: Code::Unknown }
    }

    /// Returns the function, and before it those that are inlined at the position, innermost first. `position` is as
    /// BPF reports it: an offset in the bytecodes, or the lower half of the program counter.
    pub(crate) fn calls(&self, layout: &Layout, position: u32) -> Vec<Call> {
        match &self.code {
            Code::Unknown => vec![self.own.call(None)],
            Code::Bytecodes { positions } => {
                let at = position_at(positions, layout.form.positions, position).map(|at| at.offset);
                vec![self.own.call(at.or(self.own.start))]
            }
            Code::Baseline { start, bytes, starts, positions } => {
                let offset = offset_in(*start, *bytes, position);
                let bytecode = offset.and_then(|offset| {
                    let at = starts.partition_point(|(start, _)| *start <= offset);
                    // Code before that of the first bytecode enters the function.
                    Some(starts.get(at.saturating_sub(1))?.1)
                });
                let at = bytecode.map(|bytecode| position_at(positions, layout.form.positions, bytecode));
                vec![self.own.call(at.map(|at| at.map(|at| at.offset).or(self.own.start)).unwrap_or_default())]
            }
            Code::Optimized { start, bytes, positions, exits, inlined } => {
                let offset = offset_in(*start, *bytes, position).map(|offset| {
                    let exit = exits.iter().find(|(exit, _)| *exit == offset + 1);
                    exit.map_or(offset, |(_, real)| real.saturating_sub(1))
                });
                let at = offset.and_then(|offset| position_at(positions, layout.form.positions, offset));
                at.and_then(|at| self.inlined_calls(inlined, at)).unwrap_or_else(|| vec![self.own.call(None)])
            }
        }
    }

    /// Returns the calls at a position of optimized code; `None` if one of the functions is unknown.
    fn inlined_calls(&self, inlined: &[(u64, Option<Arc<Named>>)], mut at: SourcePosition) -> Option<Vec<Call>> {
        let mut calls = Vec::new();
        while calls.len() < DEPTH_MAX {
            let Some(index) = at.inlined else {
                calls.push(self.own.call(Some(at.offset)));
                return Some(calls);
            };
            let (position, function) = inlined.get(usize::from(index))?;
            calls.push(function.as_ref()?.call(Some(at.offset)));
            at = SourcePosition::decode(*position)?;
        }
        None
    }

    /// True if the tables are those of the code at a position. A function has several code objects in its life.
    pub(crate) fn covers(&self, position: u32) -> bool {
        match &self.code {
            Code::Baseline { start, bytes, .. } | Code::Optimized { start, bytes, .. } => {
                offset_in(*start, *bytes, position).is_some()
            }
            Code::Unknown => self.pc.is_none_or(|pc| pc == position),
            Code::Bytecodes { .. } => true,
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let tables = match &self.code {
            Code::Unknown => 0,
            Code::Bytecodes { positions } => positions.len(),
            Code::Baseline { starts, positions, .. } => size_of_val(&**starts) + positions.len(),
            Code::Optimized { positions, exits, inlined, .. } => {
                let names = inlined.iter().filter_map(|(_, named)| named.as_ref()).map(|named| named.bytes());
                positions.len() + size_of_val(&**exits) + size_of_val(&**inlined) + names.sum::<usize>()
            }
        };
        size_of::<Self>() + self.own.bytes() + tables
    }
}

/// Returns the offset of a program counter in code; `None` if it is not in the code. `pc` is its lower half.
fn offset_in(start: u64, bytes: u32, pc: u32) -> Option<u32> {
    Some(pc.wrapping_sub(start as u32)).filter(|offset| *offset < bytes)
}

impl Code {
    /// Reads the tables of machine code. `None` if it is not code of `function`.
    fn read(heap: &Heap<'_>, sources: &Sources, code: &MachineCode, function: Object) -> Option<Self> {
        let form = heap.layout.form;
        let table = || heap.bytes(heap.pointer(code.object, form.code.positions)?);
        let MachineCode { start, bytes, .. } = *code;
        if Some(code.kind) == form.code.baseline {
            let bytecodes = bytecodes_of(heap, function)?;
            let holder = heap.pointer(function, form.function.data)?;
            let of_code = heap.pointer(code.object, form.code.inlining);
            // Until V8 9, code has no pointer to its bytecode, but the function points to both.
            let is_of_function = match heap.layout.types.baseline_data {
                Some(_) => heap.pointer(holder, 8) == Some(code.object),
                None => of_code.and_then(|of_code| follow(heap, of_code)) == Some(bytecodes),
            };
            if !is_of_function {
                return None;
            }
            let length = usize::try_from(small(heap.field(bytecodes, LENGTH)?)?).ok()?;
            let mut read = vec![0; Some(length).filter(|length| *length <= TABLE_BYTES_MAX)?];
            if !heap.memory.read(bytecodes.0 + u64::from(form.first_bytecode), &mut read) {
                return None;
            }
            let starts = baseline_starts(&table()?, &read, form.sizes?);
            let positions = heap.bytes(heap.pointer(bytecodes, form.bytecode_positions)?)?;
            return Some(Self::Baseline { start, bytes, starts, positions });
        }
        if !code.is_optimized(&form.code) {
            return None;
        }
        let inlining = Inlining::read(heap, code)?;
        if inlining.function != function {
            return None;
        }
        let mut named: Vec<(i32, Option<Arc<Named>>)> = Vec::new();
        let mut name = |index: i32| {
            if let Some((_, known)) = named.iter().find(|(known, _)| *known == index) {
                return known.clone();
            }
            let function = inlining.literal(heap, index).filter(|_| named.len() < NAMES_MAX);
            let read = function.and_then(|function| Named::read(heap, sources, function)).map(Arc::new);
            named.push((index, read.clone()));
            read
        };
        let inlined = inlining.calls.iter().map(|(position, index)| (*position, name(*index))).collect();
        let exits = code.exits(heap).unwrap_or_default();
        Some(Self::Optimized { start, bytes, positions: table()?, exits, inlined })
    }
}

impl Named {
    /// Reads the names of a function, and the lines of its script.
    fn read(heap: &Heap<'_>, sources: &Sources, function: Object) -> Option<Self> {
        let form = heap.layout.form;
        let types = &heap.layout.types;
        heap.typed(function, types.shared_function)?;
        let text = |string: Object| heap.text(string, NAME_BYTES_MAX as u32, Part::Start);
        let scope = heap.pointer(function, form.function.name);
        let scope = match scope {
            Some(name) if heap.type_of(name)? < types.no_string => Scope { name: Some(name), ..Scope::default() },
            Some(scope) => {
                heap.typed(scope, types.scope).and_then(|scope| Scope::read(heap, scope)).unwrap_or_default()
            }
            None => Scope::default(),
        };
        let uncompiled = || text(heap.pointer(heap.pointer(function, form.function.data)?, UNCOMPILED_NAME)?);
        let full = |name: String| Some(name).filter(|name| !name.is_empty());
        let name = scope.name.and_then(text).and_then(full).or_else(|| scope.inferred.and_then(text).and_then(full));
        let mut name = name.or_else(uncompiled).and_then(full).unwrap_or_else(|| "(anonymous)".to_owned());
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        let script = heap.pointer(function, form.function.script).and_then(|script| script_of(heap, script));
        let file = script.map(|script| file_of(heap, script)).unwrap_or_default();
        let lines = script.map(|script| sources.lines(heap, script)).unwrap_or_default();
        Some(Self { name, file, start: scope.start, lines })
    }

    /// Returns a call of the function, at a position of its script.
    fn call(&self, at: Option<u32>) -> Call {
        let lines = self.lines.upgrade();
        let line = |at: u32| lines.as_ref().map(|lines| lines.line(at));
        Call {
            function: self.name.clone(),
            file: self.file.clone(),
            line: at.and_then(line).unwrap_or_default(),
            start_line: self.start.and_then(line).unwrap_or_default(),
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }
}

/// Returns the script in a function's slot for it. While a debugger is attached, the slot has its information.
fn script_of(heap: &Heap<'_>, slot: Object) -> Option<Object> {
    let found = heap.type_of(slot)?;
    let script = if Some(found) == heap.layout.types.debug_info { heap.pointer(slot, DEBUG_SCRIPT)? } else { slot };
    heap.typed(script, heap.layout.types.script)
}

/// Returns the path or URL of a script. Most scripts without one are arguments of `eval`.
fn file_of(heap: &Heap<'_>, script: Object) -> String {
    let text = |offset: u16| heap.text(heap.pointer(script, offset)?, NAME_BYTES_MAX as u32, Part::End);
    let full = |name: &String| !name.is_empty();
    let name = text(SCRIPT_NAME).filter(full).or_else(|| text(heap.layout.form.source_url));
    let name = name.filter(full).unwrap_or_else(|| "(eval)".to_owned());
    name[name.ceil_char_boundary(name.len().saturating_sub(NAME_BYTES_MAX))..].to_owned()
}

/// Returns the bytecode array of a function.
fn bytecodes_of(heap: &Heap<'_>, function: Object) -> Option<Object> {
    follow(heap, heap.pointer(function, heap.layout.form.function.data)?)
}

/// Returns the bytecode array to which the data of a function leads.
fn follow(heap: &Heap<'_>, mut at: Object) -> Option<Object> {
    let types = &heap.layout.types;
    for _ in 0..3 {
        let found = heap.type_of(at)?;
        if found == types.bytecodes {
            return Some(at);
        }
        at = if found == types.interpreter_data {
            heap.pointer(at, 8)?
        } else if found == types.code {
            heap.pointer(at, heap.layout.form.code.inlining)?
        } else if Some(found) == types.baseline_data {
            heap.pointer(at, 16)?
        } else {
            return None;
        };
    }
    None
}

/// Returns the table of positions of a function's bytecodes.
fn bytecode_positions(heap: &Heap<'_>, function: Object) -> Option<Box<[u8]>> {
    heap.bytes(heap.pointer(bytecodes_of(heap, function)?, heap.layout.form.bytecode_positions)?)
}

/// Returns the identity of a function, as BPF computes it (`v8_identity` in `ebpf/bpf/runtimes/v8.h`).
pub(crate) fn identity_of(heap: &Heap<'_>, function: Object) -> Option<u32> {
    let form = &heap.layout.form.function;
    heap.typed(function, heap.layout.types.shared_function)?;
    let counts = heap.field(function, form.counts)?;
    let flags = heap.field(function, form.counts + 8)?;
    let number = if form.has_unique {
        heap.int(function, form.counts + 16)?.into()
    } else {
        let script = heap.field(function, form.script)?;
        heap.word((script & !3).wrapping_add(SCRIPT_ID.into())).unwrap_or_default()
    };
    // Only the number of a builtin function is a small integer there.
    let builtin = heap.field(function, form.builtin)?;
    let builtin = if builtin as u32 == 0 { builtin } else { 0 };
    let mask = if form.has_old_token { 0xffff_0000_ffff_0000 } else { 0x0000_ffff_ffff_0000 };
    Some(mix(&[counts & mask, flags & 0xffff_ffff_0000_07ff, number, builtin]))
}

/// Returns a hash of words.
fn mix(words: &[u64]) -> u32 {
    let mixed = words.iter().fold(0_u64, |mixed, word| (mixed ^ word).wrapping_mul(HASH_FACTOR));
    (mixed >> 32) as u32
}

#[cfg(test)]
pub(super) mod tests;
