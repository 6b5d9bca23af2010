//! The slots that BPF has for unwind tables, and the files that it knows.
//!
//! All tables together are bounded. Those make room that BPF has not looked up for long; where none is idle, what comes is left out until some
//! are, so that files which are all in use do not take turns. BPF looks up again what it remembers when a new age begins.
//!
//! Invariant: BPF finds a table by its file only once all of it is there.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, HashMap as BpfMap, MapData, MapError};
use ebpf::{BLOCK_BYTES, BLOCKS_FLAGS, FILE_PARTS, FileEntry, FileKey, FilePart, GoLabels, TABLES_MAX, used_at};

use super::super::table::UnwindTable;
use crate::file::LoadedPart;
use crate::sys;

/// All tables together. Of most programs and libraries they are 0.1 MB, of the largest known here 5 MB.
const TABLES_BYTES_MAX: usize = 32 << 20;

/// Files that are left out and in mind.
const LEFT_OUT_MAX: usize = 1024;

/// How long an age lasts, if all goes well. BPF says once in each of them that a table is in use, at its first sample.
pub(super) const AGE: Duration = Duration::from_secs(30);
const AGE_NS: u64 = AGE.as_nanos() as u64;
/// A table is idle that was not looked up for so long: in no whole age.
const IDLE_NS: u64 = 2 * AGE_NS;

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

/// How many tables there are, and were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) tables: usize,
    pub(crate) bytes: usize,
    /// Idle ones that have made room.
    pub(crate) evicted: u64,
    /// Files for whose tables there is no room.
    pub(crate) left_out: usize,
}

/// A table that BPF has.
struct Slot {
    key: FileKey,
    bytes: usize,
}

pub(super) struct Slots {
    maps: UnwindMaps,
    slots: HashMap<u32, Slot>,
    /// Those that were in use, with when they were let go, behind those that never were.
    free: VecDeque<(u32, u64)>,
    /// Those that had no room, with the bytes that they took, oldest first.
    left_out: VecDeque<(FileKey, usize)>,
    bytes: usize,
    evicted: u64,
    age: u32,
    age_began_ns: u64,
}

impl Slots {
    pub(super) fn new(maps: UnwindMaps) -> Self {
        Self {
            maps,
            slots: HashMap::new(),
            free: (0..TABLES_MAX).map(|slot| (slot, 0)).collect(),
            left_out: VecDeque::new(),
            bytes: 0,
            evicted: 0,
            age: 0,
            age_began_ns: now_ns(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { tables: self.slots.len(), bytes: self.bytes, evicted: self.evicted, left_out: self.left_out.len() }
    }

    /// Has BPF tell of a file when it is met again.
    pub(super) fn forget(&mut self, key: &FileKey) -> Result<(), MapError> {
        match self.maps.files.remove(key) {
            Err(MapError::KeyNotFound) => Ok(()),
            done => done,
        }
    }

    /// What cannot be forgotten is no reason to keep the rest.
    pub(super) fn forget_all(&mut self) -> Result<(), MapError> {
        let all: Vec<u32> = self.slots.keys().copied().collect();
        let done = self.let_go(&all);
        self.left_out.clear();
        let rest: Vec<FileKey> = self.maps.files.keys().flatten().collect();
        rest.iter().fold(done, |done, key| done.and(self.forget(key)))
    }

    /// Has BPF unwind a file by a table, if there is room for it.
    pub(super) fn put(
        &mut self,
        key: FileKey,
        number: u32,
        go: Option<GoLabels>,
        table: &UnwindTable,
        parts: &[LoadedPart],
    ) -> Result<(), MapError> {
        // It was told of twice.
        if let Some(before) = self.slots.iter().find_map(|(slot, of)| (of.key == key).then_some(*slot)) {
            self.let_go(&[before])?;
        }
        let bytes = table.bytes().next_multiple_of(BLOCK_BYTES);
        if !self.has_room(bytes) {
            self.evict(bytes)?;
        }
        let now_ns = now_ns();
        let is_forgotten = |&(_, freed_ns): &(u32, u64)| freed_ns + WALK_NS_MAX < now_ns || freed_ns == 0;
        let free = self.free.front().copied().filter(is_forgotten).filter(|_| self.has_room(bytes));
        let Some((slot, _)) = free else {
            self.leave_out(key, bytes);
            return Ok(());
        };
        let blocks = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let mut map = Array::<MapData, Block>::create(blocks, BLOCKS_FLAGS)?;
        for (i, block) in (0..).zip(table.blocks()) {
            map.set(i, block, 0)?;
        }
        self.free.pop_front();
        self.maps.tables.set(slot, &map, 0)?;
        let entry = FileEntry { used: used_at(now_ns), ..file_entry(number, go, slot, table, parts) };
        self.maps.files.insert(key, entry.to_bytes(), 0)?;
        self.bytes += bytes;
        self.slots.insert(slot, Slot { key, bytes });
        Ok(())
    }

    /// Begins the next age when it is time, and has files told of again that were left out and for which there is room by now.
    pub(super) fn grow_older(&mut self) -> Result<(), MapError> {
        if now_ns() < self.age_began_ns + AGE_NS {
            return Ok(());
        }
        self.age_began_ns = now_ns();
        // Else it is far from having to make room.
        if TABLES_BYTES_MAX / 4 < self.bytes || TABLES_MAX as usize / 4 < self.slots.len() {
            self.begin_age()?;
        }
        self.take_back()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= TABLES_BYTES_MAX && !self.free.is_empty()
    }

    fn leave_out(&mut self, key: FileKey, bytes: usize) {
        if self.left_out.is_empty() {
            let mb = self.bytes >> 20;
            tracing::warn!("{mb} MiB of unwind tables are in use: more files are unwound by frame pointers");
        }
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push_back((key, bytes));
        }
    }

    fn take_back(&mut self) -> Result<(), MapError> {
        let wanted: usize = self.left_out.iter().map(|(_, bytes)| bytes).sum();
        if !self.left_out.is_empty() {
            self.evict(wanted)?;
        }
        let mut taken = 0;
        while let Some((key, bytes)) =
            self.left_out.pop_front_if(|(_, bytes)| self.bytes + taken + *bytes <= TABLES_BYTES_MAX)
        {
            taken += bytes;
            self.forget(&key)?;
        }
        Ok(())
    }

    /// Lets idle tables go, the longest idle first, until there is room for so many bytes.
    fn evict(&mut self, bytes: usize) -> Result<(), MapError> {
        let now = used_at(now_ns());
        let idle_for = |of: &Slot| match self.maps.files.get(&of.key, 0) {
            Ok(entry) => now.saturating_sub(FileEntry::used_of(&entry)),
            // BPF cannot find it.
            Err(_) => u32::MAX,
        };
        let mut idle: Vec<_> = self.slots.iter().map(|(slot, of)| (idle_for(of), *slot, of.bytes)).collect();
        idle.retain(|(idle_for, ..)| used_at(IDLE_NS) < *idle_for);
        idle.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = self.bytes;
        let mut gone = Vec::new();
        for (_, slot, of) in idle {
            if left + bytes <= TABLES_BYTES_MAX && !(self.free.is_empty() && gone.is_empty()) {
                break;
            }
            left -= of;
            gone.push(slot);
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.evicted += gone.len() as u64;
        self.let_go(&gone)
    }

    fn let_go(&mut self, slots: &[u32]) -> Result<(), MapError> {
        let mut done = Ok(());
        for slot in slots {
            if let Some(Slot { key, bytes }) = self.slots.remove(slot) {
                self.bytes -= bytes;
                // Met again, it is told of again.
                done = done.and(self.forget(&key));
            }
        }
        // Only then: whoever looks in this age may have found them.
        done = done.and(self.begin_age());
        for slot in slots {
            // The kernel gives a table's memory back when it is in no place any more.
            let empty = Array::<MapData, Block>::create(1, BLOCKS_FLAGS);
            done = done.and(empty.and_then(|empty| self.maps.tables.set(*slot, &empty, 0)));
            self.free.push_back((*slot, now_ns()));
        }
        done
    }

    fn begin_age(&mut self) -> Result<(), MapError> {
        self.age = self.age.wrapping_add(1);
        self.maps.age.set(0, self.age, 0)
    }
}

fn now_ns() -> u64 {
    sys::clock_ns(sys::Clock::Monotonic)
}

/// What BPF is told of a file that has its table in a slot.
pub(in crate::unwind) fn file_entry(
    number: u32,
    go: Option<GoLabels>,
    slot: u32,
    table: &UnwindTable,
    parts: &[LoadedPart],
) -> FileEntry {
    let table = Some((slot, table.layout));
    let mut entry = FileEntry { number, table, go, used: 0, parts: [FilePart::default(); FILE_PARTS] };
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
    const BLOCKS: u32 = 1187;
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
        fn put_file(&mut self, number: usize, table: &UnwindTable) {
            self.put(key(number), number as u32, None, table, &[]).unwrap();
        }

        /// What BPF says of a file.
        fn set_used(&mut self, number: usize, used: u32) {
            let mut entry = self.maps.files.get(&key(number), 0).unwrap();
            entry[36..40].copy_from_slice(&used.to_ne_bytes());
            self.maps.files.insert(key(number), entry, 0).unwrap();
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
    fn what_is_idle_makes_room_and_what_is_in_use_does_not() {
        let test = "what_is_idle_makes_room_and_what_is_in_use_does_not";
        if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
            return report::skipped(test, &missing);
        }
        let mut bpf = Ebpf::load(PROGRAM).unwrap();
        let files = BpfMap::try_from(bpf.take_map(FILES_MAP).unwrap()).unwrap();
        let tables = ArrayOfMaps::try_from(bpf.take_map(TABLES_MAP).unwrap()).unwrap();
        let age = Array::try_from(bpf.take_map(AGE_MAP).unwrap()).unwrap();
        let mut slots = Slots::new(UnwindMaps { files, tables, age });
        let table = table();
        let now = used_at(now_ns());
        let counts = |tables, evicted, left_out| Counts {
            tables,
            bytes: tables * BLOCKS as usize * BLOCK_BYTES,
            evicted,
            left_out,
        };

        (0..FIT + 2).for_each(|number| slots.put_file(number, &table));
        assert_eq!(slots.counts(), counts(FIT, 0, 2), "all were in use just now");
        assert_eq!(slots.files(), (0..FIT).collect::<Vec<_>>());

        // The longest idle one goes first; put again is no other.
        slots.set_used(3, now - used_at(IDLE_NS) - 2);
        slots.set_used(1, now - used_at(IDLE_NS) - 3);
        slots.put_file(FIT, &table);
        slots.put_file(FIT, &table);
        assert_eq!(slots.counts(), counts(FIT, 1, 2));
        assert_eq!(slots.files(), [0, 2].into_iter().chain(3..=FIT).collect::<Vec<_>>());
        assert_eq!(slots.maps.age.get(&0, 0).unwrap(), 2, "what BPF remembers is void each time");
        wait_for(FIT);

        // Of those that were left out, as many are told of again as there is room for.
        assert_eq!(slots.left_out.pop_front().unwrap().0, key(FIT));
        slots.left_out.push_back((key(0), BLOCKS as usize * BLOCK_BYTES));
        slots.maps.files.insert(key(FIT + 1), [0; 88], 0).unwrap();
        slots.grow_older().unwrap();
        assert_eq!(slots.counts().left_out, 2, "not before the age is over");
        slots.age_began_ns = 0;
        slots.grow_older().unwrap();
        assert_eq!(slots.counts(), counts(FIT - 1, 2, 1), "3 has made room for one");
        assert_eq!(slots.maps.age.get(&0, 0).unwrap(), 4, "the next age, and one without 3");
        assert_eq!(slots.files(), [0, 2].into_iter().chain(4..=FIT).collect::<Vec<_>>());
        wait_for(FIT - 1);

        slots.forget_all().unwrap();
        assert_eq!(slots.counts(), counts(0, 2, 0));
        assert!(slots.files().is_empty());
        wait_for(0);
        report::bpf_test_ran(test);
    }
}
