//! One program that one process runs: what is known of it, and where its addresses lie.
//!
//! Its identity is (pid, start time, number of execve calls), all from the kernel: a reused pid or a new program in the same
//! process is another [`Process`]. Everything is read on its first sample. Its mappings are read again when an address lies in
//! none of them, and ever more seldom while that does not help; and now and then although every address lies in one, because
//! another library may have come to where one was.
//!
//! Invariant: what was found out about a mapping is used no longer than the mapping is there, but for [`STALE_NS`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use ebpf::Sample;
use foldhash::fast::RandomState;

use crate::file::{FileId, FileTable, MappedFile, VDSO};
use crate::jit::Jit;
use crate::location::{FrameType, Location, LocationId, LocationTable, Marker};
use crate::maps::{Backing, Mapping, Maps};
use crate::pace::Pace;
use crate::procfs;
use crate::resource::Resource;

/// Frames in files that are remembered, at 30 bytes each.
const FRAMES_MAX: usize = 200_000;
/// Addresses remembered of one program.
const ADDRESSES_MAX: usize = 32_768;
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
                let id = native(file, offset, self);
                if self.frames.len() < FRAMES_MAX {
                    self.frames.insert((number, offset), id);
                }
                (id, true)
            }
            Some(Err(reason)) => (self.locations.insert(Location::Marker(reason)), true),
            None => (self.locations.insert(Location::Marker(Marker::FileUnreadable)), false),
        }
    }

    pub(crate) fn new(environment: Arc<[String]>) -> Self {
        let (files, locations) = (FileTable::default(), LocationTable::default());
        let (pace, check_pace) = (Pace::new(50), Pace::new(1000));
        Self { files, locations, pace, check_pace, environment, frames: HashMap::default() }
    }
}

/// Whose file it is that a mapping shows, once an address in it was met.
#[derive(Clone, Copy, Debug)]
enum FileState {
    Unopened,
    Opened(FileId),
    /// Until the mappings are read again.
    Failed(Marker),
    /// The process runs, but the mapping was split, moved or taken away since it was read.
    Gone,
}

/// How long a location is the right one for its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    /// The next try may say more.
    Unsettled,
    UntilPerfMapChanges,
    UntilMappingsChange,
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
    /// One a mapping.
    files: Vec<FileState>,
    locations: HashMap<u64, LocationId, RandomState>,
    jit: Jit,
    reread_after_ns: u64,
    reread_interval_ns: u64,
    stale_after_ns: u64,
    pub(crate) last_sample_ns: u64,
}

impl Process {
    /// Reads what is known of the process of `sample`; its mappings only if it is time for such work, else on a later sample.
    pub(crate) fn of(sample: &Sample<'_>, tables: &mut Tables) -> Self {
        let header = &sample.header;
        let (key, pid, comm) = (ProcessKey::of(sample), header.pid, &header.comm);
        let ((resource, is_set_up), maps) = if header.kernel_thread != 0 {
            ((Resource::kernel_thread(pid), true), Err(Marker::NoMapping))
        } else if key.is_running() {
            // The mappings first: what may end any moment loses least that way.
            let maps = tables.pace.run(|| read_maps(pid));
            (Resource::of_process(pid, comm, &tables.environment), maps.unwrap_or(Err(Marker::MapsUnreadable)))
        } else {
            ((Resource::exited(pid, comm), true), Err(Marker::ProcessExited))
        };
        let reread_after_ns = header.ktime_ns + REREAD_NS_MIN;
        let mut process = Self {
            key,
            resource: Arc::new(resource),
            look_again_ns: (!is_set_up).then_some(reread_after_ns),
            maps,
            files: Vec::new(),
            locations: HashMap::default(),
            jit: Jit::default(),
            reread_after_ns,
            reread_interval_ns: REREAD_NS_MIN,
            stale_after_ns: header.ktime_ns + STALE_NS,
            last_sample_ns: header.ktime_ns,
        };
        process.forget_files();
        process
    }

    /// What is known of the process.
    pub(crate) fn resource(&mut self, sample: &Sample<'_>, tables: &Tables) -> Arc<Resource> {
        // Once is enough: an environment may also be empty.
        if self.look_again_ns.take_if(|at_ns| *at_ns <= sample.header.ktime_ns).is_some() && self.key.is_running() {
            let (resource, _) = Resource::of_process(self.key.pid, &sample.header.comm, &tables.environment);
            self.resource = Arc::new(resource);
        }
        Arc::clone(&self.resource)
    }

    /// The location of a user address, and whether it will be the same next time; `ktime_ns` is when it was met.
    pub(crate) fn locate(&mut self, address: u64, ktime_ns: u64, tables: &mut Tables) -> (LocationId, bool) {
        if let Some(id) = self.locations.get(&address) {
            return (*id, true);
        }
        let (id, validity) = self.find(address, ktime_ns, tables);
        if validity == Validity::UntilMappingsChange && self.locations.len() < ADDRESSES_MAX {
            self.locations.insert(address, id);
        }
        (id, validity != Validity::Unsettled)
    }

    fn find(&mut self, address: u64, ktime_ns: u64, tables: &mut Tables) -> (LocationId, Validity) {
        let marker = |tables: &mut Tables, marker| tables.locations.insert(Location::Marker(marker));
        let Some((index, start, offset)) = self.mapping_index(address, ktime_ns, &mut tables.pace) else {
            let reason = self.maps.as_ref().err().copied().unwrap_or(Marker::NoMapping);
            return (marker(tables, reason), Validity::Unsettled);
        };
        let Ok(maps) = &self.maps else { return (marker(tables, Marker::NoMapping), Validity::Unsettled) };
        match maps.get(index).map(|mapping| &mapping.backing) {
            Some(Backing::Vdso) => {
                let file = tables.files.insert(MappedFile::pseudo(VDSO, None));
                (tables.locations.insert_named(VDSO, Some(file), FrameType::Native), Validity::UntilMappingsChange)
            }
            Some(Backing::File { .. }) => match self.file(index, tables) {
                FileState::Opened(file) => {
                    (native(file, (address - start).wrapping_add(offset), tables), Validity::UntilMappingsChange)
                }
                FileState::Failed(reason) => (marker(tables, reason), Validity::UntilMappingsChange),
                // Only once: it is too early for another reading then.
                FileState::Gone if self.reread(ktime_ns, &mut tables.pace) => self.find(address, ktime_ns, tables),
                FileState::Gone | FileState::Unopened => (marker(tables, Marker::FileUnreadable), Validity::Unsettled),
            },
            Some(Backing::Anonymous) | None => {
                let (id, is_named) = self.jit.locate(self.key.pid, address, ktime_ns, maps, tables);
                (id, if is_named { Validity::UntilPerfMapChanges } else { Validity::Unsettled })
            }
        }
    }

    /// Number, start and file offset of the mapping that holds `address`, if need be after reading the mappings again.
    fn mapping_index(&mut self, address: u64, ktime_ns: u64, pace: &mut Pace) -> Option<(usize, u64, u64)> {
        let known = |maps: &Result<Maps, Marker>| {
            let (index, mapping) = maps.as_ref().ok()?.find(address)?;
            Some((index, mapping.start, mapping.offset))
        };
        if let Some(found) = known(&self.maps) {
            return Some(found);
        }
        if !self.reread(ktime_ns, pace) {
            return None;
        }
        let found = known(&self.maps)?;
        self.reread_interval_ns = REREAD_NS_MIN;
        self.reread_after_ns = ktime_ns + REREAD_NS_MIN;
        Some(found)
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

    /// Forgets what the old mappings said where the new ones say something else, or may say more.
    fn take(&mut self, maps: Maps) {
        let is_open = |state: &FileState| matches!(state, FileState::Unopened | FileState::Opened(_));
        if self.maps.as_ref().is_ok_and(|old| *old == maps) && self.files.iter().all(is_open) {
            return;
        }
        let opened_before = |mapping: &Mapping| {
            let (index, old) = self.maps.as_ref().ok()?.find(mapping.start)?;
            let state = self.files.get(index).filter(|state| matches!(state, FileState::Opened(_)))?;
            (old == mapping).then_some(*state)
        };
        self.files = maps.iter().map(|mapping| opened_before(mapping).unwrap_or(FileState::Unopened)).collect();
        self.maps = Ok(maps);
        self.forget_locations();
    }

    /// The file of a mapping, opened on the first address in it.
    fn file(&mut self, index: usize, tables: &mut Tables) -> FileState {
        let (Ok(maps), Some(state)) = (&self.maps, self.files.get_mut(index)) else { return FileState::Unopened };
        if let FileState::Unopened = *state
            && let Some(mapping) = maps.get(index)
        {
            *state = match tables.files.mapped(self.key.pid, mapping) {
                Ok(file) => FileState::Opened(file),
                Err(error) if !is_gone(&error) => FileState::Failed(Marker::FileUnreadable),
                Err(_) if self.key.is_running() => FileState::Gone,
                Err(_) => FileState::Failed(Marker::ProcessExited),
            };
        }
        *state
    }

    /// Forgets every id.
    pub(crate) fn forget_files(&mut self) {
        self.files = vec![FileState::Unopened; self.maps.as_ref().map_or(0, Maps::len)];
        self.forget_locations();
    }

    pub(crate) fn forget_locations(&mut self) {
        self.locations = HashMap::default();
        self.jit.forget_locations();
    }

    /// About how much memory its mappings and its description take: as much as the process wants, within limits.
    pub(crate) fn bytes(&self) -> usize {
        self.maps.as_ref().map_or(0, Maps::bytes) + self.resource.bytes() + size_of::<(ProcessKey, Self)>()
    }

    /// How many addresses are remembered.
    pub(crate) fn addresses(&self) -> usize {
        self.locations.len() + self.jit.addresses()
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

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
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
