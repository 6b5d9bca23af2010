//! Functions in the memory of this process.

use std::sync::Arc;
use std::time::Duration;

use ebpf::{LOOP_PARTS, RUNTIME_OFFSETS, Runtime, RuntimeKind, THREAD_POINTERS};

use super::*;
use crate::process::test_record::start_boottime_ns;
use crate::runtimes::Runtimes;
use crate::runtimes::function_cache::FunctionCache;
use crate::runtimes::languages::php::layout::Version;
use crate::runtimes::languages::python::code::identity_of;
use crate::runtimes::languages::python::code::tests::{OBJECTS_BYTES, objects};
use crate::runtimes::languages::python::layout::layout_of;
use crate::runtimes::languages::{php, python};

const SECOND_NS: u64 = 1_000_000_000;

/// A function in the memory of this process, and the tables of an agent that knows its runtime.
struct World {
    /// Words, because the objects have addresses that are multiples of 8.
    memory: Box<[u64]>,
    layout: python::layout::Layout,
    runtime: u16,
    tables: SharedTables,
    functions: RuntimeFunctions,
}

impl World {
    fn new() -> Self {
        let runtimes = Runtimes::default();
        let layout = layout_of(12).unwrap();
        let runtime = Runtime {
            kind: RuntimeKind::Python,
            loops: [const { 0..0 }; LOOP_PARTS],
            threads: [None; THREAD_POINTERS],
            callers: 0..0,
            extra: 0,
            offsets: [0; RUNTIME_OFFSETS],
        };
        let runtime = runtimes.insert(runtime, Layout::Python(layout));
        let tables = SharedTables::new(Arc::default(), runtimes);
        let memory = vec![0; OBJECTS_BYTES / 8].into();
        Self { memory, layout, runtime, tables, functions: RuntimeFunctions::default() }
    }

    /// Places a function in memory. Returns its position.
    fn place(&mut self, name: &str, first_line: u32) -> Position {
        let address = self.memory.as_ptr() as u64;
        let bytes = objects(&self.layout, address, name, "/program.py", first_line, &[]);
        for (to, word) in self.memory.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_ne_bytes(*word);
        }
        let memory = ProcessMemory::open(own_key()).unwrap();
        let identity = identity_of(&memory, &self.layout, address).unwrap();
        // Before the first instruction, the line is the first one.
        Position { function: FunctionKey { runtime: self.runtime, address, identity }, position: u32::MAX }
    }

    /// Returns the name of the function at a position, or of a marker.
    fn name(&mut self, key: ProcessKey, at: Position, now_ns: u64) -> String {
        self.functions.find(key, [at].into_iter(), now_ns, &mut self.tables);
        let (id, _) = self.functions.locate(at, &mut self.tables);
        name_of(&self.tables, id)
    }
}

fn name_of(tables: &SharedTables, id: LocationId) -> String {
    let locations = &tables.locations;
    match locations.get(id).unwrap() {
        Location::Lines { lines, .. } => locations.name(locations.lines(lines)[0].function.name).to_owned(),
        Location::Marker(marker) => marker.name().to_owned(),
        other => panic!("{other:?}"),
    }
}

fn own_key() -> ProcessKey {
    let pid = std::process::id();
    ProcessKey { pid, start_boottime_ns: start_boottime_ns(pid), exec_id: 1 }
}

#[test]
fn a_name_is_read_once_a_minute_and_only_if_the_object_is_the_same() {
    let mut world = World::new();
    let first = world.place("first", 1);
    assert_eq!(world.name(own_key(), first, 1100 * SECOND_NS), "first");
    // Another function has the same numbers and the same pointers.
    let same = world.place("other", 1);
    assert_eq!(same, first);
    assert_eq!(world.name(own_key(), first, 1160 * SECOND_NS), "first");
    assert_eq!(world.name(own_key(), first, 1161 * SECOND_NS), "other");
    let second = world.place("second", 2);
    assert_eq!(world.name(own_key(), second, 1162 * SECOND_NS), "second");
    assert_eq!(world.name(own_key(), first, 1300 * SECOND_NS), "[function gone]");
}

#[test]
fn a_marker_tells_why_a_function_has_no_name() {
    let mut world = World::new();
    let at = world.place("function", 1);
    let key = own_key();
    let ended = ProcessKey { start_boottime_ns: key.start_boottime_ns + SECOND_NS, ..key };
    assert_eq!(world.name(ended, at, 1), "[process exited]");
    let function = at.function;
    for gone in [
        FunctionKey { identity: 0, ..function },
        FunctionKey { address: 8, ..function },
        FunctionKey { runtime: function.runtime + 1, ..function },
    ] {
        assert_eq!(world.name(key, Position { function: gone, ..at }, 1), "[function gone]");
    }
    world.functions.reads.count(Duration::from_secs(2), Duration::ZERO);
    assert_eq!(world.name(key, at, 1), "[function unread]");
    world.functions = RuntimeFunctions::default();
    world.functions.reads.count(Duration::ZERO, Duration::from_secs(2));
    assert_eq!(world.name(key, at, 1), "[function unread]");
    // The limit of one process is not that of the others.
    world.functions = RuntimeFunctions::default();
    assert_eq!(world.name(key, at, 1), "function");
    // A new line of a named function needs no read.
    world.functions.reads.count(Duration::from_secs(2), Duration::ZERO);
    assert_eq!(world.name(key, Position { position: 0, ..at }, 1), "function");
}

#[test]
fn functions_of_a_program_that_makes_many_take_bounded_memory() {
    let mut world = World::new();
    world.functions.reads = ReadLimit::none();
    world.tables.function_reads = ReadLimit::none();
    let long = "x".repeat(500);
    for number in 1..=10_000 {
        let at = world.place(&long, number);
        assert_eq!(world.name(own_key(), at, 1), long);
        assert!(world.functions.bytes() < 5 << 20, "{}", world.functions.bytes());
    }
    let unreadable = world.place("unreadable", 1);
    for address in 0..10_000 {
        let function = FunctionKey { address: 8 * address, ..unreadable.function };
        assert_eq!(world.name(own_key(), Position { function, ..unreadable }, 1), "[function gone]");
        assert!(world.functions.bytes() < 5 << 20, "{}", world.functions.bytes());
    }
}

#[test]
fn a_function_that_was_gone_is_read_again_soon() {
    let mut world = World::new();
    let at = world.place("of_a_request", 1);
    let objects = world.memory.clone();
    world.memory.fill(0);
    assert_eq!(world.name(own_key(), at, 2 * SECOND_NS), "[function gone]");
    // The next request makes the same function at the same address.
    world.memory.copy_from_slice(&objects);
    assert_eq!(world.name(own_key(), at, 2 * SECOND_NS + 99_999_999), "[function gone]");
    assert_eq!(world.name(own_key(), at, 2 * SECOND_NS + 100_000_000), "of_a_request");
}

#[test]
fn many_functions_and_positions_of_one_stack_are_found_at_once() {
    let world = World::new();
    let stack: Vec<World> = (0..3 * BATCH_MAX).map(|_| World::new()).collect();
    let World { mut tables, mut functions, .. } = world;
    let place = |(number, mut world): (usize, World)| {
        let at = world.place(&format!("function_{number}"), 1);
        let positions = [0, 2, u32::MAX].map(|position| Position { position, ..at });
        // The memory stays as it is, because the function is in it.
        (positions, world)
    };
    let placed: Vec<_> = stack.into_iter().enumerate().map(place).collect();
    let gone = Position { function: FunctionKey { address: 8, ..placed[0].0[0].function }, position: 0 };
    let positions: Vec<Position> = placed.iter().flat_map(|(positions, _)| *positions).chain([gone]).collect();
    // A recursive function has the same position again and again.
    functions.find(own_key(), positions.iter().chain(&positions).copied(), 1, &mut tables);
    for (index, at) in positions.iter().enumerate() {
        let (id, is_lasting) = functions.locate(*at, &mut tables);
        let expected = if *at == gone { "[function gone]".to_owned() } else { format!("function_{}", index / 3) };
        assert_eq!((name_of(&tables, id), is_lasting), (expected, *at != gone));
    }
}

#[test]
fn a_copy_that_is_gone_has_the_name_of_one_that_was_read() {
    let mut world = World::new();
    let at = world.place("closure", 1);
    let memory = ProcessMemory::open(own_key()).unwrap();
    let FunctionKey { runtime, address, identity } = at.function;
    let read = || {
        let layout = Layout::Python(world.layout);
        Function::read(&memory, &layout, &Sources::default(), (address, at.position, identity))
    };
    let copy = CopyKey { runtime, kind: 0, identity };
    let mut cache = FunctionCache::default();
    let key = |address| (FunctionKey { runtime, address, identity }, 0);
    assert!(cache.insert(key(8), Some(copy), None).is_none(), "no copy is known yet");
    assert!(cache.insert(key(address), Some(copy), read()).is_some());
    assert!(cache.insert(key(16), Some(copy), None).is_some());
    assert!(cache.get(key(16)).is_some() && cache.get(key(8)).is_none());
    for other in [
        None,
        Some(CopyKey { runtime: runtime + 1, kind: 0, identity }),
        Some(CopyKey { runtime, kind: 1, identity }),
        Some(CopyKey { runtime, kind: 0, identity: identity ^ 2 }),
    ] {
        assert!(cache.insert(key(24), other, None).is_none(), "{other:?}");
    }
    // A copy is still known for a minute after all functions were forgotten.
    assert!(cache.earlier(copy).is_none());
    cache.forget();
    assert!(cache.get(key(address)).is_none() && cache.insert(key(8), Some(copy), None).is_none());
    assert!(cache.earlier(copy).is_some() && cache.earlier(CopyKey { kind: 1, ..copy }).is_none());
    cache.forget();
    assert!(cache.earlier(copy).is_none());
}

/// Places the code of a PHP file in memory, which PHP copies for each request. Returns its position.
fn place_php(memory: &mut [u64], tables: &SharedTables) -> Position {
    place_php_at_line(memory, tables, 0)
}

/// Like [`place_php`], for code with these first and last lines.
fn place_php_at_line(memory: &mut [u64], tables: &SharedTables, line: u64) -> Position {
    let layout = php::layout::layout_of(Version { major: 8, minor: 2 }).unwrap();
    let address = memory.as_ptr() as u64;
    let text = 64;
    memory[0] = 2;
    memory[usize::from(layout.file) / 8 + 1] = line << 32 | line;
    memory[usize::from(layout.instructions) / 8] = 0x1000;
    memory[usize::from(layout.file) / 8] = address + 8 * text as u64;
    // Type, hash, length, and bytes of a string.
    memory[text..text + 4].copy_from_slice(&[0x16 << 32, 1, 5, u64::from_ne_bytes(*b"/file\0\0\0")]);
    let address = address | 1;
    let own = ProcessMemory::open(own_key()).unwrap();
    let identity = php::function::identity_of(&own, &layout, address, php::function::Text::Read).unwrap();
    let runtime = Runtime {
        kind: RuntimeKind::Php,
        loops: [const { 0..0 }; LOOP_PARTS],
        threads: [None; THREAD_POINTERS],
        callers: 0..0,
        extra: 0,
        offsets: [0; RUNTIME_OFFSETS],
    };
    let runtime = tables.runtimes.insert(runtime, Layout::Php(layout));
    Position { function: FunctionKey { runtime, address, identity }, position: 0 }
}

#[test]
fn a_copy_has_its_name_until_all_copies_were_gone_for_a_minute() {
    let mut world = World::new();
    let mut memory = vec![0_u64; 128];
    let at = place_php(&mut memory, &world.tables);
    assert_eq!(world.name(own_key(), at, 1100 * SECOND_NS), "{include}");
    memory.fill(0);
    let other = Position { function: FunctionKey { address: at.function.address + 8, ..at.function }, ..at };
    assert_eq!(world.name(own_key(), other, 1101 * SECOND_NS), "{include}");
    // All functions are read again after a minute.
    for seconds in [1161, 1180, 1220] {
        assert_eq!(world.name(own_key(), at, seconds * SECOND_NS), "{include}");
        assert!(!world.functions.locate(at, &mut world.tables).1, "it is sought again");
    }
    assert_eq!(world.name(own_key(), at, 1222 * SECOND_NS), "[function gone]");
}

#[test]
fn a_copy_is_forgotten_after_two_minutes_without_samples() {
    let mut world = World::new();
    let mut memory = vec![0_u64; 128];
    let at = place_php(&mut memory, &world.tables);
    assert_eq!(world.name(own_key(), at, 1100 * SECOND_NS), "{include}");
    memory.fill(0);
    assert_eq!(world.name(own_key(), at, 1221 * SECOND_NS), "[function gone]");
}

#[test]
fn copies_of_many_functions_take_bounded_memory() {
    let mut world = World::new();
    world.functions.reads = ReadLimit::none();
    world.tables.function_reads = ReadLimit::none();
    let mut memory = vec![0_u64; 128];
    let at = place_php(&mut memory, &world.tables);
    for line in 1..=40_000 {
        let at = place_php_at_line(&mut memory, &world.tables, line);
        assert_eq!(world.name(own_key(), at, SECOND_NS), "{include}", "{line}");
        assert!(world.functions.bytes() < 5 << 20, "{}", world.functions.bytes());
    }
    assert_ne!(place_php_at_line(&mut memory, &world.tables, 2), at, "lines are part of the identity");
}

#[test]
fn a_function_that_one_process_has_is_known_in_its_family_only() {
    let mut world = World::new();
    let mut memory = vec![0_u64; 128];
    let at = place_php(&mut memory, &world.tables);
    assert_eq!(world.name(own_key(), at, SECOND_NS), "{include}");
    memory.fill(0);
    // Another process of the family has the same function, and another program does not.
    let first = std::mem::take(&mut world.functions);
    assert_eq!(world.name(own_key(), at, SECOND_NS), "{include}");
    drop(first);
    world.functions = RuntimeFunctions::default();
    world.tables.families = family::Families::default();
    assert_eq!(world.name(own_key(), at, SECOND_NS), "[function gone]");
    // That it is gone in one process does not keep others from reading it.
    let again = place_php(&mut memory, &world.tables);
    assert_eq!((again, world.name(own_key(), at, SECOND_NS)), (at, "[function gone]".to_owned()));
    let second = std::mem::take(&mut world.functions);
    assert_eq!(world.name(own_key(), at, SECOND_NS), "{include}");
    drop(second);
}

#[test]
fn a_function_whose_identity_has_no_name_is_known_in_one_process_only() {
    let mut world = World::new();
    let at = world.place("before", 1);
    assert_eq!(world.name(own_key(), at, SECOND_NS), "before");
    let first = std::mem::take(&mut world.functions);
    // A process that was forked has made another function with the same number.
    assert_eq!(world.place("after", 1), at);
    assert_eq!(world.name(own_key(), at, SECOND_NS), "after");
    drop(first);
}

#[test]
fn a_process_that_changes_its_user_leaves_its_family_within_a_minute() {
    let mut families = family::Families::default();
    let (root, user) = (Family::of_test([1; 16], "0"), Family::of_test([1; 16], "33"));
    let master = Membership::of(Some(root.clone()), None, 0, &mut families);
    let worker = Membership::of(Some(root.clone()), None, 0, &mut families);
    assert_eq!(master.functions.part_of(100), 50, "both have the same functions");
    assert!(!worker.is_old(60 * SECOND_NS) && worker.is_old(60 * SECOND_NS + 1));
    let worker = Membership::of(Some(user), Some(worker), 61 * SECOND_NS, &mut families);
    assert_eq!((master.functions.part_of(100), worker.functions.part_of(100)), (100, 100));
    let same = Membership::of(Some(root), Some(master), 61 * SECOND_NS, &mut families);
    assert_eq!(same.functions.part_of(100), 100);
}
