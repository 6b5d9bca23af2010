//! Functions in memory that is written here: well-formed ones, and random objects. `VARVE_DAMAGE_CASES` is twenty times
//! the number of random memories, and `VARVE_UNWIND_SEED` chooses them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::runtimes::languages::v8::layout::{FORMS, Types};
use crate::unwind::tests::damage::{self, below, number};

/// Numbers of types in these memories. All strings are below the others.
pub(in crate::runtimes::languages::v8) const TYPES: Types = Types {
    shared_function: 300,
    scope: 301,
    script: 302,
    map: 303,
    bytecodes: 304,
    code: 305,
    instructions: 306,
    interpreter_data: 307,
    byte_array: 308,
    trusted_byte_array: Some(309),
    debug_info: Some(310),
    baseline_data: Some(311),
    shared_function_wrapper: Some(312),
    no_string: 128,
};
/// Types that objects have: those above, and all kinds of strings.
const NUMBERS: [u16; 22] =
    [300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310, 311, 312, 0, 1, 2, 3, 5, 8, 9, 10, 13];
/// Address of the first map, and the distance between maps.
const MAPS: u64 = 4096;
const MAP_BYTES: u64 = 64;
/// Start and end of the objects.
const OBJECTS: u64 = 8192;
const MEMORY_BYTES: usize = 1 << 16;

/// Memory with a map for each type.
struct World {
    bytes: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let mut world = Self { bytes: vec![0; MEMORY_BYTES] };
        for kind in NUMBERS {
            let map = Self::map_of(kind) - 1;
            world.put(map, Self::map_of(TYPES.map));
            world.bytes[map as usize + 12..][..2].copy_from_slice(&kind.to_ne_bytes());
        }
        world
    }

    /// Returns the tagged pointer to the map of a type.
    fn map_of(kind: u16) -> u64 {
        let at = NUMBERS.iter().position(|number| *number == kind).unwrap() as u64;
        MAPS + at * MAP_BYTES + 1
    }

    fn put(&mut self, at: u64, word: u64) {
        self.bytes[at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
    }

    fn put_object(&mut self, at: u64, kind: u16, fields: &[(u16, u64)]) {
        self.put(at, Self::map_of(kind));
        fields.iter().for_each(|(offset, word)| self.put(at + u64::from(*offset), *word));
    }

    /// Writes a string of narrow characters. Returns its tagged pointer.
    fn put_text(&mut self, at: u64, text: &str) -> u64 {
        self.put(at, Self::map_of(8));
        self.bytes[at as usize + 12..][..4].copy_from_slice(&(text.len() as u32).to_ne_bytes());
        self.bytes[at as usize + 16..][..text.len()].copy_from_slice(text.as_bytes());
        at + 1
    }

    fn memory(&self) -> ProcessMemory {
        ProcessMemory::of_file(self.file())
    }

    fn file(&self) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&self.bytes, 0).unwrap();
        file
    }
}

fn smi(number: u32) -> u64 {
    u64::from(number) << 32
}

#[test]
fn a_function_is_read_as_it_was_written_if_its_identity_fits() {
    for form in &FORMS {
        let layout = Layout { form, types: TYPES };
        let [function, script, bytecodes, table, texts] = [0_u64, 1, 2, 3, 4].map(|number| OBJECTS + number * 1024);
        let mut world = World::new();
        let name = world.put_text(texts, "name");
        let file = world.put_text(texts + 64, "/file.js");
        let source = world.put_text(texts + 128, "a\nb\nc\nd");
        world.put_object(script, TYPES.script, &[(8, source), (16, file), (24, smi(10)), (64, smi(7))]);
        world.put_object(table, TYPES.byte_array, &[(8, smi(2)), (16, 0)]);
        // One entry: a statement at the offset 4, and the third line.
        let step = 4 - form.positions.start;
        let step = if form.positions.has_flags { step << 2 } else { step << 1 } as u8;
        world.bytes[table as usize + 16..][..2].copy_from_slice(&[step, 4 * 2 * 2]);
        world.put_object(bytecodes, TYPES.bytecodes, &[(form.bytecode_positions, table + 1)]);
        let fields = form.function;
        let words = [
            (fields.data, bytecodes + 1),
            (fields.name, name),
            (fields.script, script + 1),
            (fields.counts, 0x1122_3344_5566_7788),
            (fields.counts + 16, 0x99),
        ];
        world.put_object(function, TYPES.shared_function, &words);
        let memory = world.memory();
        let heap = Heap { memory: &memory, layout: &layout };
        let identity = identity_of(&heap, Object(function)).unwrap() | 1;
        let sources = Sources::default();
        let read = |identity: u32| {
            let at = (function | INTERPRETED, 4, identity);
            Function::read(&memory, &layout, &sources, at)
        };
        let calls = read(identity).unwrap().calls(&layout, 4);
        let line = 13;
        let expected = Call { function: "name".to_owned(), file: "/file.js".to_owned(), line, start_line: 0 };
        assert_eq!(calls, [expected], "{:?}", form.version);
        assert!(read(identity ^ 2).is_none());
        // Any change of the numbers that a function keeps is another identity.
        for offset in [2, 3, 8, 12, 16] {
            let at = (function + u64::from(fields.counts)) as usize + offset;
            if offset == 16 && !fields.has_unique {
                continue;
            }
            world.bytes[at] ^= 1;
            let memory = world.memory();
            let changed = identity_of(&Heap { memory: &memory, layout: &layout }, Object(function));
            assert_ne!(changed.map(|changed| changed | 1), Some(identity), "{:?}: {offset}", form.version);
            world.bytes[at] ^= 1;
        }
    }
}

#[test]
fn random_objects_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 20_000) / 20, number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut limit = Limit::new(Duration::from_millis(100), 16 << 20);
    let mut read = 0;
    for case in 0..cases {
        let layout = Layout { form: &FORMS[below(&mut random, FORMS.len())], types: TYPES };
        let mut world = World::new();
        // Objects of 128 bytes, whose words are maps, pointers to other objects, small integers or anything.
        for at in (OBJECTS..MEMORY_BYTES as u64).step_by(8) {
            let word = random.next_u64();
            let object = OBJECTS + below(&mut random, (MEMORY_BYTES - 8192) / 128) as u64 * 128 + 1;
            let kind = World::map_of(NUMBERS[below(&mut random, NUMBERS.len())]);
            let word = match word % 8 {
                0..=2 if at % 128 == 0 => World::map_of(TYPES.shared_function),
                _ if at % 128 == 0 => kind,
                0..=3 => object,
                4 | 5 => smi(word as u32 >> (word >> 40 & 31)),
                6 => word >> (word >> 58),
                _ => word,
            };
            world.put(at, word);
        }
        let file = world.file();
        file.set_len(damage::MEMORY_BYTES).unwrap();
        let memory = ProcessMemory::of_file(file);
        let heap = Heap { memory: &memory, layout: &layout };
        for _ in 0..20 {
            let at = OBJECTS + below(&mut random, (MEMORY_BYTES - 8192) / 128) as u64 * 128;
            let kind = 1 + random.next_u64() % 3;
            let position = below(&mut random, MEMORY_BYTES) as u32;
            let other_position = random.next_u64() as u32;
            let sources = Sources::default();
            read += limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
                let identity = identity_of(&heap, Object(at)).unwrap_or_default();
                let identity = if kind == COMPILED { identity >> 16 << 1 | 1 } else { identity | 1 };
                let function = Function::read(&memory, &layout, &sources, (at | kind, position, identity));
                if let Some(function) = &function {
                    assert!(function.bytes() < 4 << 20, "seed {seed}");
                    assert!(function.calls(&layout, position).len() <= DEPTH_MAX);
                    let _covers = function.covers(other_position);
                }
                let code = heap.word(u64::from(position)).map(|code| mix(&[code]) | 1).unwrap_or_default();
                let at = (u64::from(position) | PC, position, code);
                if let Some(function) = Function::read(&memory, &layout, &sources, at) {
                    assert!(function.calls(&layout, position).len() <= DEPTH_MAX);
                }
                u64::from(function.is_some())
            });
        }
    }
    assert!(cases < read, "{read} were read");
    report::note(&format!("{} random objects of V8: {read} are read, {limit}", 20 * cases));
}
