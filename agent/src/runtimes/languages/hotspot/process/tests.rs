//! Code heaps that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number of
//! damaged ones, and `VARVE_UNWIND_SEED` chooses them.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::runtimes::languages::hotspot::layout::Place;
use crate::runtimes::languages::hotspot::layout::tests::tables;
use crate::unwind::tests::damage::{self, below, number};

/// Addresses of static fields.
const INTERPRETER_AT: u64 = 0x1000;
const VERSION_AT: u64 = 0x1008;
const HEAPS_AT: u64 = 0x1010;
const BARRIER_AT: u64 = 0x1018;
/// Addresses of structures, and distance of the heaps' structures.
const INTERPRETER: u64 = 0x1100;
const ARRAY: u64 = 0x1200;
const HEAP_POINTERS: u64 = 0x1280;
const HEAPS: u64 = 0x1300;
const HEAP_BYTES: u64 = 0x100;
/// Names of blobs, each in so many bytes.
const NAMES: u64 = 0x2000;
const NAME_BYTES: u64 = 0x80;
const KINDS: [&str; 5] =
    ["Interpreter", "I2C/C2I adapters", "nmethod", "native nmethod", "StubRoutines (continuation stubs)"];
const CONTINUATIONS: usize = 4;
/// Addresses of code, and distance of the heaps.
const CODE: u64 = 0x1_0000;
const CODE_BYTES: u64 = 0x1_0000;
const MEMORY_BYTES: usize = 0x5_0000;
const SEGMENT_SHIFT: u32 = 7;
/// Offset of the first instruction in a blob.
const FIRST_INSTRUCTION: u64 = 256;

/// A block of a heap.
#[derive(Clone, Debug)]
struct Block {
    segments: u32,
    is_used: bool,
    kind: usize,
}

/// Content of the memory.
#[derive(Clone, Debug)]
struct Written {
    /// Index of the version among those whose tables are known.
    version: usize,
    interpreter: (u64, i32),
    heaps: Vec<Vec<Block>>,
    /// The return barrier, if the tables have it.
    barrier: Option<u64>,
    /// Offset of the barrier from the first instruction of its stub.
    barrier_offset: u64,
    entry_bytes: Option<u16>,
}

/// The memory, the tables, and the blobs in use with their addresses.
struct World {
    version: u32,
    vm: VmStructs,
    layout: Layout,
    bytes: Vec<u8>,
    used: Vec<(usize, u64)>,
}

impl World {
    fn put(&mut self, address: u64, field: u16, bytes: &[u8]) {
        let at = usize::try_from(address).unwrap() + usize::from(field);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, address: u64, field: u16, word: u64) {
        self.put(address, field, &word.to_ne_bytes());
    }

    fn new(written: &Written) -> Self {
        let (version, mut vm) = tables().remove(written.version);
        let layout = Layout::of(&vm, version).unwrap();
        vm.insert_static("AbstractInterpreter::_code", INTERPRETER_AT);
        for (name, of, offset) in [
            ("StubQueue::_stub_buffer", "address", 16),
            ("StubQueue::_buffer_limit", "int", 28),
            ("VirtualSpace::_low", "char*", 16),
            ("VirtualSpace::_high_boundary", "char*", 8),
            ("CodeHeap::_memory", "VirtualSpace", 8),
            ("CodeHeap::_segmap", "VirtualSpace", 112),
            ("CodeHeap::_log2_segment_size", "int", 212),
        ] {
            vm.insert(name, of, offset);
        }
        match version {
            8 => vm.insert_static("CodeCache::_heap", HEAPS_AT),
            _ => vm.insert_static("CodeCache::_heaps", HEAPS_AT),
        }
        if version > 9 {
            vm.insert_static("VM_Version::_vm_major_version", VERSION_AT);
        }
        if written.barrier.is_some() {
            vm.insert_static("StubRoutines::_cont_returnBarrier", BARRIER_AT);
        }
        if let Some(bytes) = written.entry_bytes {
            vm.insert_size("ContinuationEntry", bytes.into());
        }
        let mut world = Self { version, vm, layout, bytes: vec![0; MEMORY_BYTES], used: Vec::new() };
        world.put_word(INTERPRETER_AT, 0, INTERPRETER);
        world.put(VERSION_AT, 0, &version.to_ne_bytes());
        world.put_word(BARRIER_AT, 0, written.barrier.unwrap_or_default());
        world.put_word(INTERPRETER, 16, written.interpreter.0);
        world.put(INTERPRETER, 28, &written.interpreter.1.to_ne_bytes());
        world.put_word(HEAPS_AT, 0, if version == 8 { HEAPS } else { ARRAY });
        world.put(ARRAY, 0, &(written.heaps.len() as i32).to_ne_bytes());
        world.put_word(ARRAY, if version < 15 { 24 } else { 8 }, HEAP_POINTERS);
        for (index, name) in KINDS.iter().enumerate() {
            world.put(NAMES + NAME_BYTES * index as u64, 0, name.as_bytes());
        }
        for (index, blocks) in written.heaps.iter().enumerate() {
            world.put_heap(index as u64, blocks, written.barrier_offset);
        }
        world
    }

    fn put_heap(&mut self, index: u64, blocks: &[Block], barrier_offset: u64) {
        let (at, start) = (HEAPS + HEAP_BYTES * index, CODE + CODE_BYTES * index);
        self.put_word(HEAP_POINTERS, 8 * index as u16, at);
        self.put_word(at, 8 + 16, start);
        self.put_word(at, 8 + 8, start + CODE_BYTES);
        self.put_word(at, 112 + 16, segments_of(index));
        self.put(at, 212, &SEGMENT_SHIFT.to_ne_bytes());
        let blob_layout = self.layout.blob;
        let mut block = start;
        for (number, Block { segments, is_used, kind }) in blocks.iter().enumerate() {
            let blob = block + u64::from(blob_layout.block_bytes);
            self.put(block, 0, &segments.to_ne_bytes());
            self.put(block, blob_layout.used, &[(*is_used).into()]);
            // Compiled methods begin with the address of their functions, in versions that have such addresses.
            self.put_word(blob, 0, first_word(index, number));
            self.put_word(blob, blob_layout.name, NAMES + NAME_BYTES * *kind as u64);
            let bytes = (u64::from(*segments) << SEGMENT_SHIFT) - u64::from(blob_layout.block_bytes);
            self.put(blob, blob_layout.size, &(bytes as i32).to_ne_bytes());
            match blob_layout.code {
                Place::Address(offset) => self.put_word(blob, offset, blob + FIRST_INSTRUCTION),
                Place::Offset(integer) => self.put(blob, integer.offset, &(FIRST_INSTRUCTION as u32).to_ne_bytes()),
            }
            if *kind == CONTINUATIONS {
                self.put(blob + FIRST_INSTRUCTION + barrier_offset, 0, &BARRIER);
            }
            if *is_used {
                self.used.push((*kind, blob));
            }
            block += u64::from(*segments) << SEGMENT_SHIFT;
        }
    }

    /// Returns what is to be found; `None` if the heaps have too little yet.
    fn expected(&self, written: &Written) -> Option<HotSpot> {
        let heap = |index: u64| match written.heaps.len() as u64 <= index {
            true => HotSpotHeap::default(),
            false => HotSpotHeap {
                start: CODE + CODE_BYTES * index,
                end: CODE + CODE_BYTES * (index + 1),
                segments: segments_of(index),
            },
        };
        let word_at = |address: u64| u64::from_ne_bytes(*self.bytes[address as usize..].first_chunk().unwrap());
        let first = |kinds: &[usize]| self.used.iter().find(|(kind, _)| kinds.contains(kind)).map(|(_, blob)| *blob);
        let compiled = if 25 <= self.version { Some(0) } else { first(&[2, 3]).map(word_at) };
        let found = first(&[CONTINUATIONS]).map(|blob| blob + FIRST_INSTRUCTION + written.barrier_offset);
        let barrier = written.barrier.or(found.filter(|_| 19 <= self.version)).unwrap_or_default();
        let (start, bytes) = written.interpreter;
        let process = HotSpotProcess {
            interpreter: start..start + u64::try_from(bytes).unwrap(),
            compiled: compiled?,
            barrier,
            segment_shift: SEGMENT_SHIFT,
            entry_bytes: written.entry_bytes.map_or(64, |bytes| bytes.div_ceil(16) * 16).into(),
            heaps: std::array::from_fn(|index| heap(index as u64)),
        };
        Some(HotSpot { layout: self.layout, process })
    }
}

/// Address of the segment map of the heap with an index.
fn segments_of(index: u64) -> u64 {
    0x7000_0000 + 0x1_0000 * index
}

fn first_word(heap: u64, block: usize) -> u64 {
    0x5000_0000 + heap * 0x1_0000 + 8 * block as u64
}

fn written() -> impl Strategy<Value = Written> {
    let block = (4_u32..12, any::<bool>(), 0..KINDS.len());
    let block = block.prop_map(|(segments, is_used, kind)| Block { segments, is_used, kind });
    let heaps = prop::collection::vec(prop::collection::vec(block, 0..30), 1..=HOTSPOT_HEAPS);
    let places = (0x1000_u64..0x7fff_0000_0000, 0..i32::MAX);
    let barrier = (prop::option::of(1_u64..u64::MAX), 0_u64..100, prop::option::of(1_u16..1000));
    (0..tables().len(), places, heaps, barrier).prop_map(
        |(version, interpreter, mut heaps, (barrier, at, entry_bytes))| {
            // Java 8 has one heap.
            heaps.truncate(if version == 0 { 1 } else { HOTSPOT_HEAPS });
            Written { version, interpreter, heaps, barrier, barrier_offset: at, entry_bytes }
        },
    )
}

fn memory_of(bytes: &[u8]) -> (File, ProcessMemory) {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    let memory = ProcessMemory::of_file(file.try_clone().unwrap());
    (file, memory)
}

proptest! {
    #[test]
    fn any_code_heaps_are_read_as_they_were_written(written in written()) {
        let world = World::new(&written);
        let (_, memory) = memory_of(&world.bytes);
        prop_assert_eq!(HotSpot::of(&memory, &world.vm), world.expected(&written));
    }
}

#[test]
fn damaged_code_heaps_are_read_in_bounded_time_and_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 5000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let blocks: Vec<Block> = (0..40).map(|block| Block { segments: 4, is_used: true, kind: block / 8 }).collect();
    let worlds: Vec<_> = (0..tables().len())
        .map(|version| {
            let heaps = vec![blocks.clone(); if version == 0 { 1 } else { HOTSPOT_HEAPS }];
            let interpreter = (0x7000_0000, 0x1_0000);
            let written =
                Written { version, interpreter, heaps, barrier: None, barrier_offset: 20, entry_bytes: Some(40) };
            let world = World::new(&written);
            let (file, memory) = memory_of(&world.bytes);
            file.set_len(damage::MEMORY_BYTES).unwrap();
            (world, file, memory)
        })
        .collect();
    let mut limit = Limit::new(Duration::from_millis(200), 1 << 20);
    let mut read = 0;
    for case in 0..cases {
        let (world, file, memory) = &worlds[below(&mut random, worlds.len())];
        let damaged: Vec<(usize, u64)> = (0..=below(&mut random, 4))
            .map(|_| {
                // Static fields, structures, names, or the header of one of the first blocks of a heap.
                let (start, bytes) =
                    [(0x1000, 32), (0x1100, 0x600), (0x2000, 0x280), (0x1_0000, 48)][below(&mut random, 4)];
                let block = below(&mut random, HOTSPOT_HEAPS) * 0x1_0000 + below(&mut random, 8) * 512;
                let at = start + below(&mut random, bytes) + if start == 0x1_0000 { block } else { 0 };
                let word = random.next_u64();
                (at, if word.is_multiple_of(2) { word >> (word >> 58) } else { CODE + (word >> 45) })
            })
            .collect();
        for (at, word) in &damaged {
            // A whole word, or one byte of it.
            let bytes = word.to_ne_bytes();
            let count = if word.is_multiple_of(3) { 8 } else { 1 };
            file.write_all_at(&bytes[..count], *at as u64).unwrap();
        }
        let found =
            limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || HotSpot::of(memory, &world.vm));
        read += u64::from(found.is_some());
        for (at, _) in damaged {
            file.write_all_at(&world.bytes[at..at + 8], at as u64).unwrap();
        }
    }
    assert!(cases / 10 < read && read < cases, "{read} of {cases} were read");
    report::note(&format!("{cases} damaged code heaps of HotSpot: {read} are read, {limit}"));
}
