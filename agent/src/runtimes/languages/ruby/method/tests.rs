//! Entries of methods that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number
//! of damaged ones, and `VARVE_UNWIND_SEED` chooses them.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::names::location::NAME_BYTES_MAX;
use crate::runtimes::languages::ruby::function::Function;
use crate::runtimes::languages::ruby::iseq::tests::{Objects, Version, versions};
use crate::unwind::tests::damage::{self, below, number};

const NIL: u64 = 8;

/// Places an array. A short one has its elements in the object.
fn place_array(objects: &mut Objects, elements: &[u64]) -> u64 {
    let length = elements.len() as u64;
    if length <= 3 {
        return objects.place_words(&[&[7 | 0x2000 | length << 15, 0], elements].concat());
    }
    let first = objects.place_words(elements);
    objects.place_words(&[7, 0, length, length, first])
}

/// Places the table of symbols, in which only one number has a name, and the entry of a method with this name. Returns
/// the addresses of the table and of the entry.
fn place(objects: &mut Objects, version: &Version, symbol: u64, name: &str) -> (u64, u64) {
    let number = if symbol <= 170 { symbol } else { symbol >> 4 };
    let text = objects.string(version, name);
    let mut pairs = vec![NIL; 2 * (number as usize % 512)];
    pairs.extend([text, NIL]);
    let names = place_array(objects, &pairs);
    let mut arrays = vec![NIL; number as usize / 512];
    arrays.push(names);
    let all = place_array(objects, &arrays);
    let table = objects.place_words(&[number, 0x1234, all]);
    let definition = objects.place_words(&[2, 0x7f00_0000, 0x7f00_1000, 1, symbol, 99]);
    let entry = objects.place_words(&[0x603a, 0x5555_0000, definition, symbol + 16, 0x5555_0008]);
    (table, entry)
}

/// Numbers of operators, and of other names with their kinds.
fn symbol() -> impl Strategy<Value = u64> {
    prop_oneof![33_u64..=170, (171_u64..20_000, 0_u64..16).prop_map(|(number, kind)| number << 4 | kind)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_method_in_c_has_the_name_that_was_written(
        version in 0_usize..4,
        symbol in symbol(),
        name in "[a-zα-ω_?!=+*<>]{1,600}",
        base in 1_u64..0x7_ffff_0000,
        pages in 0_u64..3,
    ) {
        let version = &versions()[version];
        let mut objects = Objects::new(base << 12);
        // The file is loaded somewhat below the table.
        objects.place_words(&[0; 4 * 512]);
        let (table, entry) = place(&mut objects, version, symbol, &name);
        let load = (base + pages) << 12;
        let layout = version.layout.with_symbols(Some(table - load));
        let memory = ProcessMemory::of_file(objects.file());
        let identity = identity_of(&memory, entry).unwrap();
        let read = |identity: u32| {
            let address = 1 << 47 | entry | load >> 44;
            Function::read(&memory, &layout, (address, (load >> 12) as u32, identity))
        };
        let expected = name[..name.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
        let call = read(identity).unwrap().call(0);
        // A character that is cut has a replacement.
        prop_assert_eq!(call.function.trim_end_matches('\u{fffd}'), expected);
        prop_assert_eq!((&*call.file, call.line, call.start_line), ("", 0, 0));
        prop_assert_eq!(read(identity ^ 2), None);
        let without_table = layout.with_symbols(None);
        prop_assert_eq!(Method::read(&memory, &without_table, (entry, load), identity), None);
    }
}

#[test]
fn damaged_methods_in_c_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 5_000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let written: Vec<_> = versions()
        .into_iter()
        .map(|version| {
            let mut objects = Objects::default();
            let (table, entry) = place(&mut objects, &version, 1027 << 4, "each");
            let file = objects.file();
            file.set_len(damage::MEMORY_BYTES).unwrap();
            let layout = version.layout.with_symbols(Some(table));
            (layout, objects, entry, file)
        })
        .collect();
    let mut limit = Limit::new(Duration::from_millis(20), 64 << 10);
    let mut read = 0;
    for case in 0..cases {
        let (layout, objects, entry, file) = &written[below(&mut random, written.len())];
        let damaged: Vec<(usize, u8)> = (0..=below(&mut random, 4))
            .map(|_| (below(&mut random, objects.bytes.len()), below(&mut random, 256) as u8))
            .collect();
        for (at, byte) in &damaged {
            file.write_all_at(&[*byte], 4096 + *at as u64).unwrap();
        }
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let method = limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
            Method::read(&memory, layout, (*entry, 0), identity_of(&memory, *entry)?)
        });
        if let Some(method) = method {
            assert!(method.bytes() <= size_of::<Method>() + 4 * NAME_BYTES_MAX, "seed {seed}");
            read += 1;
        }
        for (at, _) in damaged {
            file.write_all_at(&objects.bytes[at..=at], 4096 + at as u64).unwrap();
        }
    }
    assert!(cases / 10 < read && read < cases, "{read} of {cases} were read");
    report::note(&format!("{cases} damaged methods in C of Ruby: {read} are read, {limit}"));
}
