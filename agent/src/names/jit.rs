//! Code in memory without a file, as JIT compilers write it. The perf map of the process names such code, if there is
//! one. Otherwise a marker says what is missing.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::names::location::{FrameType, Location, LocationId, Marker};
use crate::names::perf_map::{self, PerfMap};
use crate::names::shared_tables::SharedTables;
use crate::process::maps::Maps;
use crate::process::procfs;
use crate::runtimes::reader::{Late, Timed};

/// Time between two reads of a perf map, in nanoseconds.
const REFRESH_INTERVAL_NS: u64 = 1_000_000_000;
/// Time between two attempts to find a perf map, in nanoseconds.
const SEARCH_INTERVAL_NS: u64 = 5_000_000_000;
/// Largest number of addresses that are cached for one process.
const ADDRESSES_MAX: usize = 32_768;
/// Largest number of bytes that are read from /proc/<pid>/status, which has about 60 lines.
const STATUS_BYTES_MAX: u64 = 16 << 10;

/// The JIT-compiled code of one process.
#[derive(Debug, Default)]
pub(crate) struct Jit {
    /// Locked by the thread that reads it, also if the read is late.
    perf_map: Arc<Mutex<PerfMap>>,
    /// True if the last read found no perf map.
    is_missing: bool,
    next_read_ns: u64,
    /// A read that was late. Nothing more is read of this process until it has returned.
    late: Option<Late>,
    /// Locations by address; void when the perf map changes.
    locations: HashMap<u64, LocationId, RandomState>,
    /// The kind of compiled code, if it was needed; void when the mappings change.
    runtime: Option<FrameType>,
}

impl Jit {
    /// Returns the location of `address`, which lies in memory without a file, and true if the location has a name.
    pub(crate) fn locate(
        &mut self,
        pid: u32,
        address: u64,
        ktime_ns: u64,
        maps: &Maps,
        tables: &mut SharedTables,
    ) -> (LocationId, bool) {
        if self.next_read_ns <= ktime_ns {
            self.read(ktime_ns, tables, move || PerfMap::open(pid, namespace_pid(pid).ok_or(io::ErrorKind::NotFound)?));
        }
        if let Some(id) = self.locations.get(&address) {
            return (*id, true);
        }
        let runtime = *self.runtime.get_or_insert_with(|| runtime(maps));
        let perf_map = self.perf_map.try_lock();
        let Some(name) = perf_map.as_ref().and_then(|perf_map| perf_map.find(address)) else {
            let marker = if self.is_missing { without_perf_map(runtime) } else { Marker::AnonymousCode };
            return (tables.locations.insert(Location::Marker(marker)), false);
        };
        let frame_type = perf_map::frame_type_of(name).unwrap_or(runtime);
        let id = tables.locations.insert_named(shown(name, frame_type), None, frame_type);
        if self.locations.len() < ADDRESSES_MAX {
            self.locations.insert(address, id);
        }
        (id, true)
    }

    /// Reads new lines of the perf map that `open` opens, if there is one. The program may have put its folder on a
    /// file system that never answers, so another thread reads.
    fn read(
        &mut self,
        ktime_ns: u64,
        tables: &mut SharedTables,
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
    ) {
        if self.late.take_if(|late| late.has_returned()).is_none() && self.late.is_some() || tables.reads.is_reached() {
            return;
        }
        let perf_map = Arc::clone(&self.perf_map);
        let began = Instant::now();
        let read = tables.reader.run(move || {
            let mut perf_map = perf_map.lock();
            perf_map.refresh(&open()?)
        });
        tables.reads.count(began.elapsed());
        let is_changed = match read {
            Ok(Timed { result, .. }) => {
                self.is_missing = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
                result.ok()
            }
            Err(late) => {
                self.late = Some(late);
                Some(true)
            }
        };
        self.next_read_ns = ktime_ns + is_changed.map_or(SEARCH_INTERVAL_NS, |_| REFRESH_INTERVAL_NS);
        if is_changed == Some(true) {
            self.locations.clear();
        }
    }

    pub(crate) fn forget_locations(&mut self) {
        self.locations = HashMap::default();
        self.runtime = None;
    }

    pub(crate) fn addresses(&self) -> usize {
        self.locations.len()
    }

    /// Approximate memory of the perf map, in bytes; 0 while a late read goes on.
    pub(crate) fn bytes(&self) -> usize {
        self.perf_map.try_lock().map_or(0, |perf_map| perf_map.bytes())
    }
}

/// Returns a name of a perf map as it is shown: without the mark that BEAM gives to functions of the program.
fn shown(name: &str, frame_type: FrameType) -> &str {
    let unmarked = (frame_type == FrameType::Beam).then(|| name.strip_prefix('$')).flatten();
    unmarked.unwrap_or(name)
}

/// Returns the kind of code that the language runtime of a process compiles. The runtime is recognized by the files
/// that the process has mapped.
fn runtime(maps: &Maps) -> FrameType {
    if maps.has_file("libjvm.so") {
        FrameType::Jvm
    } else if maps.has_file("libcoreclr.so") {
        FrameType::Dotnet
    } else if maps.has_file("beam.smp") {
        FrameType::Beam
    } else if maps.has_file("libluajit") || maps.has_file("luajit") {
        FrameType::LuaJit
    } else {
        FrameType::Native
    }
}

/// Returns the marker of compiled code of a process that has no perf map.
fn without_perf_map(runtime: FrameType) -> Marker {
    match runtime {
        FrameType::Dotnet => Marker::NoDotnetPerfMap,
        FrameType::Beam => Marker::NoBeamPerfMap,
        FrameType::LuaJit => Marker::LuaJitCode,
        _ => Marker::AnonymousCode,
    }
}

/// True if there is a perf map of a process.
pub(crate) fn has_perf_map(pid: u32) -> bool {
    namespace_pid(pid).is_some_and(|namespace_pid| PerfMap::open(pid, namespace_pid).is_ok())
}

/// Returns the pid in the process's own pid namespace: the last number of the line `NSpid`.
fn namespace_pid(pid: u32) -> Option<u32> {
    let status = procfs::read_at_most(format!("/proc/{pid}/status"), STATUS_BYTES_MAX).ok()?;
    let status = String::from_utf8_lossy(&status);
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn code_is_named_by_the_perf_map_in_tmp() {
        let pid = std::process::id();
        assert_eq!(namespace_pid(pid), Some(pid), "the test needs no other pid namespace");
        let path = format!("/tmp/perf-{pid}.map");
        std::fs::write(&path, "1000 100 LazyCompile:*work /a.js:1\n2000 100 stub\n").unwrap();
        let mut tables = SharedTables::new(std::sync::Arc::default(), crate::runtimes::Runtimes::default());
        let maps = Maps::default();
        let mut jit = Jit::default();
        let mut check = |address, expected: Option<(&str, FrameType)>| {
            let (id, _) = jit.locate(pid, address, 1, &maps, &mut tables);
            let found = match tables.locations.get(id) {
                Some(Location::Named { name, frame_type, .. }) => Some((tables.locations.name(name), frame_type)),
                Some(Location::Marker(Marker::AnonymousCode)) => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(found, expected, "{address:x}");
        };
        check(0x1050, Some(("LazyCompile:*work /a.js:1", FrameType::V8)));
        check(0x2050, Some(("stub", FrameType::Native)));
        check(0x3050, None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn code_without_a_perf_map_says_what_is_missing() {
        let mut tables = SharedTables::new(std::sync::Arc::default(), crate::runtimes::Runtimes::default());
        for (path, expected) in [
            ("/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.1/libcoreclr.so", Marker::NoDotnetPerfMap),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", Marker::NoBeamPerfMap),
            ("/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2.1.0", Marker::LuaJitCode),
            ("/usr/bin/luajit-2.1.0-beta3", Marker::LuaJitCode),
            ("/usr/bin/qemu-system-x86_64", Marker::AnonymousCode),
        ] {
            let maps = Maps::read(format!("1000-2000 r-xp 0 08:01 7 {path}\n").as_bytes()).unwrap();
            // No process has this pid, so there is no perf map.
            let (id, is_lasting) = Jit::default().locate(u32::MAX, 0x5000, 1, &maps, &mut tables);
            let found = tables.locations.get(id);
            assert_eq!((found, is_lasting), (Some(Location::Marker(expected)), false), "{path}");
        }
    }

    #[test]
    fn names_are_read_on_after_a_late_read() {
        let mut tables = SharedTables::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut file = tempfile::tempfile().unwrap();
        writeln!(file, "1000 100 first").unwrap();
        let mut jit = Jit::default();
        let same = |file: &File| file.try_clone().unwrap();
        let is_named = |jit: &Jit, address: u64| jit.perf_map.try_lock().is_some_and(|map| map.find(address).is_some());
        let first = same(&file);
        jit.read(0, &mut tables, move || Ok(first));
        assert!(is_named(&jit, 0x1000));
        writeln!(file, "2000 100 second").unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let late = same(&file);
        jit.read(0, &mut tables, move || {
            assert!(released.recv().is_err());
            Ok(late)
        });
        assert!(jit.late.is_some() && !is_named(&jit, 0x1000) && jit.bytes() == 0);
        jit.read(0, &mut tables, || panic!("the late read still goes on"));
        drop(release);
        while !jit.late.as_ref().unwrap().has_returned() {
            std::thread::yield_now();
        }
        assert!(is_named(&jit, 0x1000) && is_named(&jit, 0x2000));
        tables.reads = crate::process::rate_limit::RateLimit::new(50);
        jit.read(0, &mut tables, || Err(io::ErrorKind::NotFound.into()));
        assert!(jit.late.is_none() && jit.is_missing);
    }

    #[test]
    fn names_of_beam_have_no_mark() {
        assert_eq!(shown("$lists:map/2", FrameType::Beam), "lists:map/2");
        assert_eq!(shown("global::process_main", FrameType::Beam), "global::process_main");
        assert_eq!(shown("$f", FrameType::Native), "$f");
    }
}
