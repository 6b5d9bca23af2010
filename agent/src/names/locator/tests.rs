//! Locations of whole stacks: markers, rereads of mappings, and bounded memory.

use super::*;
use crate::names::location::FrameType;
use crate::process::maps::Maps;
use crate::process::test_record::TestRecord;

/// Returns the stack of one sample, leaf first: names of markers and functions, `native` for addresses in files.
fn stack(locator: &mut Locator, record: &TestRecord<'_>) -> Vec<String> {
    let bytes = record.bytes();
    let mut ids = Vec::new();
    locator.locate(&Sample::read(&bytes).unwrap(), &mut ids);
    let describe = |id: &LocationId| match locator.tables.locations.get(*id).unwrap() {
        Location::Native { .. } => "native".to_owned(),
        Location::Named { name, .. } => locator.tables.locations.name(name).to_owned(),
        Location::Lines { place, .. } => format!("lines {place:x?}"),
        Location::Marker(marker) => marker.name().to_owned(),
    };
    ids.iter().map(describe).collect()
}

/// Returns an encoded frame at an address in the code of this test, whose file has number 1.
fn code() -> u64 {
    crate::process::file::table::FileTable::default().number_own(stack as *const () as u64)
}

/// Returns a locator that knows file number 1.
fn locator() -> Locator {
    let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
    locator.tables.files.number_own(stack as *const () as u64);
    locator
}

/// An address that no process has mapped.
const UNMAPPED: u64 = 0x1000;

/// Maps executable memory without a file, as JIT compilers do.
#[allow(unsafe_code, reason = "the standard library maps no executable memory")]
fn executable_page(sharing: i32) -> u64 {
    let protection = libc::PROT_EXEC;
    // SAFETY: a new mapping, which is never touched or unmapped.
    unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_ANONYMOUS | sharing, -1, 0) as u64 }
}

#[test]
fn the_memory_of_all_processes_is_bounded() {
    let mut locator = locator();
    let count = |locator: &Locator| locator.processes.values().map(Process::bytes).sum::<usize>();
    let sample = |locator: &mut Locator, exec_id| {
        stack(locator, &TestRecord { user: &[UNMAPPED], exec_id, ..TestRecord::default() });
    };
    for exec_id in 0..20 {
        sample(&mut locator, exec_id);
    }
    assert_eq!((locator.processes.len(), locator.processes_bytes), (20, count(&locator)));
    assert!(Maps::of_process(std::process::id()).unwrap().bytes() < locator.processes_bytes / 20);
    locator.processes_bytes = PROCESSES_BYTES_MAX + 1;
    sample(&mut locator, 20);
    assert_eq!((locator.processes.len(), locator.processes_bytes), (11, count(&locator)));
}

#[test]
fn a_process_is_read_later_if_the_rate_limit_is_reached() {
    let mut locator = locator();
    locator.tables.reads.run(|| std::thread::sleep(std::time::Duration::from_millis(250)));
    let user = [executable_page(libc::MAP_PRIVATE)];
    let record = TestRecord { user: &user, ..TestRecord::default() };
    assert_eq!(stack(&mut locator, &record), ["[mappings unreadable]"]);
    locator.tables.reads = crate::process::rate_limit::RateLimit::new(50);
    let record = TestRecord { ktime_ns: 200_000_000, ..record };
    assert_eq!(stack(&mut locator, &record), ["[anonymous code]"]);
}

#[test]
fn a_kernel_part_of_the_maximum_depth_is_marked_as_truncated() {
    let mut locator = locator();
    assert!((1..=KERNEL_FRAMES_MAX).contains(&locator.kernel_frames_max), "{}", locator.kernel_frames_max);
    locator.kernel_frames_max = 2;
    for (kernel, is_truncated) in [(&[1][..], false), (&[1, 2], true)] {
        let stack = stack(&mut locator, &TestRecord { kernel, user: &[code()], ..TestRecord::default() });
        assert_eq!(stack.contains(&"[truncated stack]".to_owned()), is_truncated, "{stack:?}");
    }
}

#[test]
fn markers_replace_missing_frames() {
    let mut locator = locator();
    for (user, user_end, expected) in [
        (&[code(), code() + 1][..], 1, &["native", "native"][..]),
        (&[code(), code() + 1], 2, &["native", "native", "[unwinding failed]"]),
        (&[code()], 3, &["native", "[truncated stack]"]),
        (&[code()], 4, &["native", "[32-bit stack]"]),
        (&[UNMAPPED, code()], 1, &["[no mapping]", "native"]),
        // After an address that is no return address, no frame is valid.
        (&[code(), UNMAPPED, code()], 1, &["native", "[unwinding failed]"]),
        (&[code(), UNMAPPED, code()], 2, &["native", "[unwinding failed]"]),
        (&[UNMAPPED, UNMAPPED], 2, &["[no mapping]", "[unwinding failed]"]),
    ] {
        let record = TestRecord { user, user_end, ..TestRecord::default() };
        assert_eq!(stack(&mut locator, &record), expected, "{user:x?} {user_end}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn functions_of_an_interpreter_stay_if_native_frames_are_lost() {
    use crate::runtimes::languages::{Layout, python};
    let mut locator = locator();
    let runtime = ebpf::Runtime {
        kind: ebpf::RuntimeKind::Python,
        loops: [0..0, 0..0],
        threads: [None, None],
        callers: 0..0,
        extra: 0,
        offsets: [0; _],
    };
    let layout = Layout::Python(python::layout::layout_of(12).unwrap());
    let known = u64::from(locator.tables.runtimes.insert(runtime, layout));
    for (id, expected) in [
        (known, &["native", "[unwinding failed]", "[function gone]"][..]),
        (known + 1, &["native", "[unwinding failed]"]),
    ] {
        let function = 1 << 62 | id << 48 | 0x1000;
        let user = &[code(), UNMAPPED, code(), function, 1 << 32, code()];
        let record = TestRecord { user, user_end: 2, ..TestRecord::default() };
        assert_eq!(stack(&mut locator, &record), expected, "{id}");
    }
}

#[test]
fn frames_in_files_need_no_mappings() {
    let mut locator = locator();
    stack(&mut locator, &TestRecord { user: &[code()], ..TestRecord::default() });
    let without = locator.processes_bytes;
    stack(&mut locator, &TestRecord { user: &[code(), UNMAPPED], ..TestRecord::default() });
    assert_eq!(locator.processes_bytes, without + Maps::of_process(std::process::id()).unwrap().bytes());
}

#[test]
fn samples_of_an_ended_process_have_one_marker_frame() {
    let mut locator = locator();
    let record = TestRecord { pid: u32::MAX, comm: "gone", user: &[1, 2, 3], user_end: 2, ..TestRecord::default() };
    assert_eq!(stack(&mut locator, &record), ["[process exited]", "[unwinding failed]"]);
    let bytes = record.bytes();
    let resource = locator.resource(&Sample::read(&bytes).unwrap());
    assert_eq!(resource.attributes, [("process.executable.name".to_owned(), "gone".to_owned())]);
}

#[test]
fn the_kernel_part_comes_first_and_all_but_its_leaf_are_return_addresses() {
    let mut locator = locator();
    let Ok(symbols) = crate::names::kernel_symbols::KernelSymbols::load() else {
        return testkit::report::skipped(
            "the_kernel_part_comes_first_and_all_but_its_leaf_are_return_addresses",
            "kallsyms",
        );
    };
    let start = symbols.address_of("schedule").unwrap();
    let before = symbols.find(start - 1).map_or("[no kernel symbol]", |(name, _)| name);
    let kernel = [start, start];
    let record = TestRecord { kernel: &kernel, user: &[code()], ..TestRecord::default() };
    assert_eq!(stack(&mut locator, &record), ["schedule", before, "native"]);
}

#[test]
fn consecutive_anonymous_frames_are_one_marker() {
    let page = executable_page(libc::MAP_PRIVATE);
    let mut locator = locator();
    let user = [page, page + 8, code()];
    assert_eq!(
        stack(&mut locator, &TestRecord { user: &user, ..TestRecord::default() }),
        ["[anonymous code]", "native"]
    );
}

#[test]
fn shared_memory_in_which_a_program_compiles_is_anonymous() {
    let mut locator = locator();
    let user = [locator.tables.files.number_own(executable_page(libc::MAP_SHARED))];
    let names = stack(&mut locator, &TestRecord { user: &user, ..TestRecord::default() });
    assert_eq!(names, ["[anonymous code]"]);
}

#[test]
fn mappings_are_read_again_for_an_unknown_address_after_some_time() {
    let mut locator = locator();
    stack(&mut locator, &TestRecord { user: &[UNMAPPED], ..TestRecord::default() });
    let page = executable_page(libc::MAP_PRIVATE);
    let user = [page, code()];
    let mut at = |ktime_ns| stack(&mut locator, &TestRecord { ktime_ns, user: &user, ..TestRecord::default() });
    assert_eq!(at(50_000_000), ["[no mapping]", "native"]);
    assert_eq!(at(200_000_000), ["[anonymous code]", "native"]);
}

#[test]
fn location_ids_are_not_used_after_the_tables_are_cleared() {
    let mut locator = locator();
    let record = TestRecord { user: &[code()], ..TestRecord::default() };
    let is_own = |locator: &Locator| {
        let file = locator.tables.files.get(crate::process::file::FileId(0)).unwrap();
        *file.name == *std::env::current_exe().unwrap().to_str().unwrap()
    };
    assert_eq!(stack(&mut locator, &record), ["native"]);
    for index in 0..crate::names::location::LOCATIONS_MAX {
        locator.tables.locations.insert_named(&index.to_string(), None, FrameType::Native);
    }
    assert!(locator.is_full());
    assert!(!locator.end_interval(2_000, std::iter::empty()), "files are still known");
    assert!(!locator.is_full() && is_own(&locator));
    assert_eq!(stack(&mut locator, &record), ["native"]);
    locator.tables.files.fill();
    assert!(locator.is_full() && locator.end_interval(2_000, std::iter::empty()));
    assert!(!locator.is_full());
    assert_eq!(stack(&mut locator, &record), ["[file unreadable]"], "until BPF reports the file again");
    locator.tables.files.number_own(stack as *const () as u64);
    assert_eq!(stack(&mut locator, &record), ["native"]);
    assert!(is_own(&locator));
}

#[test]
fn ended_processes_and_too_many_processes_are_forgotten() {
    let mut locator = locator();
    let gone = TestRecord { pid: u32::MAX, user: &[1], ..TestRecord::default() };
    let here = TestRecord { user: &[code()], ..TestRecord::default() };
    for record in [&gone, &here] {
        stack(&mut locator, record);
    }
    locator.end_interval(ENDED_NS - 1, std::iter::empty());
    assert_eq!(locator.processes.len(), 2);
    locator.end_interval(ENDED_NS + 2_000, std::iter::empty());
    assert_eq!(locator.processes.len(), 1);
    locator.end_interval(IDLE_NS + 2_000, std::iter::empty());
    assert_eq!(locator.processes.len(), 0);
    for pid in 0..u32::try_from(PROCESSES_MAX).unwrap() + 1 {
        stack(&mut locator, &TestRecord { pid: 1 << 30 | pid, user: &[1], ..TestRecord::default() });
    }
    locator.end_interval(2_000, std::iter::empty());
    assert_eq!(locator.processes.len(), PROCESSES_MAX / 2 + 1);
}
