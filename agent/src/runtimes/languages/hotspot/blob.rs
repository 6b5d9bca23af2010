//! Blobs: the pieces of a code heap.

use super::fields::{int, mix, text, word};
use super::layout::{Layout, Place};
use crate::runtimes::memory::ProcessMemory;

/// Kind of a compiled method, in versions that have kinds.
const COMPILED: u8 = 1;
/// Largest length of a blob's name, in bytes. Longer names are those of functions that native code may call.
const NAME_BYTES_MAX: usize = 96;
/// Names of compiled methods, and of wrappers that call native methods.
const COMPILED_NAME: &str = "nmethod";
const WRAPPER_NAME: &str = "native nmethod";

/// A blob, as its header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub(super) address: u64,
    /// Address of its first instruction.
    pub(super) code: u64,
    pub(super) size: u32,
    pub(super) name: String,
    frame_size: u32,
    name_address: u64,
    /// Kind of the blob, if it has a number for it.
    kind: Option<u8>,
}

impl Blob {
    /// Reads the header of a blob in use; `None` if there is none at this address.
    pub(super) fn read(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        let layout = &layout.blob;
        let block = address.checked_sub(layout.block_bytes.into())?;
        let [used] = memory.array::<1>(block.checked_add(layout.used.into())?)?;
        if used != 1 {
            return None;
        }
        let name_address = word(memory, address, layout.name)?;
        Some(Self {
            address,
            code: layout.code.read(memory, address)?,
            size: int(memory, address, layout.size)?.cast_unsigned(),
            name: text(memory, name_address, NAME_BYTES_MAX)?,
            frame_size: int(memory, address, layout.frame_size)?.cast_unsigned(),
            name_address,
            kind: match layout.kind {
                Some(kind) => Some(memory.array::<1>(address.checked_add(kind.into())?)?[0]),
                None => None,
            },
        })
    }

    /// True if the blob is a compiled method, or the wrapper of a native method.
    pub(super) fn is_compiled(&self) -> bool {
        self.kind.map_or_else(|| [COMPILED_NAME, WRAPPER_NAME].contains(&&*self.name), |kind| kind == COMPILED)
    }

    pub(super) fn is_wrapper(&self) -> bool {
        self.name == WRAPPER_NAME
    }

    /// Returns the identity of the blob as BPF computes it (`hotspot_code_identity` in `ebpf/bpf/runtimes/hotspot.h`).
    ///
    /// The number of a compilation is unique in its process. Other blobs are rarely freed.
    pub(super) fn identity(&self, memory: &ProcessMemory, layout: &Layout) -> Option<u32> {
        let frame_size = u64::from(self.frame_size) << 32;
        if !self.is_compiled() {
            return Some(mix([u64::from(self.size) | frame_size, self.name_address, self.code - self.address]));
        }
        let compile_id = int(memory, self.address, layout.compiled.compile_id)?.cast_unsigned();
        let method = word(memory, self.address, layout.compiled.method)?;
        Some(mix([u64::from(compile_id) | frame_size, method, self.size.into()]))
    }
}

impl Place {
    /// Returns the address that the field of the structure at `structure` stands for.
    pub(super) fn read(self, memory: &ProcessMemory, structure: u64) -> Option<u64> {
        match self {
            Self::Address(offset) => word(memory, structure, offset),
            Self::Offset(distance) => structure.checked_add_signed(distance.read(memory, structure)?),
        }
    }
}
