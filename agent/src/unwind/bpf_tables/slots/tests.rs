//! Evictions of tables of the largest size, with the BPF programs' own maps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use aya::Ebpf;
use aya::maps::{Map, loaded_maps};
use ebpf::{EPOCH_MAP, FILES_MAP, HOTSPOT_PROCESSES_MAP, PROGRAM, RUNTIMES_MAP, TABLES_MAP};
use testkit::report;

use super::*;
use crate::unwind::rule::{Cfa, Register, Rule, Saved};
use crate::unwind::table::TableBuilder;

/// Length of the test's tables, in blocks. No other table on this host has this length, so it identifies them.
const BLOCKS: u32 = 613;
const FIT: usize = TABLES_BYTES_MAX / (BLOCKS as usize * BLOCK_BYTES);

/// Returns the number of tables with [`BLOCKS`] blocks in the kernel.
fn count() -> usize {
    loaded_maps().flatten().filter(|map| (map.max_entries(), map.value_size()) == (BLOCKS, BLOCK_BYTES as u32)).count()
}

/// Waits until the kernel has freed the evicted tables, which takes some time.
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
        // The rows fill all blocks but a few. The pages are in these blocks, and the rest of them is padded below.
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
    /// Returns false if the table does not fit.
    fn store_file(&mut self, number: usize, table: &UnwindTable, now_ns: u64) -> bool {
        self.store(key(number), file_entry(number as u32, None, &[]), table, now_ns).unwrap()
    }

    /// Sets the time of the last lookup of each table, as BPF does.
    fn set_used(&mut self, files: impl IntoIterator<Item = usize>, ktime_ns: u64) {
        for number in files {
            let mut entry = self.maps.files.get(&key(number), 0).unwrap();
            entry[44..48].copy_from_slice(&used_at(ktime_ns).to_ne_bytes());
            self.maps.files.insert(key(number), entry, 0).unwrap();
        }
    }

    /// Returns the entry that BPF has of a file.
    pub(crate) fn entry(&self, key: &FileKey) -> Option<EntryBytes> {
        self.maps.files.get(key, 0).ok()
    }

    /// Stores an entry, as BPF does when it meets a file.
    pub(crate) fn insert(&mut self, key: FileKey, entry: &FileEntry) {
        self.maps.files.insert(key, entry.to_bytes(), 0).unwrap();
    }

    fn files(&self) -> Vec<usize> {
        let number = |key: FileKey| usize::from_ne_bytes(std::array::from_fn(|index| key[index]));
        let mut files: Vec<usize> = self.maps.files.keys().flatten().map(number).collect();
        files.sort_unstable();
        files
    }
}

/// Loads the BPF programs, and returns the slots of their maps.
pub(crate) fn load() -> Slots {
    let mut bpf = Ebpf::load(PROGRAM).unwrap();
    let files = BpfMap::try_from(bpf.take_map(FILES_MAP).unwrap()).unwrap();
    let tables = ArrayOfMaps::try_from(bpf.take_map(TABLES_MAP).unwrap()).unwrap();
    let epoch = Array::try_from(bpf.take_map(EPOCH_MAP).unwrap()).unwrap();
    let runtimes = Array::try_from(bpf.take_map(RUNTIMES_MAP).unwrap()).unwrap();
    let hotspot = BpfMap::try_from(bpf.take_map(HOTSPOT_PROCESSES_MAP).unwrap()).unwrap();
    Slots::new(UnwindMaps { files, tables, epoch, runtimes, hotspot })
}

// Needs BPF.
#[test]
fn the_longest_idle_tables_are_evicted_and_tables_in_use_slowly() {
    let test = "the_longest_idle_tables_are_evicted_and_tables_in_use_slowly";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let mut slots = load();
    let table = table();
    let second = 1_u64 << 30;
    // Numbers of tables that are left after an eviction: at the limit, and if all others are idle.
    let [kept, kept_idle] = [TABLES_BYTES_MAX, IDLE_BYTES_MAX]
        .map(|max| max / EVICTED_PART * (EVICTED_PART - 1) / (BLOCKS as usize * BLOCK_BYTES));
    let more = FIT - kept;
    assert!(2 < more && kept_idle < kept);

    let mut now = 1000 * second;
    (0..FIT).for_each(|number| assert!(slots.store_file(number, &table, now)));
    assert_eq!((slots.count(), slots.bytes(), slots.evicted()), (FIT, FIT * BLOCKS as usize * BLOCK_BYTES, 0));
    assert_eq!(slots.files(), (0..FIT).collect::<Vec<_>>());

    // It is not known which tables are in use before the epoch has lasted for a while.
    slots.begin_epoch(now).unwrap();
    now += 4 * second;
    assert!(!slots.reserve(now).unwrap().is_zero() && slots.evicted() == 0);
    now += 2 * second;
    slots.set_used(0..FIT, now - second);
    // One more table is idle than must be, and it was used last.
    let idle = |index: usize| 2 * index + 1;
    (0..=more).for_each(|index| slots.set_used([idle(index)], (800 + index as u64) * second));
    assert_eq!(slots.reserve(now).unwrap(), Duration::ZERO);
    let is_left = |number: &usize| (0..more).all(|index| idle(index) != *number);
    assert_eq!(slots.files(), (0..FIT).filter(is_left).collect::<Vec<_>>());
    assert_eq!((slots.count(), slots.evicted()), (kept, more as u64));
    assert_eq!(slots.maps.epoch.get(&0, 0).unwrap(), 2, "what BPF caches is void");
    wait_for(kept);

    // A file that is reported again keeps its table. Other tables take other slots, until all tables are in use.
    let first = slots.files()[0];
    slots.renew(&key(first), now + 2 * second).unwrap();
    assert!(slots.count() == kept && slots.has(&key(first)));
    let fill = |slots: &mut Slots, from: usize, now: u64| {
        (from..from + more).for_each(|number| assert!(slots.store_file(number, &table, now)));
    };
    let use_all = |slots: &mut Slots, now: u64| {
        let all = slots.files();
        slots.set_used(all, now);
    };
    fill(&mut slots, FIT, now + 2 * second);
    now += 20 * second;
    use_all(&mut slots, now - second);
    assert_eq!(slots.reserve(now).unwrap(), Duration::ZERO, "the first eviction of tables in use");
    assert_eq!((slots.count(), slots.evicted()), (kept, 2 * more as u64));
    fill(&mut slots, FIT + more, now + 2 * second);
    now += 20 * second;
    use_all(&mut slots, now - second);
    assert_eq!(slots.reserve(now).unwrap(), Duration::from_nanos(EVICT_USED_NS - 20 * second), "not so soon again");
    assert_eq!((slots.count(), slots.evicted()), (FIT, 2 * more as u64));
    now += EVICT_USED_NS;
    assert_eq!(slots.reserve(now).unwrap(), Duration::ZERO);
    assert_eq!((slots.count(), slots.evicted()), (kept, 3 * more as u64));

    // Tables in use may take more space than idle ones.
    now += 20 * second;
    use_all(&mut slots, now - second);
    slots.files().into_iter().take(more).for_each(|number| slots.set_used([number], 900 * second));
    assert_eq!((slots.reserve(now).unwrap(), slots.count()), (Duration::ZERO, kept));
    // The few idle ones go when their space is needed, although tables in use would have to wait.
    (0..more).for_each(|at| assert!(slots.store_file(FIT + 2 * more + at, &table, now)));
    assert_eq!((slots.reserve(now).unwrap(), slots.count()), (Duration::ZERO, kept));
    assert_eq!(slots.evicted(), 4 * more as u64);
    slots.begin_epoch(now).unwrap();
    now += 20 * second;
    assert_eq!((slots.reserve(now).unwrap(), slots.count()), (Duration::ZERO, kept_idle));

    // A file that BPF has forgotten itself is no error.
    let gone = slots.files()[0];
    slots.maps.files.remove(&key(gone)).unwrap();
    slots.forget_all(now).unwrap();
    assert_eq!((slots.count(), slots.bytes()), (0, 0));
    assert!(slots.files().is_empty());
    wait_for(0);
    report::bpf_test_ran(test);
}

// Needs BPF.
#[test]
fn a_file_that_is_reported_again_never_loses_its_table() {
    let test = "a_file_that_is_reported_again_never_loses_its_table";
    if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
        return report::skipped(test, missing);
    }
    let mut slots = load();
    let file = key(usize::MAX);
    assert!(slots.store(file, file_entry(1, None, &[]), &small_table(), 0).unwrap());
    // Another view of the same map, as BPF has one.
    let views = loaded_maps().flatten().filter(|map| map.name() == FILES_MAP.as_bytes()).filter_map(|map| {
        let map = Map::HashMap(MapData::from_id(map.id()).ok()?);
        BpfMap::<_, FileKey, EntryBytes>::try_from(map).ok()
    });
    let view = views.into_iter().find(|view| view.get(&file, 0).is_ok()).unwrap();
    let slot = FileEntry::table_of(&view.get(&file, 0).unwrap());
    assert!(slot.is_some());
    let (is_done, looked_up) = (AtomicBool::new(false), AtomicU32::new(0));
    let (missed, renewals) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut missed = 0;
            while !is_done.load(Ordering::Relaxed) {
                looked_up.fetch_add(1, Ordering::Relaxed);
                missed += u32::from(!view.get(&file, 0).is_ok_and(|entry| FileEntry::table_of(&entry) == slot));
            }
            missed
        });
        let mut renewals = 0;
        let mut renewed = Ok(());
        // On a busy machine, the reader starts late.
        while renewed.is_ok() && (renewals < 1000 || looked_up.load(Ordering::Relaxed) < 1000) {
            renewals += 1;
            renewed = slots.renew(&file, u64::from(renewals) << 30);
        }
        is_done.store(true, Ordering::Relaxed);
        renewed.unwrap();
        (reader.join().unwrap(), renewals)
    });
    assert_eq!(missed, 0, "{looked_up:?} lookups");
    let number_and_time = |entry: &EntryBytes| (entry[..4].to_vec(), FileEntry::used_of(entry));
    assert_eq!(number_and_time(&view.get(&file, 0).unwrap()), (1_u32.to_ne_bytes().to_vec(), renewals));

    // BPF has reported the file again.
    slots.insert(file, &file_entry(7, None, &[]));
    slots.renew(&file, 1001 << 30).unwrap();
    let entry = view.get(&file, 0).unwrap();
    assert_eq!(number_and_time(&entry), (1_u32.to_ne_bytes().to_vec(), 1001));
    assert_eq!(FileEntry::table_of(&entry), slot);
    // It has reported the file again, and the table is evicted. What was reported stays.
    slots.insert(file, &file_entry(8, None, &[]));
    let all: Vec<u32> = slots.slots.keys().copied().collect();
    slots.free(&all, 1002 << 30).unwrap();
    assert_eq!((slots.count(), slots.bytes(), slots.has(&file)), (0, 0, false));
    assert_eq!(view.get(&file, 0).unwrap()[..4], 8_u32.to_ne_bytes());
    slots.forget_all(1003 << 30).unwrap();
    assert!(slots.files().is_empty());
    report::bpf_test_ran(test);
}

/// Returns a table that no other test counts.
fn small_table() -> UnwindTable {
    let mut builder = TableBuilder::default();
    let cfa = Cfa::Register { base: Register(7), offset: 8 };
    builder.push(0, Rule::Frame { cfa, fp: Saved::InPlace, bx: Saved::InPlace, return_address: -1 }).unwrap();
    builder.finish().unwrap()
}
