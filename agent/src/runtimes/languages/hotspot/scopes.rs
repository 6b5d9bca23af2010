//! Debug information of compiled methods: the bytecode of an instruction, and the calls inlined there.
//!
//! A compiled method has a sorted table of the positions with debug information: mostly calls. A position leads to a
//! *scope*, which is a method, a bytecode, and the scope of the caller into which it is inlined.

use super::blob::Blob;
use super::fields::{pointer, word};
use super::layout::{Layout, Metadata, Place};
use super::unsigned5::Numbers;
use crate::runtimes::memory::ProcessMemory;

/// Size of an entry of the table of positions.
const POSITION_BYTES: u64 = 16;
/// Largest number of positions of a compiled method.
const POSITIONS_MAX: u64 = 1 << 20;
/// Largest number of methods that are inlined into each other at one place. HotSpot's own limit is 15 by default.
pub(super) const SCOPES_MAX: usize = 100;
/// Largest number of methods to which a compiled method refers.
const METHODS_MAX: u32 = 1 << 16;
/// Bytes of the three numbers of a scope.
const SCOPE_BYTES: usize = 15;

/// A bytecode of a method. The bytecode is `None` before the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) method: u64,
    pub(super) bytecode: Option<u32>,
}

/// Addresses of the debug information of a compiled method.
struct Debug<'a> {
    memory: &'a ProcessMemory,
    lowest_byte: u8,
    positions: u64,
    positions_end: u64,
    scopes: u64,
    methods: u64,
    /// The compiled method itself.
    method: u64,
}

/// Returns the method and the calls inlined into it, innermost first, at a position relative to the blob. `None` if the
/// memory cannot be read.
pub(super) fn scopes(memory: &ProcessMemory, layout: &Layout, blob: &Blob, position: u32) -> Option<Vec<Scope>> {
    let method = word(memory, blob.address, layout.compiled.method)?;
    let itself = vec![Scope { method, bytecode: None }];
    if blob.is_wrapper() {
        return Some(itself);
    }
    let position = i64::from(position) - i64::try_from(blob.code.checked_sub(blob.address)?).ok()?;
    let debug = Debug::of(memory, layout, blob, method)?;
    let found = debug.find(position)?.map_or_else(Vec::new, |scope| debug.chain(scope).unwrap_or_default());
    // Every chain ends in the compiled method.
    Some(if found.last().is_some_and(|outermost| outermost.method == method) { found } else { itself })
}

impl<'a> Debug<'a> {
    fn of(memory: &'a ProcessMemory, layout: &Layout, blob: &Blob, method: u64) -> Option<Self> {
        let of = &layout.compiled;
        let base = match of.immutable_data {
            Some(offset) => pointer(memory, blob.address, offset)?,
            None => blob.address,
        };
        let at = |number: super::fields::Integer| base.checked_add_signed(number.read(memory, blob.address)?);
        let scopes = match of.scopes {
            Place::Address(offset) => word(memory, blob.address, offset)?,
            Place::Offset(number) => at(number)?,
        };
        let methods = match of.metadata {
            Metadata::Mutable(data, relocations) => {
                word(memory, blob.address, data)?.checked_add_signed(relocations.read(memory, blob.address)?)?
            }
            Metadata::InBlob(offset, data) => {
                let data = data.map_or(Some(0), |data| data.read(memory, blob.address))?;
                blob.address.checked_add_signed(data)?.checked_add_signed(offset.read(memory, blob.address)?)?
            }
        };
        let lowest_byte = layout.lowest_byte;
        Some(Self {
            memory,
            lowest_byte,
            positions: at(of.pcs)?,
            positions_end: at(of.pcs_end)?,
            scopes,
            methods,
            method,
        })
    }

    /// Returns the scope of the first position that is not before `position`, relative to the first instruction. `None`
    /// in place of the scope if there is none.
    fn find(&self, position: i64) -> Option<Option<u32>> {
        let count = self.positions_end.checked_sub(self.positions)? / POSITION_BYTES;
        let (mut low, mut high) = (0, Some(count).filter(|count| *count <= POSITIONS_MAX)?);
        while low < high {
            let middle = low.midpoint(high);
            if i64::from(self.position(middle)?.0) < position { low = middle + 1 } else { high = middle }
        }
        if low == count {
            return Some(None);
        }
        Some(u32::try_from(self.position(low)?.1).ok().filter(|scope| *scope != 0))
    }

    /// Returns a position, and its scope.
    fn position(&self, index: u64) -> Option<(i32, i32)> {
        let entry: [u8; 8] = self.memory.array(self.positions.checked_add(index * POSITION_BYTES)?)?;
        let [position, scope] = *entry.as_chunks::<4>().0.first_chunk::<2>()?;
        Some((i32::from_ne_bytes(position), i32::from_ne_bytes(scope)))
    }

    /// Returns a scope and those of its callers, innermost first.
    fn chain(&self, first: u32) -> Option<Vec<Scope>> {
        let mut chain = Vec::new();
        let mut scope = first;
        while scope != 0 && chain.len() < SCOPES_MAX {
            let bytes = self.scope_bytes(self.scopes.checked_add(scope.into())?)?;
            let mut numbers = Numbers::new(&bytes, self.lowest_byte);
            let (caller, method, next_bytecode) = (numbers.unsigned()?, numbers.unsigned()?, numbers.unsigned()?);
            let method = match method.checked_sub(1) {
                None => self.method,
                Some(index) if index < METHODS_MAX => {
                    word(self.memory, self.methods.checked_add(8 * u64::from(index))?, 0)?
                }
                Some(_) => return None,
            };
            chain.push(Scope { method, bytecode: next_bytecode.checked_sub(1) });
            // Callers are written first, so a damaged chain ends, too.
            if scope <= caller {
                return None;
            }
            scope = caller;
        }
        Some(chain)
    }

    /// Reads the numbers of a scope. The memory may end after them.
    fn scope_bytes(&self, address: u64) -> Option<Vec<u8>> {
        const PAGE: u64 = 4096;
        let mut bytes = vec![0; SCOPE_BYTES];
        if self.memory.read(address, &mut bytes) {
            return Some(bytes);
        }
        bytes.truncate(usize::try_from(PAGE - address % PAGE).ok()?.min(SCOPE_BYTES));
        self.memory.read(address, &mut bytes).then_some(bytes)
    }
}
