//! The slots that BPF has for unwind tables, and the files that it knows.
//!
//! All tables together are bounded. Above a first limit, the tables that BPF has not looked up for longest are evicted.
//! BPF records a lookup only once per *epoch*, because it caches what it found until the epoch ends. So a table is idle
//! if it was not looked up in an epoch that has lasted for a while. Tables in use may take more space, up to a second
//! limit. At this limit, if too few tables are idle, tables in use are evicted from time to time. So if more files are
//! in use than fit, they take turns at having a table.
//!
//! Invariants: BPF finds a table by its file only once all of the table is stored. If BPF reports a file again whose
//! table is stored, the file's entry is replaced at once: in a gap without an entry, BPF would report it once more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, HashMap as BpfMap, MapData, MapError};
use ebpf::{
    BLOCK_BYTES, BLOCKS_FLAGS, FILE_PARTS, FileEntry, FileKey, FilePart, GoLabels, HOTSPOT_KEY_BYTES,
    HOTSPOT_PROCESS_BYTES, HotSpotProcess, RUNTIME_BYTES, RUNTIMES_MAX, Runtime, TABLES_MAX, hotspot_key, used_at,
};

use crate::process::file::LoadedPart;
use crate::process::key::ProcessKey;
use crate::unwind::table::UnwindTable;

/// Largest size of all tables together, in bytes. Most programs and libraries need 0.1 MB. A compiler of Rust needs 12
/// MB, and a host that compiles and runs programs in several languages had more than 32 MB in use.
const TABLES_BYTES_MAX: usize = 96 << 20;
/// Size of all tables together above which idle tables are evicted, in bytes.
const IDLE_BYTES_MAX: usize = 32 << 20;

/// An eviction goes on until one part in this many of the space, and of the slots, is free.
const EVICTED_PART: usize = 8;

/// Time in nanoseconds after the start of an epoch at which BPF has most likely looked up every table in use.
const LOOKED_UP_NS: u64 = 5_000_000_000;
/// Shortest time between two evictions of tables in use, in nanoseconds. To make one eighth of all tables again takes
/// some tenths of a second.
const EVICT_USED_NS: u64 = 60_000_000_000;

/// Longest time for which BPF unwinds one stack, in nanoseconds. BPF keeps using the table that it found, so a freed
/// slot is not reused during this time.
const WALK_NS_MAX: u64 = 1_000_000_000;

/// Smallest page size of the supported machines, in bytes.
const PAGE_BYTES: u64 = 4096;

type Block = [u8; BLOCK_BYTES];
type EntryBytes = [u8; 48 + 24 * FILE_PARTS];

/// The BPF maps of files and tables.
pub(crate) struct UnwindMaps {
    pub(crate) files: BpfMap<MapData, FileKey, EntryBytes>,
    pub(crate) tables: ArrayOfMaps<MapData, Array<MapData, Block>>,
    pub(crate) epoch: Array<MapData, u32>,
    pub(crate) runtimes: Array<MapData, [u8; RUNTIME_BYTES]>,
    pub(crate) hotspot: BpfMap<MapData, [u8; HOTSPOT_KEY_BYTES], [u8; HOTSPOT_PROCESS_BYTES]>,
}

/// A table in its slot.
struct Slot {
    key: FileKey,
    bytes: usize,
    /// Entry of the file, as it was stored.
    entry: FileEntry,
}

/// All slots. Times are on CLOCK_MONOTONIC.
pub(super) struct Slots {
    maps: UnwindMaps,
    slots: HashMap<u32, Slot>,
    /// Free slots, with the time at which each was freed. Slots that were never used come first.
    free: VecDeque<(u32, u64)>,
    bytes: usize,
    evicted: u64,
    epoch: u32,
    epoch_began_ns: u64,
    /// True if too few tables are idle in this epoch to come below [`IDLE_BYTES_MAX`].
    are_used: bool,
    evict_used_after_ns: u64,
}

impl Slots {
    pub(super) fn new(maps: UnwindMaps) -> Self {
        Self {
            maps,
            slots: HashMap::new(),
            free: (0..TABLES_MAX).map(|slot| (slot, 0)).collect(),
            bytes: 0,
            evicted: 0,
            epoch: 0,
            epoch_began_ns: 0,
            are_used: false,
            evict_used_after_ns: 0,
        }
    }

    /// Number of stored tables.
    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Size of all stored tables together, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of tables evicted so far.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Makes BPF report a file when it sees the file again.
    pub(super) fn forget(&mut self, key: &FileKey) -> Result<(), MapError> {
        match self.maps.files.remove(key) {
            Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Makes BPF report frames in a file as frames in memory without a file.
    pub(super) fn without_file(&mut self, key: FileKey) -> Result<(), MapError> {
        // No file has the number 0.
        self.maps.files.insert(key, FileEntry::default().to_bytes(), 0)
    }

    /// Removes every table, and makes BPF report every file again. Continues after an error, and returns the first
    /// error.
    pub(super) fn forget_all(&mut self, now_ns: u64) -> Result<(), MapError> {
        // Meanwhile, BPF reports some of the files again. These stay.
        let known: Vec<FileKey> = self.maps.files.keys().flatten().collect();
        let with_table: HashSet<FileKey> = self.slots.values().map(|slot| slot.key).collect();
        let all: Vec<u32> = self.slots.keys().copied().collect();
        let done = self.free(&all, now_ns);
        let rest = known.iter().filter(|key| !with_table.contains(*key));
        rest.fold(done, |done, key| done.and(self.forget(key)))
    }

    /// Voids the caches of BPF, so that BPF records again which tables are in use.
    pub(super) fn begin_epoch(&mut self, now_ns: u64) -> Result<(), MapError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch_began_ns = now_ns;
        self.are_used = false;
        self.maps.epoch.set(0, self.epoch, 0)
    }

    /// Evicts tables until a new table of usual size fits. Returns zero if it fits, and otherwise the time to wait
    /// before the next call.
    pub(super) fn reserve(&mut self, now_ns: u64) -> Result<Duration, MapError> {
        let left_of = |max: usize| max - max / EVICTED_PART;
        let [bytes_max, idle_bytes_max, count_max] =
            [TABLES_BYTES_MAX, IDLE_BYTES_MAX, TABLES_MAX as usize].map(left_of);
        let looked_up_ns = self.epoch_began_ns + LOOKED_UP_NS;
        let idle = used_at(self.epoch_began_ns);
        if looked_up_ns <= now_ns && !self.are_used && !self.fits(idle_bytes_max, count_max) {
            self.are_used = !self.evict(idle_bytes_max, count_max, idle, now_ns)?;
        }
        let fits = self.fits(bytes_max, count_max);
        if fits || looked_up_ns <= now_ns && self.evict(bytes_max, count_max, idle, now_ns)? {
            return Ok(Duration::ZERO);
        }
        if now_ns < looked_up_ns {
            return Ok(Duration::from_nanos(looked_up_ns - now_ns));
        }
        if now_ns < self.evict_used_after_ns {
            return Ok(Duration::from_nanos(self.evict_used_after_ns - now_ns));
        }
        self.evict_used_after_ns = now_ns + EVICT_USED_NS;
        self.evict(bytes_max, count_max, u32::MAX, now_ns)?;
        Ok(Duration::ZERO)
    }

    /// Stores the description of a runtime in its slot.
    pub(super) fn store_runtime(&mut self, id: u16, runtime: &Runtime) -> Result<(), MapError> {
        self.maps.runtimes.set((id % RUNTIMES_MAX).into(), runtime.to_bytes(id), 0)
    }

    /// Stores the code heaps of a process that runs HotSpot. `runtime` is the id of its description.
    pub(super) fn store_hotspot(
        &mut self,
        key: ProcessKey,
        process: &HotSpotProcess,
        runtime: u16,
    ) -> Result<(), MapError> {
        let key = hotspot_key(key.start_boottime_ns, key.exec_id, key.pid);
        self.maps.hotspot.insert(key, process.to_bytes(runtime), 0)
    }

    /// True if the table of a file is stored.
    pub(super) fn has(&self, key: &FileKey) -> bool {
        self.slots.values().any(|of| of.key == *key)
    }

    /// Stores the entry of a file again whose table is stored: BPF has made another entry, without the table. The
    /// number of the file is the earlier one then. Does nothing if no table is stored.
    pub(super) fn renew(&mut self, key: &FileKey, now_ns: u64) -> Result<(), MapError> {
        let Some(of) = self.slots.values().find(|of| of.key == *key) else { return Ok(()) };
        let entry = FileEntry { used: used_at(now_ns), ..of.entry };
        self.maps.files.insert(key, entry.to_bytes(), 0)
    }

    /// Stores the table of a file that has none. Returns false if the table does not fit.
    pub(super) fn store(
        &mut self,
        key: FileKey,
        entry: FileEntry,
        table: &UnwindTable,
        now_ns: u64,
    ) -> Result<bool, MapError> {
        let bytes = table.bytes().next_multiple_of(BLOCK_BYTES);
        if TABLES_BYTES_MAX < self.bytes + bytes {
            // The space that reserve() frees is enough for nearly all tables. For a larger table, more tables are
            // evicted.
            self.evict(TABLES_BYTES_MAX.saturating_sub(bytes), TABLES_MAX as usize, u32::MAX, now_ns)?;
        }
        let is_unused = |&(_, freed_ns): &(u32, u64)| freed_ns == 0 || freed_ns + WALK_NS_MAX < now_ns;
        let free = self.free.front().copied().filter(is_unused);
        let Some((slot, _)) = free.filter(|_| self.bytes + bytes <= TABLES_BYTES_MAX) else { return Ok(false) };
        let blocks = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let mut map = Array::<MapData, Block>::create(blocks, BLOCKS_FLAGS)?;
        for (i, block) in (0..).zip(table.blocks()) {
            map.set(i, block, 0)?;
        }
        self.maps.tables.set(slot, &map, 0)?;
        let used = used_at(now_ns);
        let entry = FileEntry { used, table: Some((slot, table.layout)), ..entry };
        if let Err(error) = self.maps.files.insert(key, entry.to_bytes(), 0) {
            self.clear_slot(slot)?;
            return Err(error);
        }
        self.free.pop_front();
        self.bytes += bytes;
        self.slots.insert(slot, Slot { key, bytes, entry });
        Ok(true)
    }

    fn fits(&self, bytes_max: usize, count_max: usize) -> bool {
        self.bytes <= bytes_max && self.slots.len() <= count_max
    }

    /// Evicts tables that were not looked up since `idle`, the longest idle first, until at most `count_max` tables of
    /// `bytes_max` bytes together are left. Returns false, and evicts none, if too few tables are idle.
    fn evict(&mut self, bytes_max: usize, count_max: usize, idle: u32, now_ns: u64) -> Result<bool, MapError> {
        let used = |of: &Slot| match self.maps.files.get(&of.key, 0) {
            Ok(entry) => FileEntry::used_of(&entry),
            // BPF has no entry of the file, so it cannot find the table.
            Err(_) => 0,
        };
        let mut all: Vec<_> = self.slots.iter().map(|(slot, of)| (used(of), *slot, of.bytes)).collect();
        all.sort_unstable();
        let mut count = all.len();
        let mut bytes = self.bytes;
        let mut gone = Vec::new();
        for (used, slot, of) in all {
            if bytes <= bytes_max && count <= count_max || idle <= used {
                break;
            }
            (count, bytes) = (count - 1, bytes - of);
            gone.push(slot);
        }
        if bytes_max < bytes || count_max < count {
            return Ok(false);
        }
        self.evicted += gone.len() as u64;
        self.free(&gone, now_ns)?;
        Ok(true)
    }

    fn free(&mut self, slots: &[u32], now_ns: u64) -> Result<(), MapError> {
        let mut done = Ok(());
        for slot in slots {
            if let Some(Slot { key, bytes, .. }) = self.slots.remove(slot) {
                self.bytes -= bytes;
                // BPF reports the file again when it sees the file again. If it has done so already, the entry stays.
                let entry = self.maps.files.get(&key, 0);
                let is_reported = entry.is_ok_and(|entry| FileEntry::table_of(&entry) != Some(*slot));
                done = done.and(if is_reported { Ok(()) } else { self.forget(&key) });
            }
        }
        // The epoch begins after the removal. Otherwise, BPF could look up these tables once more and cache that for
        // the whole epoch.
        done = done.and(self.begin_epoch(now_ns));
        for slot in slots {
            done = done.and(self.clear_slot(*slot));
            self.free.push_back((*slot, now_ns));
        }
        done
    }

    /// Replaces a table by an empty one. The kernel then frees its memory.
    fn clear_slot(&mut self, slot: u32) -> Result<(), MapError> {
        self.maps.tables.set(slot, &Array::<MapData, Block>::create(1, BLOCKS_FLAGS)?, 0)
    }
}

/// Makes the entry of a file whose unwind table is not in BPF yet.
pub(in crate::unwind) fn file_entry(number: u32, go: Option<GoLabels>, parts: &[LoadedPart]) -> FileEntry {
    let mut entry = FileEntry { number, go, ..FileEntry::default() };
    for (to, part) in entry.parts.iter_mut().zip(parts) {
        let end = part.offset.saturating_add(part.size);
        // Mappings begin at a page.
        let start = part.offset & !(PAGE_BYTES - 1);
        *to = FilePart { start, end, bias: part.address.wrapping_sub(part.offset) };
    }
    entry
}

#[cfg(test)]
pub(super) mod tests;
