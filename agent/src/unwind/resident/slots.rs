//! The slots that BPF has for unwind tables, and the files that it knows.
//!
//! All tables together are bounded. Room is made before a new one comes, by those that BPF has not looked up for longest. BPF says when it looks
//! a table up, but does so once in an *age*: what it remembers of one is void in the next. So a table is idle if it was not looked up in
//! an age that has lasted for a while; where too few are, some that are in use make room, now and then: more files than there is room for take
//! turns, slowly.
//!
//! Invariant: BPF finds a table by its file only once all of it is there.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, HashMap as BpfMap, MapData, MapError};
use ebpf::{BLOCK_BYTES, BLOCKS_FLAGS, FILE_PARTS, FileEntry, FileKey, FilePart, GoLabels, TABLES_MAX, used_at};

use super::super::table::UnwindTable;
use crate::file::LoadedPart;

/// All tables together. Of most programs and libraries they are 0.1 MB, of the largest known here 5 MB.
const TABLES_BYTES_MAX: usize = 32 << 20;

/// Part of the room that is made at once.
const ROOM_PART: usize = 8;

/// After so much of an age, all that is in use has most likely been looked up.
const SETTLED_NS: u64 = 5_000_000_000;
/// Between two times that tables in use make room: an eighth of all takes some tenths of a second to be made again.
const TURN_NS: u64 = 60_000_000_000;

/// A walk that has begun looks on in the table that it has found: as long as none lasts, its place is no other's.
const WALK_NS_MAX: u64 = 1_000_000_000;

/// Of the smallest pages that a supported machine has.
const PAGE_BYTES: u64 = 4096;

type Block = [u8; BLOCK_BYTES];
type EntryBytes = [u8; 40 + 24 * FILE_PARTS];

/// The maps in which BPF looks.
pub(crate) struct UnwindMaps {
    pub(crate) files: BpfMap<MapData, FileKey, EntryBytes>,
    pub(crate) tables: ArrayOfMaps<MapData, Array<MapData, Block>>,
    pub(crate) age: Array<MapData, u32>,
}

/// A table that BPF has.
struct Slot {
    key: FileKey,
    bytes: usize,
}

/// Times are those of CLOCK_MONOTONIC.
pub(super) struct Slots {
    maps: UnwindMaps,
    slots: HashMap<u32, Slot>,
    /// Those that were in use, with when they were let go, behind those that never were.
    free: VecDeque<(u32, u64)>,
    bytes: usize,
    evicted: u64,
    age: u32,
    age_began_ns: u64,
    turn_after_ns: u64,
}

impl Slots {
    pub(super) fn new(maps: UnwindMaps) -> Self {
        Self {
            maps,
            slots: HashMap::new(),
            free: (0..TABLES_MAX).map(|slot| (slot, 0)).collect(),
            bytes: 0,
            evicted: 0,
            age: 0,
            age_began_ns: 0,
            turn_after_ns: 0,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tables that have made room, so far.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Has BPF tell of a file when it is met again.
    pub(super) fn forget(&mut self, key: &FileKey) -> Result<(), MapError> {
        match self.maps.files.remove(key) {
            Err(MapError::KeyNotFound) => Ok(()),
            done => done,
        }
    }

    /// What cannot be forgotten is no reason to keep the rest.
    pub(super) fn forget_all(&mut self, now_ns: u64) -> Result<(), MapError> {
        let all: Vec<u32> = self.slots.keys().copied().collect();
        let done = self.let_go(&all, now_ns);
        let rest: Vec<FileKey> = self.maps.files.keys().flatten().collect();
        rest.iter().fold(done, |done, key| done.and(self.forget(key)))
    }

    /// Has BPF look up again what it remembers, and so say what is in use.
    pub(super) fn begin_age(&mut self, now_ns: u64) -> Result<(), MapError> {
        self.age = self.age.wrapping_add(1);
        self.age_began_ns = now_ns;
        self.maps.age.set(0, self.age, 0)
    }

    /// Makes room for a table, and for more, unless there is; how long it takes until there may be some.
    pub(super) fn make_room(&mut self, now_ns: u64) -> Result<Duration, MapError> {
        let bytes_max = TABLES_BYTES_MAX - TABLES_BYTES_MAX / ROOM_PART;
        let count_max = TABLES_MAX as usize - TABLES_MAX as usize / ROOM_PART;
        if self.fits(bytes_max, count_max) {
            return Ok(Duration::ZERO);
        }
        let settled_ns = self.age_began_ns + SETTLED_NS;
        if now_ns < settled_ns {
            return Ok(Duration::from_nanos(settled_ns - now_ns));
        }
        let idle = used_at(self.age_began_ns);
        if self.evict(bytes_max, count_max, idle, now_ns)? {
            return Ok(Duration::ZERO);
        }
        if now_ns < self.turn_after_ns {
            return Ok(Duration::from_nanos(self.turn_after_ns - now_ns));
        }
        self.turn_after_ns = now_ns + TURN_NS;
        self.evict(bytes_max, count_max, u32::MAX, now_ns)?;
        Ok(Duration::ZERO)
    }

    /// Has BPF unwind a file by a table; says no where there is no room for it.
    pub(super) fn put(
        &mut self,
        key: FileKey,
        entry: FileEntry,
        table: &UnwindTable,
        now_ns: u64,
    ) -> Result<bool, MapError> {
        // It was told of twice.
        if let Some(before) = self.slots.iter().find_map(|(slot, of)| (of.key == key).then_some(*slot)) {
            self.let_go(&[before], now_ns)?;
        }
        let bytes = table.bytes().next_multiple_of(BLOCK_BYTES);
        if TABLES_BYTES_MAX < self.bytes + bytes {
            // Nearly all are smaller than the room that is made.
            self.evict(TABLES_BYTES_MAX.saturating_sub(bytes), TABLES_MAX as usize, u32::MAX, now_ns)?;
        }
        let is_forgotten = |&(_, freed_ns): &(u32, u64)| freed_ns == 0 || freed_ns + WALK_NS_MAX < now_ns;
        let free = self.free.front().copied().filter(is_forgotten);
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
            self.empty(slot)?;
            return Err(error);
        }
        self.free.pop_front();
        self.bytes += bytes;
        self.slots.insert(slot, Slot { key, bytes });
        Ok(true)
    }

    fn fits(&self, bytes_max: usize, count_max: usize) -> bool {
        self.bytes <= bytes_max && self.slots.len() <= count_max
    }

    /// Lets tables go that were not looked up since `idle`, the longest idle first, until there are no more than so many and so many bytes
    /// of them; says whether there are. Where there are not enough, none goes.
    fn evict(&mut self, bytes_max: usize, count_max: usize, idle: u32, now_ns: u64) -> Result<bool, MapError> {
        let used = |of: &Slot| match self.maps.files.get(&of.key, 0) {
            Ok(entry) => FileEntry::used_of(&entry),
            // BPF cannot find it.
            Err(_) => 0,
        };
        let mut all: Vec<_> = self.slots.iter().map(|(slot, of)| (used(of), *slot, of.bytes)).collect();
        all.sort_unstable();
        let (mut count, mut bytes, mut gone) = (all.len(), self.bytes, Vec::new());
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
        self.let_go(&gone, now_ns)?;
        Ok(true)
    }

    fn let_go(&mut self, slots: &[u32], now_ns: u64) -> Result<(), MapError> {
        let mut done = Ok(());
        for slot in slots {
            if let Some(Slot { key, bytes }) = self.slots.remove(slot) {
                self.bytes -= bytes;
                // Met again, it is told of again.
                done = done.and(self.forget(&key));
            }
        }
        // Only then: whoever looks in this age may have found them.
        done = done.and(self.begin_age(now_ns));
        for slot in slots {
            done = done.and(self.empty(*slot));
            self.free.push_back((*slot, now_ns));
        }
        done
    }

    /// The kernel gives a table's memory back when it is in no place any more.
    fn empty(&mut self, slot: u32) -> Result<(), MapError> {
        self.maps.tables.set(slot, &Array::<MapData, Block>::create(1, BLOCKS_FLAGS)?, 0)
    }
}

/// What BPF is told of a file, but for its table.
pub(in crate::unwind) fn file_entry(number: u32, go: Option<GoLabels>, parts: &[LoadedPart]) -> FileEntry {
    let mut entry = FileEntry { number, go, ..FileEntry::default() };
    for (to, part) in entry.parts.iter_mut().zip(parts) {
        let end = part.offset.saturating_add(part.size);
        // Mappings begin with a page.
        let start = part.offset & !(PAGE_BYTES - 1);
        *to = FilePart { start, end, bias: part.address.wrapping_sub(part.offset) };
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use aya::Ebpf;
    use aya::maps::loaded_maps;
    use ebpf::{AGE_MAP, FILES_MAP, PROGRAM, TABLES_MAP};

    use super::super::super::rule::{Cfa, Register, Rule, Saved};
    use super::super::super::table::TableBuilder;
    use super::*;
    use crate::report;

    /// As long as no other table is.
    const BLOCKS: u32 = 613;
    const FIT: usize = TABLES_BYTES_MAX / (BLOCKS as usize * BLOCK_BYTES);

    /// How many tables of that length the kernel has.
    fn count() -> usize {
        loaded_maps()
            .flatten()
            .filter(|map| (map.max_entries(), map.value_size()) == (BLOCKS, BLOCK_BYTES as u32))
            .count()
    }

    /// The kernel frees a map some time after it was let go.
    fn wait_for(tables: usize) {
        let started = Instant::now();
        while tables < count() {
            assert!(started.elapsed() < Duration::from_secs(10), "{} tables, {tables} of them in use", count());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(count(), tables);
    }

    fn table() -> UnwindTable {
        let mut builder = TableBuilder::default();
        for address in 0.. {
            let cfa = Cfa::Register { base: Register(7), offset: address % 2 };
            let rule = Rule::Frame { cfa, fp: Saved::InPlace, bx: Saved::InPlace, return_address: -1 };
            builder.push(address as u64, rule).unwrap();
            // Rows, and a word of a page for each 1,024 of them.
            if address as usize / (BLOCK_BYTES / 4) == BLOCKS as usize - 4 {
                break;
            }
        }
        let mut table = builder.finish().unwrap();
        while table.bytes().div_ceil(BLOCK_BYTES) < BLOCKS as usize {
            table.pad();
        }
        table
    }

    fn key(number: usize) -> FileKey {
        let mut key = [7; 40];
        key[..8].copy_from_slice(&number.to_ne_bytes());
        key
    }

    impl Slots {
        /// Says whether there was room.
        fn put_file(&mut self, number: usize, table: &UnwindTable, now_ns: u64) -> bool {
            self.put(key(number), file_entry(number as u32, None, &[]), table, now_ns).unwrap()
        }

        /// What BPF says of files.
        fn set_used(&mut self, files: impl IntoIterator<Item = usize>, ktime_ns: u64) {
            for number in files {
                let mut entry = self.maps.files.get(&key(number), 0).unwrap();
                entry[36..40].copy_from_slice(&used_at(ktime_ns).to_ne_bytes());
                self.maps.files.insert(key(number), entry, 0).unwrap();
            }
        }

        fn files(&self) -> Vec<usize> {
            let number = |key: FileKey| usize::from_ne_bytes(std::array::from_fn(|index| key[index]));
            let mut files: Vec<usize> = self.maps.files.keys().flatten().map(number).collect();
            files.sort_unstable();
            files
        }
    }

    // Needs BPF.
    #[test]
    fn the_longest_idle_tables_make_room_and_those_in_use_slowly() {
        let test = "the_longest_idle_tables_make_room_and_those_in_use_slowly";
        if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
            return report::skipped(test, &missing);
        }
        let mut bpf = Ebpf::load(PROGRAM).unwrap();
        let files = BpfMap::try_from(bpf.take_map(FILES_MAP).unwrap()).unwrap();
        let tables = ArrayOfMaps::try_from(bpf.take_map(TABLES_MAP).unwrap()).unwrap();
        let age = Array::try_from(bpf.take_map(AGE_MAP).unwrap()).unwrap();
        let mut slots = Slots::new(UnwindMaps { files, tables, age });
        let (table, second) = (table(), 1_u64 << 30);
        // Tables that are there when room has been made.
        let kept = TABLES_BYTES_MAX / ROOM_PART * (ROOM_PART - 1) / (BLOCKS as usize * BLOCK_BYTES);
        assert_eq!(kept + 2, FIT);

        let mut now = 1000 * second;
        (0..FIT).for_each(|number| assert!(slots.put_file(number, &table, now)));
        assert_eq!((slots.count(), slots.bytes(), slots.evicted()), (FIT, FIT * BLOCKS as usize * BLOCK_BYTES, 0));
        assert_eq!(slots.files(), (0..FIT).collect::<Vec<_>>());

        // What is in use is not known before the age has lasted for a while.
        slots.begin_age(now).unwrap();
        now += 4 * second;
        assert!(!slots.make_room(now).unwrap().is_zero() && slots.evicted() == 0);
        now += 2 * second;
        slots.set_used(0..FIT, now - second);
        slots.set_used([3], 900 * second);
        slots.set_used([1], 800 * second);
        assert_eq!(slots.make_room(now).unwrap(), Duration::ZERO);
        assert_eq!(slots.files(), [0, 2].into_iter().chain(4..FIT).collect::<Vec<_>>());
        assert_eq!((slots.count(), slots.evicted()), (kept, 2));
        assert_eq!(slots.maps.age.get(&0, 0).unwrap(), 2, "what BPF remembers is void");
        wait_for(kept);

        // Put again, it is no other; one more is, and all of them are in use.
        let first = slots.files()[0];
        assert!(slots.put_file(first, &table, now + 2 * second) && slots.count() == kept);
        for number in FIT..FIT + 2 {
            assert!(slots.put_file(number, &table, now + 2 * second));
        }
        now += 20 * second;
        let all = slots.files();
        slots.set_used(all.iter().copied(), now - second);
        assert_eq!(slots.make_room(now).unwrap(), Duration::ZERO, "the first turn");
        assert_eq!((slots.count(), slots.evicted()), (kept, 4));
        let more = FIT + 2..FIT + 4;
        more.for_each(|number| assert!(slots.put_file(number, &table, now + 2 * second)));
        now += 20 * second;
        let all = slots.files();
        slots.set_used(all.iter().copied(), now - second);
        assert_eq!(slots.make_room(now).unwrap(), Duration::from_nanos(TURN_NS - 20 * second), "not so soon again");
        assert_eq!((slots.count(), slots.evicted()), (FIT, 4));
        now += TURN_NS;
        assert_eq!(slots.make_room(now).unwrap(), Duration::ZERO);
        assert_eq!((slots.count(), slots.evicted()), (kept, 6));

        slots.forget_all(now).unwrap();
        assert_eq!((slots.count(), slots.bytes()), (0, 0));
        assert!(slots.files().is_empty());
        wait_for(0);
        report::bpf_test_ran(test);
    }
}
