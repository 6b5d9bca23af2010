//! The code of HotSpot in a process: its code heaps, and the places in them that BPF needs to know.
//!
//! They are made before the first Java code runs, and they do not change until the process ends.

pub(crate) mod search;

use std::fs::File;

use ebpf::{HOTSPOT_HEAPS, HotSpotHeap, HotSpotProcess};
use host_files::elf::ElfImage;

use super::fields::{int, pointer, text, word};
use super::layout::{Layout, version};
use super::vm_structs::{Symbols, VmStructs};
use crate::runtimes::memory::ProcessMemory;

/// Name of the file that has HotSpot's code.
pub(crate) const LIBRARY: &str = "libjvm.so";
/// Largest number of blobs of a heap that are searched. The first compiled method is among the first few hundred.
const BLOBS_MAX: usize = 4096;
/// Length of the names by which blobs are found.
const NAME_BYTES_MAX: usize = 64;
/// Largest size of the blob with the code for virtual threads.
const CONTINUATIONS_BYTES_MAX: usize = 64 << 10;
/// First version with virtual threads.
const FIRST_WITH_VIRTUAL_THREADS: u32 = 19;
/// Size of the entry of a virtual thread's frames in versions that do not tell it.
const ENTRY_BYTES: u16 = 64;
/// Code at the return barrier: `mov rsp, [r15 + offset]`.
const BARRIER: [u8; 3] = [0x49, 0x8b, 0xa7];

/// HotSpot in a process: the layout of its structures, and its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HotSpot {
    pub(crate) layout: Layout,
    pub(crate) process: HotSpotProcess,
}

/// True if a file has the code of HotSpot. Its version is known only in a process.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_hotspot(file: &File) -> bool {
    Symbols::of(file).is_some()
}

impl HotSpot {
    /// Reads the code heaps of a process that has mapped the byte at `offset` of `library` at the address `start`.
    /// `None` if the heaps are not made yet, or if this is no HotSpot whose structures are known.
    pub(crate) fn read(memory: &ProcessMemory, library: &File, start: u64, offset: u64) -> Option<Self> {
        let symbols = Symbols::of(library)?;
        let bias = start.wrapping_sub(ElfImage::read(library).ok()?.virtual_address(offset)?);
        Self::of(memory, &VmStructs::read(memory, symbols, bias)?)
    }

    /// Reads the code heaps, whose structures `vm` describes.
    fn of(memory: &ProcessMemory, vm: &VmStructs) -> Option<Self> {
        let version = version(memory, vm)?;
        let layout = Layout::of(vm, version)?;
        let interpreter = vm.static_word(memory, "AbstractInterpreter::_code").filter(|code| *code != 0)?;
        let first = word(memory, interpreter, vm.offset("StubQueue::_stub_buffer")?)?;
        let bytes = u64::try_from(int(memory, interpreter, vm.int("StubQueue::_buffer_limit")?)?).ok()?;
        let (heaps, segment_shift) = heaps(memory, vm, version)?;
        let scan = Scan { memory, layout: &layout, heaps: &heaps, segment_shift };
        let compiled = if layout.blob.kind.is_some() { 0 } else { scan.first_word_of_compiled()? };
        let barrier = match vm.static_word(memory, "StubRoutines::_cont_returnBarrier") {
            Some(barrier) => barrier,
            None if version < FIRST_WITH_VIRTUAL_THREADS => 0,
            None => scan.return_barrier().unwrap_or_default(),
        };
        let entry_bytes = vm.size("ContinuationEntry").unwrap_or(ENTRY_BYTES).next_multiple_of(16).into();
        let interpreter = first..first.checked_add(bytes)?;
        let process = HotSpotProcess { interpreter, compiled, barrier, segment_shift, entry_bytes, heaps };
        Some(Self { layout, process })
    }
}

/// Returns the code heaps, and the binary logarithm of the size of their segments.
fn heaps(memory: &ProcessMemory, vm: &VmStructs, version: u32) -> Option<([HotSpotHeap; HOTSPOT_HEAPS], u32)> {
    let objects = match vm.static_word(memory, "CodeCache::_heap") {
        Some(only) => vec![only],
        None => {
            let array = vm.static_word(memory, "CodeCache::_heaps").filter(|array| *array != 0)?;
            let count =
                usize::try_from(int(memory, array, 0)?).ok().filter(|count| (1..=HOTSPOT_HEAPS).contains(count))?;
            let in_array = if version < 15 { 24 } else { 8 };
            let data = pointer(memory, array, vm.offset("GrowableArray<int>::_data").unwrap_or(in_array))?;
            (0..count).map(|index| word(memory, data, 8 * index as u16)).collect::<Option<Vec<_>>>()?
        }
    };
    let (low, high) = (vm.offset("VirtualSpace::_low")?, vm.offset("VirtualSpace::_high_boundary")?);
    let (code, segments) = (vm.offset("CodeHeap::_memory")?, vm.offset("CodeHeap::_segmap")?);
    let shift = vm.int("CodeHeap::_log2_segment_size")?;
    let mut heaps = [HotSpotHeap::default(); HOTSPOT_HEAPS];
    let mut shifts = Vec::new();
    for (heap, object) in heaps.iter_mut().zip(objects) {
        *heap = HotSpotHeap {
            start: pointer(memory, object, code.checked_add(low)?)?,
            end: pointer(memory, object, code.checked_add(high)?)?,
            segments: pointer(memory, object, segments.checked_add(low)?)?,
        };
        shifts.push(int(memory, object, shift)?);
    }
    let first = *shifts.first()?;
    let are_equal = shifts.iter().all(|shift| *shift == first) && (4..=16).contains(&first);
    are_equal.then_some((heaps, first.cast_unsigned()))
}

/// Search for blobs by their names.
struct Scan<'a> {
    memory: &'a ProcessMemory,
    layout: &'a Layout,
    heaps: &'a [HotSpotHeap; HOTSPOT_HEAPS],
    segment_shift: u32,
}

impl Scan<'_> {
    /// Returns the first blob whose name fits.
    fn find(&self, fits: impl Fn(&str) -> bool) -> Option<u64> {
        // Many blobs have the same name, at the same address.
        let mut last = (0, false);
        for heap in self.heaps {
            let mut block = heap.start;
            for _ in 0..BLOBS_MAX {
                let Some(segments) = int(self.memory, block, 0).filter(|segments| block < heap.end && 0 < *segments)
                else {
                    break;
                };
                let blob = block.checked_add(self.layout.blob.block_bytes.into())?;
                if let Some(name) = self.name_of(block, blob) {
                    if last.0 != name {
                        last = (name, text(self.memory, name, NAME_BYTES_MAX).is_some_and(|name| fits(&name)));
                    }
                    if last.1 {
                        return Some(blob);
                    }
                }
                block = block.checked_add(u64::from(segments.cast_unsigned()) << self.segment_shift)?;
            }
        }
        None
    }

    /// Returns the address of the name of a blob; `None` if its block is free.
    fn name_of(&self, block: u64, blob: u64) -> Option<u64> {
        let [used] = self.memory.array::<1>(block.checked_add(self.layout.blob.used.into())?)?;
        if used == 1 { word(self.memory, blob, self.layout.blob.name) } else { None }
    }

    fn first_word_of_compiled(&self) -> Option<u64> {
        let blob = self.find(|name| name == "nmethod" || name == "native nmethod")?;
        word(self.memory, blob, 0)
    }

    fn return_barrier(&self) -> Option<u64> {
        let blob = self.find(|name| name.starts_with("StubRoutines") && name.contains("ontinuation"))?;
        let size = usize::try_from(int(self.memory, blob, self.layout.blob.size)?).ok()?;
        let code = self.layout.blob.code.read(self.memory, blob)?;
        let bytes = size.checked_sub(usize::try_from(code.checked_sub(blob)?).ok()?)?;
        let mut instructions = vec![0; bytes.min(CONTINUATIONS_BYTES_MAX)];
        if !self.memory.read(code, &mut instructions) {
            return None;
        }
        let at = instructions.windows(BARRIER.len()).position(|window| window == BARRIER)?;
        Some(code + at as u64)
    }
}

#[cfg(test)]
mod tests;
