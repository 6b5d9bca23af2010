//! Tables in files that stand for the memory of a process.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::unwind::tests::damage::{self, below, number};

/// Addresses of the variables, and of the tables. The names follow.
const SYMBOLS: Symbols = Symbols { fields: 4096, field_bytes: 4104, types: 4112, type_bytes: 4120 };
const FIELDS: usize = 8192;
const TYPES: usize = 16384;
const NAMES: usize = 24576;
const MEMORY_BYTES: usize = 65536;

/// A field as a test writes it: structure, name, type, and address if it is static, or else offset.
type Written = (String, String, String, bool, u64);

fn put(memory: &mut [u8], at: usize, word: u64) {
    memory[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

/// Writes tables as the virtual machine has them in its memory.
fn write(fields: &[Written], types: &[(String, u64)]) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    let mut names = NAMES;
    let mut name = |memory: &mut [u8], text: &str| {
        let at = names;
        memory[at..at + text.len()].copy_from_slice(text.as_bytes());
        names += text.len() + 1;
        at as u64
    };
    for (at, word) in [(4096, FIELDS), (4104, 48), (4112, TYPES), (4120, 40)] {
        put(&mut memory, at, word as u64);
    }
    for (index, (structure, field, of, is_static, place)) in fields.iter().enumerate() {
        let at = FIELDS + 48 * index;
        for (offset, text) in [(0, structure), (8, field), (16, of)] {
            let text = name(&mut memory, text);
            put(&mut memory, at + offset, text);
        }
        put(&mut memory, at + 24, (*is_static).into());
        put(&mut memory, at + if *is_static { 40 } else { 32 }, *place);
    }
    for (index, (of, bytes)) in types.iter().enumerate() {
        let text = name(&mut memory, of);
        put(&mut memory, TYPES + 40 * index, text);
        put(&mut memory, TYPES + 40 * index + 32, *bytes);
    }
    memory
}

fn read(memory: &[u8]) -> Option<VmStructs> {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(memory, 0).unwrap();
    VmStructs::read(&ProcessMemory::of_file(file), SYMBOLS, 0)
}

fn written() -> impl Strategy<Value = (Vec<Written>, Vec<(String, u64)>)> {
    let field = ("[A-Z][a-z]{0,20}", "_[a-z]{1,20}", "int|u2|int16_t|Klass\\*", any::<bool>(), any::<u64>());
    let kind = ("[A-Z][a-z]{0,20}", any::<u64>());
    (prop::collection::vec(field, 0..100), prop::collection::vec(kind, 0..100))
}

proptest! {
    #[test]
    fn tables_are_read_as_they_were_written((fields, types) in written()) {
        let vm = read(&write(&fields, &types)).unwrap();
        let expected: HashMap<String, Field> = fields
            .into_iter()
            .map(|(structure, name, of, is_static, place)| {
                (format!("{structure}::{name}"), Field { of, is_static, place })
            })
            .collect();
        prop_assert_eq!(vm.fields, expected);
        prop_assert_eq!(vm.sizes, types.into_iter().collect::<HashMap<_, _>>());
    }
}

#[test]
fn damaged_tables_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 5000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let field = |at: usize| {
        (format!("Structure{at}"), "_field".to_owned(), "int".to_owned(), at.is_multiple_of(3), 8 * at as u64)
    };
    let fields: Vec<Written> = (0..100).map(field).collect();
    let types: Vec<_> = (0..100).map(|at| (format!("Type{at}"), at)).collect();
    let written = write(&fields, &types);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&written, 0).unwrap();
    file.set_len(damage::MEMORY_BYTES).unwrap();
    // Names are kept, and the pages from which they are read.
    let mut limit = Limit::new(Duration::from_millis(200), 16 << 20);
    let mut whole = 0;
    for case in 0..cases {
        let damaged: Vec<(usize, usize, u64)> = (0..=below(&mut random, 4))
            .map(|_| {
                let (start, bytes) = [(4096, 32), (FIELDS, 4800), (TYPES, 4000), (NAMES, 4000)][below(&mut random, 4)];
                let word = random.next_u64();
                (start + below(&mut random, bytes), [1, 8][below(&mut random, 2)], word >> (word >> 58))
            })
            .collect();
        for (at, count, word) in &damaged {
            file.write_all_at(&word.to_ne_bytes()[..*count], *at as u64).unwrap();
        }
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let found =
            limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || VmStructs::read(&memory, SYMBOLS, 0));
        if let Some(vm) = found {
            assert!(vm.fields.len() < ENTRIES_MAX + PIECE && vm.sizes.len() < ENTRIES_MAX + PIECE, "case {case}");
            whole += u64::from(vm.fields.len() == fields.len());
        }
        for (at, ..) in damaged {
            file.write_all_at(&written[at..at + 8], at as u64).unwrap();
        }
    }
    assert!(cases / 20 < whole && whole < cases, "{whole} of {cases} have all fields");
    report::note(&format!("{cases} damaged tables of HotSpot: {whole} have all fields, {limit}"));
}

#[test]
fn a_table_without_an_end_is_refused() {
    let fields = vec![(String::new(), "_x".to_owned(), "int".to_owned(), false, 1); 3];
    let mut memory = write(&fields, &[]);
    // Every word is the address of a name.
    memory[TYPES..].fill(b'a');
    put(&mut memory, NAMES, 0);
    for at in (TYPES..MEMORY_BYTES).step_by(8) {
        put(&mut memory, at, NAMES as u64);
    }
    assert!(read(&memory).is_none());
    // Entries of another size are not those of the known table.
    let mut memory = write(&fields, &[]);
    put(&mut memory, 4104, 56);
    assert!(read(&memory).is_none());
}
