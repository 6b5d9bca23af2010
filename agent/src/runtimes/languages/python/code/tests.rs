//! Code objects that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number of
//! damaged ones, and `VARVE_UNWIND_SEED` chooses them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::runtimes::languages::python::debug_offsets::tests::described_layouts;
use crate::runtimes::languages::python::layout::layout_of;
use crate::unwind::tests::damage::{self, below, number};

/// Address of the code object, in files that stand for memory.
const CODE: u64 = 4096;
/// Distance between the objects, which follow one another.
const OBJECT_BYTES: u64 = 8192;
/// Number of bytes of all objects.
pub(crate) const OBJECTS_BYTES: usize = 4 * OBJECT_BYTES as usize;

/// Returns a file with these bytes, which stands for the memory of a process.
fn file_of(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A code object in memory.
struct Written {
    bytes: Vec<u8>,
    identity: u32,
}

/// Returns a code object, its texts and its line table, as CPython lays them out. The first byte has the address
/// `base`, which is the address of the code object.
pub(crate) fn objects(layout: &Layout, base: u64, name: &str, file: &str, first_line: u32, lines: &[u8]) -> Vec<u8> {
    let [name_at, file_at, lines_at] = [1, 2, 3].map(|object| object * OBJECT_BYTES);
    let mut bytes = vec![0; OBJECTS_BYTES];
    let mut put = |at: u64, field: u16, value: &[u8]| {
        let at = usize::try_from(at).unwrap() + usize::from(field);
        bytes[at..at + value.len()].copy_from_slice(value);
    };
    put(0, layout.code.first_line, &first_line.to_ne_bytes());
    put(0, layout.code.name, &(base + name_at).to_ne_bytes());
    if let Some(identified_name) = layout.code.identified_name {
        put(0, identified_name, &(base + name_at).to_ne_bytes());
    }
    put(0, layout.code.file, &(base + file_at).to_ne_bytes());
    put(0, layout.code.lines, &(base + lines_at).to_ne_bytes());
    for (at, text) in [(name_at, name), (file_at, file)] {
        let widest = text.chars().map(u32::from).max().unwrap_or_default();
        let width = match widest {
            0..0x100 => 1,
            0x100..0x1_0000 => 2,
            _ => 4,
        };
        let is_ascii = widest < 0x80;
        put(at, layout.text.length, &(text.chars().count() as u64).to_ne_bytes());
        let state = (width as u32 | 1 << 3 | u32::from(is_ascii) << 4) << layout.text.kind_shift;
        put(at, layout.text.state, &state.to_ne_bytes());
        let header = if is_ascii { layout.text.ascii_header } else { layout.text.header };
        let of = |character| u32::from(character).to_le_bytes().into_iter().take(width);
        put(at, header, &text.chars().flat_map(of).collect::<Vec<_>>());
    }
    put(lines_at, layout.bytes_length, &(lines.len() as u64).to_ne_bytes());
    put(lines_at, layout.bytes_data, lines);
    bytes
}

/// Returns memory with a code object at [`CODE`].
fn write(layout: &Layout, name: &str, file: &str, first_line: u32, lines: &[u8]) -> Written {
    let before = vec![0; usize::try_from(CODE).unwrap()];
    let bytes = [before, objects(layout, CODE, name, file, first_line, lines)].concat();
    let memory = ProcessMemory::of_file(file_of(&bytes));
    let identity = identity_of(&memory, layout, CODE).unwrap();
    Written { bytes, identity }
}

fn layouts() -> impl Iterator<Item = Layout> {
    (6..=12).map(|minor| layout_of(minor).unwrap()).chain(described_layouts())
}

proptest! {
    #[test]
    fn any_code_object_is_read_as_it_was_written(
        name in "\\PC{0,300}",
        file in "[ -~]{0,600}|\\PC{0,300}",
        first_line: u32,
        lines in prop::collection::vec(any::<u8>(), 0..500),
        version in 0..layouts().count(),
    ) {
        let layout = layouts().nth(version).unwrap();
        let written = write(&layout, &name, &file, first_line, &lines);
        let memory = ProcessMemory::of_file(file_of(&written.bytes));
        let code = Code::read(&memory, &layout, CODE, written.identity).unwrap();
        let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
        let file = &file[file.ceil_char_boundary(file.len().saturating_sub(NAME_BYTES_MAX))..];
        prop_assert_eq!((&*code.name, &*code.file, code.first_line, &*code.lines), (name, file, first_line, &*lines));
        prop_assert_eq!(Code::read(&memory, &layout, CODE, written.identity ^ 2), None);
        // Another name at the same address has another hash.
        let mut other = written.bytes;
        other[(CODE + OBJECT_BYTES) as usize + usize::from(layout.text.hash().unwrap())] ^= 1;
        let code = Code::read(&ProcessMemory::of_file(file_of(&other)), &layout, CODE, written.identity);
        prop_assert_eq!(code.is_none(), layout.code.identified_name.is_some());
    }
}

#[test]
fn damaged_code_objects_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 20_000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let layouts: Vec<Layout> = layouts().collect();
    let written: Vec<Written> =
        layouts.iter().map(|layout| write(layout, "name", "/file.py", 7, &[8, 1, 2, 3])).collect();
    let files: Vec<_> = written.iter().map(|written| file_of(&written.bytes)).collect();
    files.iter().for_each(|file| file.set_len(damage::MEMORY_BYTES).unwrap());
    let mut limit = Limit::new(Duration::from_millis(20), 4 * NAME_BYTES_MAX + 4 * LINES_BYTES_MAX);
    let mut read = 0;
    for case in 0..cases {
        let at = below(&mut random, layouts.len());
        let (layout, written, file) = (&layouts[at], &written[at], &files[at]);
        // Most damage hits a field of an object.
        let object = CODE + below(&mut random, 4) as u64 * OBJECT_BYTES;
        let damaged: Vec<(u64, u8)> = (0..=below(&mut random, 4))
            .map(|_| (object + below(&mut random, 144) as u64, below(&mut random, 256) as u8))
            .collect();
        for (at, byte) in &damaged {
            file.write_all_at(&[*byte], *at).unwrap();
        }
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let position = below(&mut random, 1 << 20) as u32;
        let code = limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
            let identity = identity_of(&memory, layout, CODE).unwrap_or(written.identity);
            let code = Code::read(&memory, layout, CODE, identity)?;
            let _call = code.call(layout, position);
            Some(code)
        });
        if let Some(code) = code {
            assert!(code.bytes() <= size_of::<Code>() + 2 * NAME_BYTES_MAX + LINES_BYTES_MAX, "seed {seed}");
            read += 1;
        }
        for (at, _) in damaged {
            let start = at as usize;
            file.write_all_at(&written.bytes[start..=start], at).unwrap();
        }
    }
    assert!(cases / 10 < read && read < cases, "{read} of {cases} were read");
    report::note(&format!("{cases} damaged code objects of Python: {read} are read, {limit}"));
}
