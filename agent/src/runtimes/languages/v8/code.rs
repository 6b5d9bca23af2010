//! Machine code of V8, found by an address within it.
//!
//! V8 places code objects one after the other, and each begins with a map. So the object that has an address is found
//! by a search for the last map before the address.

use super::heap::{Heap, Object, TABLE_BYTES_MAX, small};
use super::layout::{CodeForm, ExitsForm};

/// Largest distance from an address to the start of its code, in bytes. The largest functions have about 100 KB.
const SEARCH_BYTES_MAX: u64 = 1 << 20;
/// Number of bytes that are read at once in the search.
const PIECE_BYTES: u64 = 16 << 10;
/// Largest number of exits of a function.
const EXITS_MAX: u32 = 1 << 16;

/// Machine code of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineCode {
    /// The object that describes the code.
    pub(crate) object: Object,
    /// Address of the first instruction, and number of bytes of all.
    pub(crate) start: u64,
    pub(crate) bytes: u32,
    pub(crate) kind: u32,
}

impl MachineCode {
    /// Returns the code that has an address; `None` if there is none.
    pub(crate) fn find(heap: &Heap<'_>, pc: u64) -> Option<Self> {
        let form = &heap.layout.form.code;
        let container = container_of(heap, pc)?;
        let object = if form.is_apart { heap.pointer(container, 8)? } else { container };
        heap.typed(object, heap.layout.types.code)?;
        let start = container.0 + u64::from(form.header);
        let bytes = heap.int(object, form.size)?;
        let flags = heap.int(object, form.flags)?;
        let kind = flags >> form.kind_shift & form.kind_mask;
        (pc.checked_sub(start)? < bytes.into()).then_some(Self { object, start, bytes, kind })
    }

    pub(crate) fn is_optimized(&self, form: &CodeForm) -> bool {
        let (first, last) = form.optimized;
        (first..=last).contains(&self.kind)
    }

    /// Returns the exits of optimized code: offsets of code to which V8 redirects the return to a function that it
    /// deoptimizes, each with the offset to which the callee would have returned.
    pub(crate) fn exits(&self, heap: &Heap<'_>) -> Option<Box<[(u32, u32)]>> {
        let form = &heap.layout.form.code;
        let mut at = self.start.checked_add(self.bytes.into())?;
        if form.exits == ExitsForm::Field {
            at = self.start.checked_add(heap.int(self.object, 48)?.into())?;
        }
        let header: [u8; 16] = heap.memory.array(at)?;
        let number = |index: usize| header.as_chunks::<4>().0.get(index).copied().map(u32::from_le_bytes);
        let is_maglev = Some(self.kind) == form.maglev;
        let (count, entry, header) = match form.exits {
            ExitsForm::Field | ExitsForm::Ints => (number(0)?, Entry::INTS, 8),
            ExitsForm::Packed => (number(0)?, Entry::packed(number(1)?, is_maglev), if is_maglev { 16 } else { 8 }),
            ExitsForm::PackedWithSlots => {
                (number(1)?, Entry::packed(number(2)?, is_maglev), if is_maglev { 16 } else { 12 })
            }
        };
        let length = usize::try_from(count.min(EXITS_MAX)).ok()?.checked_mul(entry.bytes)?;
        let mut table = vec![0; Some(length).filter(|length| *length <= TABLE_BYTES_MAX)?];
        if entry.bytes == 0 || !heap.memory.read(at.checked_add(header)?, &mut table) {
            return None;
        }
        Some(table.chunks_exact(entry.bytes).filter_map(|bytes| entry.decode(bytes)).collect())
    }
}

/// Layout of an entry of the table of exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    bytes: usize,
    /// Number of bytes of an offset in the code.
    offset_bytes: usize,
    /// Position in the entry of the exit's offset; `None` if the table has no exits.
    exit: Option<usize>,
    /// Number that is added to the exit's offset.
    bias: u32,
}

impl Entry {
    const INTS: Self = Self { bytes: 12, offset_bytes: 4, exit: Some(8), bias: 0 };

    fn packed(config: u32, is_maglev: bool) -> Self {
        let bits = |shift: u32| (config >> shift & 7) as usize;
        let (registers, offset_bytes, index) = (bits(1) + usize::from(is_maglev), bits(4), bits(7));
        let has_exits = config & 1 != 0;
        let deoptimization = if has_exits { index + offset_bytes } else { 0 };
        let exit = has_exits.then_some(offset_bytes + index);
        Self { bytes: offset_bytes + deoptimization + registers, offset_bytes, exit, bias: 1 }
    }

    /// Returns the offset of an exit, and the offset that it stands for; `None` for an entry without an exit.
    fn decode(&self, entry: &[u8]) -> Option<(u32, u32)> {
        let number = |at: usize| {
            let bytes = entry.get(at..at.checked_add(self.offset_bytes)?)?;
            Some(bytes.iter().rev().take(4).fold(0_u32, |number, byte| number << 8 | u32::from(*byte)))
        };
        let exit = number(self.exit?)?.checked_sub(self.bias)?;
        (exit.cast_signed() > 0).then_some((exit, number(0)?))
    }
}

/// Returns the object that contains the instructions at an address.
fn container_of(heap: &Heap<'_>, pc: u64) -> Option<Object> {
    let form = &heap.layout.form.code;
    let step = 1_u64 << form.align_bits;
    let lowest = pc.saturating_sub(SEARCH_BYTES_MAX).max(u64::from(form.header) + step);
    let mut instructions = pc & !(step - 1);
    let mut piece = vec![0; PIECE_BYTES as usize];
    // The first address of the piece.
    let mut from = u64::MAX;
    while lowest <= instructions {
        let at = instructions - u64::from(form.header);
        if at < from {
            from = (at + 8).saturating_sub(PIECE_BYTES).next_multiple_of(4096).min(at & !4095);
            piece.resize((at + 8 - from) as usize, 0);
            if !heap.memory.read(from, &mut piece) {
                return None;
            }
        }
        let in_piece = (at - from) as usize;
        let word = u64::from_ne_bytes(*piece.get(in_piece..)?.first_chunk()?);
        if heap.is_map_of(word, heap.layout.types.instructions) {
            return Some(Object(at));
        }
        instructions -= step;
    }
    None
}

/// Calls inlined into optimized code.
#[derive(Clone, Debug)]
pub(crate) struct Inlining {
    /// Function whose code it is.
    pub(crate) function: Object,
    /// For each inlined function: the position of its call, and its index in the literals; -1 for the function whose
    /// code it is.
    pub(crate) calls: Vec<(u64, i32)>,
    literals: Option<Object>,
}

impl Inlining {
    /// Largest number of inlined functions.
    const CALLS_MAX: usize = 1 << 12;

    /// Reads the data about inlined functions of optimized code.
    pub(crate) fn read(heap: &Heap<'_>, code: &MachineCode) -> Option<Self> {
        let form = &heap.layout.form.inlining;
        let data = heap.pointer(code.object, heap.layout.form.code.inlining)?;
        let element = |index: u64| super::heap::object(heap.element(data, index)?);
        let mut function = element(form.function)?;
        if form.is_wrapped {
            heap.typed(function, heap.layout.types.shared_function_wrapper?)?;
            function = heap.pointer(function, 8)?;
        }
        let function = heap.typed(function, heap.layout.types.shared_function)?;
        let bytes = element(form.positions).and_then(|positions| heap.bytes(positions)).unwrap_or_default();
        let calls = bytes.as_chunks::<16>().0.iter().take(Self::CALLS_MAX).map(|entry| {
            let [position, rest] = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|index| entry[at + index])));
            (position, rest as u32 as i32)
        });
        Some(Self { function, calls: calls.collect(), literals: element(form.literals) })
    }

    /// Returns the function at an index of the literals.
    pub(crate) fn literal(&self, heap: &Heap<'_>, index: i32) -> Option<Object> {
        let Ok(index) = u64::try_from(index) else { return Some(self.function) };
        let literals = self.literals?;
        let count = u64::try_from(small(heap.field(literals, super::layout::LENGTH)?)?).ok()?;
        let literal = super::heap::object(heap.element(literals, Some(index).filter(|index| *index < count)?)?)?;
        heap.typed(literal, heap.layout.types.shared_function)
    }
}

#[cfg(test)]
mod tests;
