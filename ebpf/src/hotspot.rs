//! Code heaps of a process that runs HotSpot. `bpf/runtimes/hotspot.h` and
//! `bpf/runtimes/hotspot_state.h` define their layout.

use std::ops::Range;

/// Name of the map of the processes that run HotSpot.
pub const HOTSPOT_PROCESSES_MAP: &str = "hotspot_processes";
/// Largest number of code heaps of a process.
pub const HOTSPOT_HEAPS: usize = 4;
/// Size of the description of a process, in bytes.
pub const HOTSPOT_PROCESS_BYTES: usize = 144;
/// Size of a key of the map, in bytes.
pub const HOTSPOT_KEY_BYTES: usize = 24;

/// A code heap. All addresses are those of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotSpotHeap {
    /// First address of the heap.
    pub start: u64,
    /// Address after the memory that is reserved for the heap.
    pub end: u64,
    /// Address of the heap's map of segments.
    pub segments: u64,
}

/// The code of HotSpot in a process. It does not change until the process ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotSpotProcess {
    /// Code of the interpreter.
    pub interpreter: Range<u64>,
    /// First word of each compiled method; 0 if compiled methods have a number for their kind instead.
    pub compiled: u64,
    /// Address to which the lowest frames of a virtual thread return, if its other frames are in the Java heap; 0 if
    /// there is none.
    pub barrier: u64,
    /// Binary logarithm of the size of a segment.
    pub segment_shift: u32,
    /// Size of the entry of a virtual thread's frames, on the stack.
    pub entry_bytes: u32,
    /// Code heaps. Heaps that are not in use are empty.
    pub heaps: [HotSpotHeap; HOTSPOT_HEAPS],
}

impl HotSpotProcess {
    /// Encodes the process for the map. `runtime` is the id of the description of its HotSpot.
    #[must_use]
    pub fn to_bytes(&self, runtime: u16) -> [u8; HOTSPOT_PROCESS_BYTES] {
        let head = [
            self.interpreter.start,
            self.interpreter.end,
            self.compiled,
            self.barrier,
            u64::from(self.entry_bytes) << 32 | u64::from(self.segment_shift),
            runtime.into(),
        ];
        let heaps = self.heaps.iter().flat_map(|heap| [heap.start, heap.end, heap.segments]);
        let mut bytes = [0; HOTSPOT_PROCESS_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(head.into_iter().chain(heaps)) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// Returns the key of a process in the map. The numbers are those of its samples.
#[must_use]
pub fn hotspot_key(start_boottime_ns: u64, exec_id: u64, pid: u32) -> [u8; HOTSPOT_KEY_BYTES] {
    let mut key = [0; HOTSPOT_KEY_BYTES];
    for (to, word) in key.as_chunks_mut::<8>().0.iter_mut().zip([start_boottime_ns, exec_id, pid.into()]) {
        *to = word.to_le_bytes();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOTSPOT_H: &str = include_str!("../bpf/runtimes/hotspot.h");
    const HOTSPOT_STATE_H: &str = include_str!("../bpf/runtimes/hotspot_state.h");

    #[test]
    fn sizes_are_those_of_the_c_header() {
        for (name, bytes) in [("process", HOTSPOT_PROCESS_BYTES), ("key", HOTSPOT_KEY_BYTES)] {
            let assertion = format!("_Static_assert(sizeof(struct hotspot_{name}) == {bytes}, \"\");");
            assert!(HOTSPOT_H.contains(&assertion), "{assertion}");
        }
        assert!(HOTSPOT_STATE_H.contains(&format!("#define HOTSPOT_HEAPS {HOTSPOT_HEAPS}\n")));
        assert!(HOTSPOT_H.contains(&format!("}} {HOTSPOT_PROCESSES_MAP} SEC(\".maps\");")));
    }

    #[test]
    fn words_are_in_the_order_of_the_c_struct() {
        let heap = |start: u64| HotSpotHeap { start, end: start + 1, segments: start + 2 };
        let heaps = [8, 11, 14, 17].map(heap);
        let process =
            HotSpotProcess { interpreter: 1..2, compiled: 3, barrier: 4, segment_shift: 5, entry_bytes: 6, heaps };
        let words_of = |bytes: &[u8]| {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()
        };
        let words = words_of(&process.to_bytes(7));
        assert_eq!(words[..6], [1, 2, 3, 4, 6 << 32 | 5, 7]);
        assert_eq!(words[6..], (8..20).collect::<Vec<_>>());
        assert_eq!(words_of(&hotspot_key(1, 2, 3)), [1, 2, 3]);
    }
}
