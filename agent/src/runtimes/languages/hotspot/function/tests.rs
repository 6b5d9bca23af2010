//! Methods and compiled code that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the
//! number of damaged ones, and `VARVE_UNWIND_SEED` chooses them.

mod written;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::cost::Limit;
use testkit::report;

use self::written::{BLOB, CODE_OFFSET, Inlined, METHOD_BYTES, METHODS, World, WrittenMethod};
use super::*;
use crate::names::location::NAME_BYTES_MAX;
use crate::runtimes::languages::hotspot::layout::tests::layouts;
use crate::runtimes::languages::hotspot::method::identity_of;
use crate::runtimes::languages::hotspot::scopes::SCOPES_MAX;
use crate::unwind::tests::damage::{self, below, number};

fn memory_of(bytes: &[u8]) -> (File, ProcessMemory) {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    let memory = ProcessMemory::of_file(file.try_clone().unwrap());
    (file, memory)
}

/// Returns the line of a bytecode: that of the entry with the largest bytecode that is not larger. Without a bytecode,
/// returns the first line.
fn line_of(lines: &[(u16, u16)], bytecode: Option<u32>) -> u32 {
    let Some(bytecode) = bytecode else { return lines.first().map_or(0, |(_, line)| (*line).into()) };
    let before = lines.iter().filter(|(first, _)| u32::from(*first) <= bytecode);
    before.max_by_key(|(first, _)| first).map_or(0, |(_, line)| (*line).into())
}

fn expected(method: &WrittenMethod, bytecode: Option<u32>) -> Call {
    let mut function = format!("{}.{}", method.class.replace('/', "."), method.name);
    function.truncate(function.floor_char_boundary(NAME_BYTES_MAX));
    Call { function, file: method.file.clone(), line: line_of(&method.lines, bytecode), start_line: 0 }
}

fn any_method() -> impl Strategy<Value = WrittenMethod> {
    let lines = prop::collection::btree_map(0_u16..5000, 1_u16..60000, 0..40);
    let names = ("[a-z]{1,10}/[A-Z][a-z]{0,200}", "[a-z]{1,200}", "[A-Z][a-z]{0,20}\\.java|");
    (names, lines, 1_u16..4000).prop_map(|((class, name, file), lines, code_size)| WrittenMethod {
        class,
        name,
        file,
        lines: lines.into_iter().collect(),
        code_size,
    })
}

/// Positions of compiled code, each with the inlined calls there, innermost first.
fn any_positions() -> impl Strategy<Value = Vec<(u32, Vec<Inlined>)>> {
    let inlined =
        (0_usize..4, prop::option::of(0_u32..6000)).prop_map(|(method, bytecode)| Inlined { method, bytecode });
    let chain =
        (prop::collection::vec(inlined, 0..6), prop::option::of(0_u32..6000)).prop_map(|(mut chain, bytecode)| {
            // The outermost method is the compiled one.
            chain.push(Inlined { method: 0, bytecode });
            chain
        });
    let positions = prop::collection::btree_map(1_u32..100_000, chain, 0..20);
    positions.prop_map(|positions| positions.into_iter().collect())
}

proptest! {
    #[test]
    fn any_method_is_read_as_it_was_written(method in any_method(), bytecode: u16, version in 0_usize..6) {
        let (_, layout) = layouts()[version];
        let mut world = World::new(layout);
        world.put_method(0, &method);
        let (_, memory) = memory_of(&world.bytes);
        let identity = identity_of(&memory, &layout, METHODS).unwrap();
        let read = |address: u64, identity: u32| Function::read(&memory, &layout, address, 0, identity);
        let function = read(METHODS | INTERPRETED, identity).unwrap();
        let at = u32::from(bytecode);
        prop_assert_eq!(function.calls(at), [expected(&method, Some(at))]);
        prop_assert_eq!(function.calls(NO_BYTECODE), [expected(&method, None)]);
        prop_assert_eq!(read(METHODS | INTERPRETED, identity ^ 2), None);
        prop_assert_eq!(read(METHODS | 3, identity), None);
    }

    #[test]
    fn any_compiled_code_is_read_as_it_was_written(
        methods in prop::collection::vec(any_method(), 4),
        positions in any_positions(),
        wanted in 0_u32..110_000,
        version in 0_usize..6,
    ) {
        let (_, layout) = layouts()[version];
        let mut world = World::new(layout);
        methods.iter().enumerate().for_each(|(index, method)| world.put_method(index, method));
        world.put_compiled("nmethod", &positions);
        let (_, memory) = memory_of(&world.bytes);
        let identity = Blob::read(&memory, &layout, BLOB).unwrap().identity(&memory, &layout).unwrap();
        let read = |position: u32| Function::read(&memory, &layout, BLOB | CODE, position, identity).unwrap().calls(0);
        let itself = vec![Inlined { method: 0, bytecode: None }];
        let chain = positions.iter().find(|(position, _)| wanted <= *position).map_or(&itself, |(_, chain)| chain);
        let calls: Vec<Call> = chain.iter().map(|at| expected(&methods[at.method], at.bytecode)).collect();
        prop_assert_eq!(read(wanted + CODE_OFFSET), calls.clone());
        prop_assert_eq!(&read((wanted + CODE_OFFSET) | WITHOUT_INLINED)[..], &calls[calls.len() - 1..]);
        prop_assert_eq!(Function::read(&memory, &layout, BLOB | CODE, wanted, identity ^ 2), None);
    }
}

#[test]
fn wrappers_have_their_method_and_stubs_their_name() {
    let method =
        WrittenMethod { class: "a/B".into(), name: "c".into(), file: String::new(), lines: Vec::new(), code_size: 0 };
    for (version, layout) in layouts() {
        for (blob, name) in [("native nmethod", "a.B.c"), ("StubRoutines (1)", "[StubRoutines (1)]")] {
            let mut world = World::new(layout);
            world.put_method(0, &method);
            world.put_compiled(blob, &[(3, vec![Inlined { method: 0, bytecode: Some(1) }])]);
            let (_, memory) = memory_of(&world.bytes);
            let identity = Blob::read(&memory, &layout, BLOB).unwrap().identity(&memory, &layout).unwrap();
            let calls = Function::read(&memory, &layout, BLOB | CODE, CODE_OFFSET, identity).unwrap().calls(0);
            assert_eq!(calls, [Call { function: name.to_owned(), ..Call::default() }], "{version}");
        }
    }
}

#[test]
fn frames_in_the_java_heap_and_hidden_classes_have_names() {
    let (_, layout) = layouts()[4];
    let mut world = World::new(layout);
    let class = "a/B$$Lambda+0x00007f1234".to_owned();
    let method = WrittenMethod { class, name: "run".into(), file: String::new(), lines: Vec::new(), code_size: 1 };
    world.put_method(0, &method);
    let (_, memory) = memory_of(&world.bytes);
    let identity = identity_of(&memory, &layout, METHODS).unwrap();
    let name = |address, identity| Function::read(&memory, &layout, address, 0, identity).unwrap().calls(0).remove(0);
    assert_eq!(name(METHODS | INTERPRETED, identity).function, "a.B$$Lambda.run");
    assert_eq!(name(CODE, 1).function, "[frames in the Java heap]");
}

const INTERPRETED_METHOD: u64 = METHODS | INTERPRETED;

#[test]
fn damaged_functions_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 5000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let method = WrittenMethod {
        class: "a/B".into(),
        name: "c".into(),
        file: "B.java".into(),
        lines: vec![(0, 10), (7, 1000)],
        code_size: 20,
    };
    let chain = vec![Inlined { method: 1, bytecode: Some(3) }, Inlined { method: 0, bytecode: Some(8) }];
    let worlds: Vec<_> = layouts()
        .into_iter()
        .map(|(_, layout)| {
            let mut world = World::new(layout);
            (0..2).for_each(|index| world.put_method(index, &method));
            world.put_compiled("nmethod", &[(5, chain.clone()), (50, chain.clone())]);
            let (file, memory) = memory_of(&world.bytes);
            file.set_len(damage::MEMORY_BYTES).unwrap();
            (layout, world.bytes, file, memory)
        })
        .collect();
    let mut limit = Limit::new(Duration::from_millis(50), 1 << 20);
    let (mut read, mut refused) = (0, 0);
    for case in 0..cases {
        let (layout, bytes, file, memory) = &worlds[below(&mut random, worlds.len())];
        let damaged: Vec<(u64, u8)> = (0..=below(&mut random, 4))
            .map(|_| {
                let object = [METHODS, METHODS + METHOD_BYTES, BLOB][below(&mut random, 3)];
                // Objects lie at multiples of 512 bytes.
                let part = 512 * below(&mut random, METHOD_BYTES as usize / 512) as u64;
                (object + part + below(&mut random, 80) as u64, below(&mut random, 256) as u8)
            })
            .collect();
        damaged.iter().for_each(|(at, byte)| file.write_all_at(&[*byte], *at).unwrap());
        let position = below(&mut random, 100) as u32 + CODE_OFFSET;
        for address in [BLOB | CODE, INTERPRETED_METHOD] {
            let calls = limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || {
                let identity = match address {
                    INTERPRETED_METHOD => identity_of(memory, layout, METHODS),
                    _ => Blob::read(memory, layout, BLOB).and_then(|blob| blob.identity(memory, layout)),
                };
                Some(Function::read(memory, layout, address, position, identity.unwrap_or(1))?.calls(position))
            });
            let Some(calls) = calls else {
                refused += 1;
                continue;
            };
            assert!(calls.len() <= SCOPES_MAX, "seed {seed}");
            assert!(calls.iter().all(|call| call.function.len() <= NAME_BYTES_MAX + 2), "seed {seed}");
            read += 1;
        }
        for (at, _) in damaged {
            file.write_all_at(&bytes[at as usize..=at as usize], at).unwrap();
        }
    }
    assert!(cases / 10 < read && cases / 100 < refused, "{read} were read, {refused} refused");
    report::note(&format!("{cases} damaged functions of HotSpot, twice: {read} are read, {limit}"));
}
