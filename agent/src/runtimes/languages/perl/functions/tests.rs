//! Subs that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number of damaged
//! ones, and `VARVE_UNWIND_SEED` chooses them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::runtimes::languages::perl::layout::layout_of;
use crate::unwind::tests::damage::{self, below, number};

/// Address of the first object, in files that stand for memory.
const BASE: u64 = 4096;

/// Memory with the objects of Perl, as its headers describe them.
struct Objects {
    bytes: Vec<u8>,
    layout: Layout,
}

impl Objects {
    fn new(minor: u8) -> Self {
        Self { bytes: Vec::new(), layout: layout_of(minor).unwrap() }
    }

    /// Places an object with these words at offsets. Returns its address.
    fn place(&mut self, words: &[(usize, u64)]) -> u64 {
        let address = BASE + self.bytes.len() as u64;
        let start = self.bytes.len();
        self.bytes.resize(start + 0x80, 0);
        for (offset, word) in words {
            self.bytes[start + offset..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        address
    }

    fn place_bytes(&mut self, bytes: &[u8]) -> u64 {
        let address = BASE + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        address
    }

    fn text(&mut self, text: &str) -> u64 {
        self.place_bytes(&[text.as_bytes(), &[0]].concat())
    }

    /// Places a shared key of a hash: a hash value, a length, the bytes, a zero, and flags.
    fn key(&mut self, name: &str) -> u64 {
        let is_latin = name.chars().all(|character| u32::from(character) < 0x100);
        let bytes = if is_latin { name.chars().map(|c| c as u8).collect() } else { name.as_bytes().to_vec() };
        let head = [7_u32.to_ne_bytes(), (bytes.len() as u32).to_ne_bytes()].concat();
        self.place_bytes(&[&head[..], &bytes, &[0, u8::from(!is_latin)]].concat())
    }

    /// Places a scalar: its head with the type and flags, and the address of its body.
    fn scalar(&mut self, flags: u32, body: u64, value: u64) -> u64 {
        self.place(&[(0, body), (8, u64::from(flags) << 32 | 1), (16, value)])
    }

    /// Places a package. It has a second name if `has_names`.
    fn package(&mut self, name: &str, has_names: bool) -> u64 {
        let key = self.key(name);
        let (name, count) = if has_names { (self.place(&[(0, key), (8, key)]), 2) } else { (key, 0) };
        let names = [(0, name), (0x18, count << 32)];
        let slots: u64 = 8;
        let (body, array) = if self.layout.is_name_in_body {
            (self.place(&[(0x18, slots - 1), (0x20, name), (0x38, count << 32)]), 0)
        } else {
            self.place(&[]);
            let names = self.place(&names);
            (self.place(&[(0x18, slots - 1)]), names - slots * 8)
        };
        self.scalar(12 | 0x0200_0000, body, array)
    }

    /// Places a glob. `original` is the one that it was imported from; 0 stands for the glob itself.
    fn glob(&mut self, package: &str, name: &str, original: u64) -> u64 {
        let (package, name) = (self.package(package, false), self.key(name));
        let body = self.place(&[(0x20, name), (0x28, package)]);
        let value = self.place(&[(0x38, original)]);
        self.scalar(9, body, value)
    }

    fn sub(&mut self, package: u64, name: u64, file: &str, line: u32, flags: u32) -> u64 {
        let (of_sub, of_statement) = (self.text(file), self.text(file));
        let first = self.place(&[(0x20, u64::from(line) << 32), (0x30, of_statement)]);
        let body = self.place(&[
            (0x20, package),
            (0x28, first),
            (0x30, 0x1234_5678),
            (0x38, name),
            (0x40, of_sub),
            (0x58, u64::from(flags) << 32 | 99),
        ]);
        self.scalar(13, body, 0)
    }

    fn file(&self) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&self.bytes, BASE).unwrap();
        // Strings are read in pieces.
        file.set_len(BASE + self.bytes.len() as u64 + 4096).unwrap();
        file
    }
}

/// The identity of a sub as `perl_identity` in `ebpf/bpf/runtimes/perl.h` computes it.
fn identity(words: &[u64]) -> u32 {
    let mut identity = 0_u64;
    for word in words {
        identity = (identity ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (identity >> 32) as u32 | 1
}

/// Reads the function at an address with the identity that it has.
fn read(objects: &Objects, address: u64) -> Option<Call> {
    let memory = ProcessMemory::of_file(objects.file());
    let identity = identity_of(&memory, address).unwrap();
    assert_eq!(Sub::read(&memory, &objects.layout, address, identity ^ 2), None);
    Some(Sub::read(&memory, &objects.layout, address, identity)?.call(0))
}

/// Names of characters that Perl stores as Latin-1 or as UTF-8.
fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z_][a-zA-Z0-9_]{0,20}", "[a-zä-ü]{1,9}", "[a-zα-ω]{1,9}", "[a-zα-ω]{400,600}"]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn subs_are_named_as_they_were_written(
        minor in prop::sample::select(vec![26, 28, 30, 32, 34, 36, 38, 40, 42]),
        (package, name) in (names(), names()),
        file in "[ -~]{1,700}",
        line in 1_u32..1 << 30,
        kind in 0..5,
        has_names in any::<bool>(),
    ) {
        let mut objects = Objects::new(minor);
        let of_package = objects.package(&package, has_names);
        let mut expected = format!("{package}::{name}");
        let (at, flags) = match kind {
            0 => (objects.key(&name), 0x9000),
            1 => {
                expected.clone_from(&name);
                (objects.key(&name), 0x1_9000)
            }
            2 => (objects.glob(&package, &name, 0), 0x1000),
            3 => {
                let original = objects.glob(&package, &name, 0);
                (objects.glob("Importer", "alias", original), 0x1000)
            }
            _ => {
                expected = format!("{package}::__ANON__");
                (0, 0x80)
            }
        };
        let sub = objects.sub(of_package, at, &file, line, flags);
        let call = read(&objects, sub).unwrap();
        if name.len() + package.len() < 500 {
            prop_assert_eq!(call.function, expected);
        } else {
            // Both parts may be truncated.
            prop_assert!(call.function.len() <= NAME_BYTES_MAX);
        }
        let file = &file[file.len().saturating_sub(NAME_BYTES_MAX)..];
        prop_assert_eq!((&*call.file, call.line, call.start_line), (file, line, line));
    }

    #[test]
    fn programs_and_texts_have_the_name_of_their_file(file in "[ -~]{1,60}", is_eval in any::<bool>()) {
        let mut objects = Objects::new(36);
        let at = objects.text(&file) | if is_eval { EVAL_TAG } else { PROGRAM_TAG };
        let call = read(&objects, at).unwrap();
        let name = if is_eval { "(eval)" } else { "<toplevel>" };
        prop_assert_eq!((&*call.function, &*call.file, call.line), (name, &*file, 0));
        // The first 16 bytes identify the text.
        let mut start = [file.as_bytes(), &[0; 16]].concat();
        start.truncate(16);
        let words: Vec<u64> = start.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let used = if file.len() < 8 { 1 } else { 2 };
        let memory = ProcessMemory::of_file(objects.file());
        prop_assert_eq!(identity_of(&memory, at), Some(identity(&words[..used])));
    }
}

#[test]
fn the_identity_of_a_sub_does_not_depend_on_its_name_and_flags() {
    let mut objects = Objects::new(40);
    let package = objects.package("main", false);
    let key = objects.key("name");
    let sub = objects.sub(package, key, "/program.pl", 3, 0x9000);
    let memory = ProcessMemory::of_file(objects.file());
    let body = word(&memory, sub, 0).unwrap();
    let words = [0x20, 0x28, 0x30, 0x58, 0x40].map(|offset| word(&memory, body, offset).unwrap());
    let expected = identity(&[words[0], words[1], words[2], 99, words[4]]);
    assert_eq!(identity_of(&memory, sub), Some(expected));
    let at = usize::try_from(body - BASE).unwrap();
    for (offset, is_same) in [(0x20, false), (0x28, false), (0x30, false), (0x38, true), (0x48, true), (0x58, false)] {
        objects.bytes[at + offset] ^= 1;
        let memory = ProcessMemory::of_file(objects.file());
        assert_eq!(identity_of(&memory, sub) == Some(expected), is_same, "{offset:#x}");
        objects.bytes[at + offset] ^= 1;
    }
    objects.bytes[at + 0x5c] ^= 1;
    assert_eq!(identity_of(&ProcessMemory::of_file(objects.file()), sub), Some(expected));
}

#[test]
fn damaged_subs_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 20_000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let written: Vec<(Objects, u64, File)> = [28, 42]
        .map(|minor| {
            let mut objects = Objects::new(minor);
            let original = objects.glob("Package", "name", 0);
            let glob = objects.glob("Importer", "alias", original);
            let package = objects.package("main", true);
            let sub = objects.sub(package, glob, "/program.pl", 7, 0x1000);
            let file = objects.file();
            file.set_len(damage::MEMORY_BYTES).unwrap();
            (objects, sub, file)
        })
        .into();
    let mut limit = Limit::new(Duration::from_millis(20), 4 * NAME_BYTES_MAX + (64 << 10));
    let mut read = 0;
    for case in 0..cases {
        let (objects, sub, file) = &written[below(&mut random, written.len())];
        let damaged: Vec<(usize, u8)> = (0..=below(&mut random, 4))
            .map(|_| (below(&mut random, objects.bytes.len()), below(&mut random, 256) as u8))
            .collect();
        for (at, byte) in &damaged {
            file.write_all_at(&[*byte], BASE + *at as u64).unwrap();
        }
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let address = if below(&mut random, 8) == 0 { sub | below(&mut random, 8) as u64 } else { *sub };
        let function = limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
            Sub::read(&memory, &objects.layout, address, identity_of(&memory, address)?)
        });
        if let Some(function) = function {
            assert!(function.bytes() <= size_of::<Sub>() + 2 * NAME_BYTES_MAX, "seed {seed}");
            read += 1;
        }
        for (at, _) in damaged {
            file.write_all_at(&objects.bytes[at..=at], BASE + at as u64).unwrap();
        }
    }
    assert!(cases / 10 < read && read < cases, "{read} of {cases} were read");
    report::note(&format!("{cases} damaged subs of Perl: {read} are read, {limit}"));
}

#[test]
fn only_subs_are_copied_and_only_those_without_a_name_are_equal() {
    let kinds: Vec<Option<u64>> = (0..4).map(|tag| Sub::copied_kind(0x1000 | tag)).collect();
    assert_eq!(kinds, [Some(0), None, None, None]);
    let named = |name: &str| Sub { name: name.to_owned(), file: String::new(), start_line: 0 };
    let equal = ["main::__ANON__", "main::job", "__ANON__::job"].map(|name| named(name).is_nameless());
    assert_eq!(equal, [true, false, false]);
}
