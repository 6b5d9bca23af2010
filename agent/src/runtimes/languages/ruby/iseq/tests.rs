//! Bodies of iseqs that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number of
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
use crate::process::sys;
use crate::runtimes::languages::ruby::layout::layout_of;
use crate::unwind::tests::damage::{self, below, number};

/// Address of the first object, in files that stand for memory.
const BASE: u64 = 4096;

/// A version with its layout, and the offsets of its headers: entries, number of entries, index, and parent.
pub(in crate::runtimes::languages::ruby) struct Version {
    pub(in crate::runtimes::languages::ruby) layout: Layout,
    number: (u32, u32),
    offsets: [usize; 4],
    entry_bytes: usize,
}

pub(in crate::runtimes::languages::ruby) fn versions() -> Vec<Version> {
    let version = |number: (u32, u32), offsets, entry_bytes| Version {
        layout: layout_of(number.0, number.1).unwrap(),
        number,
        offsets,
        entry_bytes,
    };
    vec![
        version((2, 5), [112, 200, 0, 136], 12),
        version((2, 7), [120, 136, 144, 168], 8),
        version((3, 1), [120, 136, 144, 168], 12),
        version((3, 4), [112, 128, 136, 160], 12),
    ]
}

/// Memory with Ruby's objects.
pub(in crate::runtimes::languages::ruby) struct Objects {
    /// Address of the first byte.
    base: u64,
    pub(in crate::runtimes::languages::ruby) bytes: Vec<u8>,
}

impl Default for Objects {
    fn default() -> Self {
        Self::new(BASE)
    }
}

impl Objects {
    pub(in crate::runtimes::languages::ruby) fn new(base: u64) -> Self {
        Self { base, bytes: Vec::new() }
    }

    fn place(&mut self, bytes: &[u8]) -> u64 {
        let address = self.base + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        address
    }

    pub(in crate::runtimes::languages::ruby) fn place_words(&mut self, words: &[u64]) -> u64 {
        self.place(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// Places a string: within the object if it is short.
    pub(in crate::runtimes::languages::ruby) fn string(&mut self, version: &Version, text: &str) -> u64 {
        let length = text.len() as u64;
        if 23 < text.len() {
            let at = self.place(text.as_bytes());
            return self.place_words(&[5 | 0x2000, 0, length, at]);
        }
        let is_old = version.number < (3, 2);
        let head = if is_old { vec![5 | length << 14, 0] } else { vec![5, 0, length] };
        let head: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.place(&[&head, text.as_bytes()].concat())
    }

    /// Places a body with the lines, each with its first position, and returns its address.
    fn body(&mut self, version: &Version, label: &str, path: u64, lines: &[(u32, u32)], size: u32) -> u64 {
        let label = self.string(version, label);
        let [entries_at, count_at, index_at, _] = version.offsets;
        let mut entries = Vec::new();
        for (position, line) in lines {
            let mut entry = vec![0; version.entry_bytes];
            let at = if index_at == 0 { 4 } else { 0 };
            entry[at..at + 4].copy_from_slice(&line.to_ne_bytes());
            if index_at == 0 {
                entry[..4].copy_from_slice(&position.to_ne_bytes());
            }
            entries.extend(entry);
        }
        let entries = self.place(&entries);
        let index = index_of(&lines.iter().map(|(position, _)| *position).collect::<Vec<_>>(), size);
        let index = self.place(&index);
        let mut body = vec![0; 256];
        let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &size.to_ne_bytes());
        put(8, &0x7f00_0000_1000_u64.to_ne_bytes());
        put(64, &path.to_ne_bytes());
        put(72, &label.to_ne_bytes());
        put(80, &label.to_ne_bytes());
        let first = if version.number < (3, 2) { 2 * 7 + 1 } else { 99 << 32 | 7_u64 };
        put(88, &first.to_ne_bytes());
        put(entries_at, &entries.to_ne_bytes());
        put(count_at, &(lines.len() as u32).to_ne_bytes());
        if index_at != 0 {
            put(index_at, &index.to_ne_bytes());
        }
        self.place(&body)
    }

    pub(in crate::runtimes::languages::ruby) fn file(&self) -> File {
        let file = sys::memory_file(b"").unwrap();
        file.write_all_at(&self.bytes, self.base).unwrap();
        file.set_len(self.base + self.bytes.len() as u64 + 4096).unwrap();
        file
    }
}

/// Returns the index for entries at these positions: the number of entries up to each of the first 54 positions, in 7
/// bits each. Then blocks of 512 positions: the number before the block, the number before each 64 positions but the
/// first in 9 bits each, and a bit for each position.
fn index_of(positions: &[u32], size: u32) -> Vec<u8> {
    let up_to = |position: u32| positions.iter().filter(|first| **first <= position).count() as u64;
    let before = |position: u32| positions.iter().filter(|first| **first < position).count() as u64;
    let mut words = vec![0_u64; size.min(54).div_ceil(9) as usize];
    for position in 0..size.min(54) {
        words[position as usize / 9] |= up_to(position) << (7 * (position % 9));
    }
    let mut start = 54;
    while start < size {
        words.push(before(start));
        words.push((1..8).map(|part| (before(start + 64 * part) - before(start)) << (9 * (part - 1))).sum());
        for part in 0..8 {
            let bits = (0..64).filter(|bit| positions.contains(&(start + 64 * part + bit)));
            words.push(bits.map(|bit| 1_u64 << bit).sum());
        }
        start += 512;
    }
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Reads the function at an address with the identity that it has.
fn read(objects: &Objects, layout: &Layout, address: u64) -> Option<Iseq> {
    let memory = ProcessMemory::of_file(objects.file());
    let identity = identity_of(&memory, address).unwrap();
    assert_eq!(Iseq::read(&memory, layout, address, identity ^ 2), None);
    Iseq::read(&memory, layout, address, identity)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn functions_are_read_as_they_were_written(
        version in prop::sample::select(vec![0_usize, 1, 2, 3]),
        label in "[a-zα-ω ]{1,40}",
        path in "/[ -~]{1,700}",
        size in 1_u32..2000,
        has_array in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let version = &versions()[version];
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut starts: Vec<u32> = (0..size).filter(|at| *at == 0 || below(&mut random, 5) == 0).collect();
        starts.truncate(1 + below(&mut random, 500));
        let lines: Vec<(u32, u32)> = starts.iter().map(|at| (*at, 1 + below(&mut random, 9999) as u32)).collect();
        let mut objects = Objects::default();
        let mut of_path = objects.string(version, &path);
        if has_array {
            of_path = if below(&mut random, 2) == 0 {
                objects.place_words(&[7 | 0x2000 | 2 << 15, 0, of_path, of_path])
            } else {
                let elements = objects.place_words(&[of_path, 0]);
                objects.place_words(&[7, 0, 2, 2, elements])
            };
        }
        let body = objects.body(version, &label, of_path, &lines, size);
        let iseq = read(&objects, &version.layout, body).unwrap();
        let path = &path[path.len().saturating_sub(NAME_BYTES_MAX)..];
        for position in 0..size {
            let (_, line) = lines.iter().rfind(|(first, _)| *first <= position).unwrap();
            // The position is that of the next instruction.
            let expected = Call { function: label.clone(), file: path.to_owned(), line: *line, start_line: 7 };
            prop_assert_eq!(iseq.call(position + 1), expected);
        }
        prop_assert_eq!(iseq.call(u32::MAX).line, 7);
    }
}

#[test]
fn texts_without_a_name_are_part_of_the_function_around_them() {
    let version = &versions()[3];
    let mut objects = Objects::default();
    let path = objects.string(version, "/program.rb");
    let method = objects.body(version, "method", path, &[(0, 1)], 3);
    let mut around = method;
    for (label, expected) in [("<compiled>", "method"), ("block in <compiled>", "block in method")] {
        let iseq = objects.place_words(&[0, 0, around]);
        let body = objects.body(version, label, path, &[(0, 2)], 3);
        let at = usize::try_from(body - BASE).unwrap() + version.offsets[3];
        objects.bytes[at..at + 8].copy_from_slice(&iseq.to_ne_bytes());
        assert_eq!(read(&objects, &version.layout, body).unwrap().call(1).function, expected);
        around = body;
    }
    let alone = objects.body(version, "<compiled>", path, &[(0, 2)], 3);
    assert_eq!(read(&objects, &version.layout, alone).unwrap().call(1).function, "<compiled>");
}

#[test]
fn damaged_functions_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 5_000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let written: Vec<_> = versions()
        .into_iter()
        .map(|version| {
            let mut objects = Objects::default();
            let path = objects.string(&version, "/a/long/path/of/a/program.rb");
            let lines: Vec<(u32, u32)> = (0..60).map(|at| (at * 3, at)).collect();
            let body = objects.body(&version, "method", path, &lines, 200);
            let file = objects.file();
            file.set_len(damage::MEMORY_BYTES).unwrap();
            (version.layout, objects, body, file)
        })
        .collect();
    let mut limit = Limit::new(Duration::from_millis(20), 8 * NAME_BYTES_MAX + 32 * SIZE_MAX as usize);
    let mut read = 0;
    for case in 0..cases {
        let (layout, objects, body, file) = &written[below(&mut random, written.len())];
        let damaged: Vec<(usize, u8)> = (0..=below(&mut random, 4))
            .map(|_| (below(&mut random, objects.bytes.len()), below(&mut random, 256) as u8))
            .collect();
        for (at, byte) in &damaged {
            file.write_all_at(&[*byte], BASE + *at as u64).unwrap();
        }
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let position = below(&mut random, 1 << 20) as u32;
        let iseq = limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
            let iseq = Iseq::read(&memory, layout, *body, identity_of(&memory, *body)?)?;
            let _call = iseq.call(position);
            Some(iseq)
        });
        if let Some(iseq) = iseq {
            assert!(iseq.bytes() <= size_of::<Iseq>() + 4 * NAME_BYTES_MAX + 8 * SIZE_MAX as usize, "seed {seed}");
            read += 1;
        }
        for (at, _) in damaged {
            file.write_all_at(&objects.bytes[at..=at], BASE + at as u64).unwrap();
        }
    }
    assert!(cases / 10 < read && read < cases, "{read} of {cases} were read");
    report::note(&format!("{cases} damaged functions of Ruby: {read} are read, {limit}"));
}
