//! One program that one process runs: what is known of it, and what its code that is in no file is called.
//!
//! Its identity is (pid, start time, number of execve calls), all from the kernel: a reused pid or a new program in the same
//! process is another [`Process`]. What it is called and where it belongs is read on its first sample; its mappings only once code ran that
//! BPF found in no file, and again when an address lies in none of them, ever more seldom while that does not help; and now and then
//! although every address lies in one, because something else may have come to where one was.
//!
//! Invariant: what was found out about a mapping is used no longer than the mapping is there, but for [`STALE_NS`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ebpf::Sample;
use foldhash::fast::RandomState;

use crate::file::table::FileTable;
use crate::file::{FileId, VDSO};
use crate::jit::Jit;
use crate::location::{FrameType, Location, LocationId, LocationTable, Marker};
use crate::maps::{Backing, Maps};
use crate::pace::Pace;
use crate::procfs;
use crate::resource::Resource;

/// Frames in files that are remembered, at 30 bytes each.
const FRAMES_MAX: usize = 200_000;
/// Shortest and longest time between two readings of the mappings.
const REREAD_NS_MIN: u64 = 100_000_000;
const REREAD_NS_MAX: u64 = 25_600_000_000;
/// After this time, mappings are read again on the next sample. Where that would take too much of the agent's time, later.
const STALE_NS: u64 = 10_000_000_000;

/// The identity of a program that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    pub(crate) start_boottime_ns: u64,
    pub(crate) exec_id: u64,
}

impl ProcessKey {
    pub(crate) fn of(sample: &Sample<'_>) -> Self {
        let header = &sample.header;
        Self { pid: header.pid, start_boottime_ns: header.start_boottime_ns, exec_id: header.exec_id }
    }

    /// Whether the process still exists, and its pid is not another's.
    fn is_running(self) -> bool {
        procfs::is_same_process(self.pid, self.start_boottime_ns)
    }
}

/// What all processes share.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) files: FileTable,
    pub(crate) locations: LocationTable,
    /// Of work without which a sample has no names.
    pub(crate) pace: Pace,
    /// Of work that finds out whether the names are still right: a thousandth of a CPU.
    pub(crate) check_pace: Pace,
    /// Names of variables that are told of each process's environment.
    environment: Arc<[String]>,
    /// Of frames in files, by the file's number and the offset in it.
    frames: HashMap<(u32, u64), LocationId, RandomState>,
}

impl Tables {
    /// Forgets every id.
    pub(crate) fn clear(&mut self) {
        self.locations.clear();
        self.files.clear();
        self.frames.clear();
    }

    /// The location of a frame in a file, and whether it will be the same next time.
    pub(crate) fn locate(&mut self, number: u32, offset: u64) -> (LocationId, bool) {
        if let Some(&id) = self.frames.get(&(number, offset)) {
            return (id, true);
        }
        match self.files.of_number(number) {
            Some(Ok(file)) => {
                let (id, is_lasting) = (native(file, offset, self), !self.files.is_told(file));
                if is_lasting && self.frames.len() < FRAMES_MAX {
                    self.frames.insert((number, offset), id);
                }
                (id, is_lasting)
            }
            Some(Err(reason)) => (self.locations.insert(Location::Marker(reason)), false),
            None => (self.locations.insert(Location::Marker(Marker::FileUnreadable)), false),
        }
    }

    pub(crate) fn new(environment: Arc<[String]>) -> Self {
        let (files, locations) = (FileTable::default(), LocationTable::default());
        let (pace, check_pace) = (Pace::new(50), Pace::new(1000));
        Self { files, locations, pace, check_pace, environment, frames: HashMap::default() }
    }
}

/// A program that runs, or ran.
#[derive(Debug)]
pub(crate) struct Process {
    key: ProcessKey,
    resource: Arc<Resource>,
    /// When the resource is worth another look: the process was met in the middle of execve.
    look_again_ns: Option<u64>,
    /// Or why they are not known.
    maps: Result<Maps, Marker>,
    jit: Jit,
    reread_after_ns: u64,
    reread_interval_ns: u64,
    stale_after_ns: u64,
    pub(crate) last_sample_ns: u64,
}

impl Process {
    /// Reads what is known of the process of `sample`.
    pub(crate) fn of(sample: &Sample<'_>, tables: &mut Tables) -> Self {
        let header = &sample.header;
        let (key, pid, comm) = (ProcessKey::of(sample), header.pid, &header.comm);
        let executable = tables.files.path_of_number(header.executable);
        let ((resource, is_set_up), reason) = if header.kernel_thread != 0 {
            ((Resource::kernel_thread(pid), true), Marker::NoMapping)
        } else if key.is_running() {
            (Resource::of_process(pid, comm, executable, &tables.environment), Marker::MapsUnreadable)
        } else {
            ((Resource::exited(pid, comm, executable), true), Marker::ProcessExited)
        };
        Self {
            key,
            resource: Arc::new(resource),
            look_again_ns: (!is_set_up).then_some(header.ktime_ns + REREAD_NS_MIN),
            maps: Err(reason),
            jit: Jit::default(),
            reread_after_ns: header.ktime_ns,
            reread_interval_ns: REREAD_NS_MIN / 2,
            stale_after_ns: header.ktime_ns + STALE_NS,
            last_sample_ns: header.ktime_ns,
        }
    }

    /// What is known of the process.
    pub(crate) fn resource(&mut self, sample: &Sample<'_>, tables: &Tables) -> Arc<Resource> {
        let header = &sample.header;
        let told = tables.files.path_of_number(header.executable);
        let path = self.resource.executable_path();
        // Once is enough: an environment may also be empty. Or it was not known what the process runs.
        let is_time = self.look_again_ns.take_if(|at_ns| *at_ns <= header.ktime_ns).is_some();
        let says_more = path.is_none() && told.is_some();
        if is_time || says_more {
            let (path, comm) = (path.or(told), &header.comm);
            let resource = if self.key.is_running() {
                Some(Resource::of_process(self.key.pid, comm, path, &tables.environment).0)
            } else {
                says_more.then(|| Resource::exited(self.key.pid, comm, path))
            };
            self.resource = resource.map_or_else(|| Arc::clone(&self.resource), Arc::new);
        }
        Arc::clone(&self.resource)
    }

    /// The location of an address that BPF found in no file, and whether it will be the same next time; `ktime_ns` is when it was met.
    pub(crate) fn locate(&mut self, address: u64, ktime_ns: u64, tables: &mut Tables) -> (LocationId, bool) {
        let marker = |tables: &mut Tables, marker| (tables.locations.insert(Location::Marker(marker)), false);
        if !self.find_mapping(address, ktime_ns, &mut tables.pace) {
            let reason = self.maps.as_ref().err().copied().unwrap_or(Marker::NoMapping);
            return marker(tables, reason);
        }
        let Ok(maps) = &self.maps else { return marker(tables, Marker::NoMapping) };
        match maps.find(address).map(|mapping| &mapping.backing) {
            // BPF had no room for it, or it was about to change.
            Some(Backing::File { .. } | Backing::Vdso) => marker(tables, Marker::FileUnreadable),
            Some(Backing::Anonymous) | None => self.jit.locate(self.key.pid, address, ktime_ns, maps, tables),
        }
    }

    /// Whether a mapping holds `address`, if need be after reading them again.
    fn find_mapping(&mut self, address: u64, ktime_ns: u64, pace: &mut Pace) -> bool {
        let is_known = |maps: &Result<Maps, Marker>| maps.as_ref().is_ok_and(|maps| maps.find(address).is_some());
        if is_known(&self.maps) {
            return true;
        }
        if !self.reread(ktime_ns, pace) || !is_known(&self.maps) {
            return false;
        }
        self.reread_interval_ns = REREAD_NS_MIN;
        self.reread_after_ns = ktime_ns + REREAD_NS_MIN;
        true
    }

    /// Reads the mappings again, and says so, unless that was done lately or it is not time for such work. The next time is twice
    /// as far away as the last one was.
    fn reread(&mut self, ktime_ns: u64, pace: &mut Pace) -> bool {
        if ktime_ns < self.reread_after_ns || !self.read_again(ktime_ns, pace) {
            return false;
        }
        self.reread_interval_ns = (self.reread_interval_ns * 2).min(REREAD_NS_MAX);
        self.reread_after_ns = ktime_ns + self.reread_interval_ns;
        true
    }

    /// Finds out whether what is known of the mappings is still right, if that was not done for long.
    pub(crate) fn check(&mut self, ktime_ns: u64, pace: &mut Pace) {
        if self.stale_after_ns <= ktime_ns && self.maps.is_ok() {
            self.read_again(ktime_ns, pace);
        }
    }

    fn read_again(&mut self, ktime_ns: u64, pace: &mut Pace) -> bool {
        let key = self.key;
        let read = || if key.is_running() { read_maps(key.pid) } else { Err(Marker::ProcessExited) };
        let Some(read) = pace.run(read) else { return false };
        self.stale_after_ns = ktime_ns + STALE_NS;
        match read {
            Ok(maps) => self.take(maps),
            // Of a process that has ended meanwhile, the mappings that it had are still right. One that seemed to have ended
            // may have been in the middle of execve, without mappings.
            Err(reason) if self.maps.is_err() => self.maps = Err(reason),
            Err(_) => {}
        }
        true
    }

    /// Forgets what the old mappings said where the new ones say something else.
    fn take(&mut self, maps: Maps) {
        if self.maps.as_ref().is_ok_and(|old| *old == maps) {
            return;
        }
        self.maps = Ok(maps);
        self.forget_locations();
    }

    /// Forgets every id.
    pub(crate) fn forget_locations(&mut self) {
        self.jit.forget_locations();
    }

    /// About how much memory its mappings and its description take: as much as the process wants, within limits.
    pub(crate) fn bytes(&self) -> usize {
        self.maps.as_ref().map_or(0, Maps::bytes) + self.resource.bytes() + size_of::<(ProcessKey, Self)>()
    }

    /// How many addresses are remembered.
    pub(crate) fn addresses(&self) -> usize {
        self.jit.addresses()
    }

    /// About how much memory its perf map takes.
    pub(crate) fn perf_map_bytes(&self) -> usize {
        self.jit.bytes()
    }
}

fn read_maps(pid: u32) -> Result<Maps, Marker> {
    match Maps::of_process(pid) {
        // A process that is ending has given its memory back.
        Ok(maps) if maps.len() == 0 => Err(Marker::ProcessExited),
        Ok(maps) => {
            if maps.lines_skipped != 0 {
                tracing::debug!(pid, lines = maps.lines_skipped, "mappings left out");
            }
            Ok(maps)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Marker::MapsUnreadable),
        Err(_) => Err(Marker::ProcessExited),
    }
}

fn native(file: FileId, file_offset: u64, tables: &mut Tables) -> LocationId {
    let Tables { files, locations, .. } = tables;
    let mapped = files.get(file);
    if mapped.is_some_and(|mapped| *mapped.name == *VDSO) {
        return locations.insert_named(VDSO, Some(file), FrameType::Native);
    }
    let Some(address) = mapped.and_then(|mapped| mapped.address(file_offset)) else {
        return locations.insert(Location::Marker(Marker::NoSegment));
    };
    locations.insert_go(file, address, &files.go_calls(file, address))
}
