//! The unwind tables that BPF has: each made on a thread of its own when its file is met for the first time, and all together bounded.
//!
//! Invariant: BPF finds a table by its file only once all of it is there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use aya::maps::{Array, ArrayOfMaps, HashMap as BpfMap, MapData, MapError};
use ebpf::{BLOCK_BYTES, BLOCKS_FLAGS, FILE_PARTS, FileEntry, FileKey, FilePart, GoLabels, TABLES_MAX};
use symbol_store::elf::{self, CallFrameSections};
use symbol_store::{debug_file, open::Root};

use super::call_frames::{CallFrames, Section};
use super::table::{TableBuilder, UnwindTable};
use crate::file::LoadedPart;
use crate::go::{self, GoTable};
use crate::{causes, sys};

/// Files that may wait for their tables, each open; what comes behind them is unwound by frame pointers, until it is met again.
const WAITING_MAX: usize = 256;
/// All tables together. Of most programs and libraries they are 0.1 MB, of the largest known here 5 MB.
const TABLES_BYTES_MAX: usize = 32 << 20;

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
    pub(crate) evictions: Array<MapData, u32>,
}

/// Where a file was met: the file to which its debug information was moved may be beside it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) pid: u32,
    /// As the process sees it.
    pub(crate) path: String,
}

/// A file that is to have a table.
struct Unwound {
    key: FileKey,
    number: u32,
    file: File,
    parts: Vec<LoadedPart>,
    place: Option<Place>,
    /// One more of those that wait, as long as it is there.
    counted: Arc<()>,
}

/// What the thread is asked.
enum Task {
    Unwind(Unwound),
    Forget(FileKey),
    ForgetAll,
}

/// Files that wait for their tables, by length and number: the smallest is next. On a host that is busy, the largest take seconds, and it would
/// be for them that all others stay without.
#[derive(Default)]
struct Waiting(BTreeMap<(u64, u32), Unwound>);

impl Waiting {
    fn push(&mut self, unwound: Unwound) {
        let bytes = unwound.file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        self.0.insert((bytes, unwound.number), unwound);
    }

    fn pop(&mut self) -> Option<Unwound> {
        self.0.pop_first().map(|(_, unwound)| unwound)
    }

    fn forget(&mut self, key: &FileKey) {
        self.0.retain(|_, unwound| unwound.key != *key);
    }
}

/// The other end of the thread, which ends with it.
#[derive(Debug)]
pub(crate) struct Resident {
    tasks: Sender<Task>,
    /// Files that wait for their tables.
    waiting: Arc<()>,
}

impl Resident {
    /// Starts the thread.
    pub(crate) fn start(maps: UnwindMaps) -> io::Result<Self> {
        let (tasks, asked) = channel();
        let waiting = Arc::new(());
        let work = move || Tables::new(maps).work(&asked);
        thread::Builder::new().name("varve-unwind".to_owned()).spawn(work)?;
        Ok(Self { tasks, waiting })
    }

    /// Has the stacks of a file unwound by its table, soon.
    pub(crate) fn unwind(&self, key: FileKey, number: u32, file: File, parts: Vec<LoadedPart>, place: Option<Place>) {
        // Where it waits for more than a thousand tables, those that do not fit are made when their files are met in another life.
        if Arc::strong_count(&self.waiting) <= WAITING_MAX {
            let counted = Arc::clone(&self.waiting);
            self.ask(Task::Unwind(Unwound { key, number, file, parts, place, counted }));
        }
    }

    /// Has BPF tell of a file again when it is met again. That is never left out; each waits once, since BPF tells of a file no more before.
    pub(crate) fn forget(&self, key: FileKey) {
        self.ask(Task::Forget(key));
    }

    /// Has BPF tell of every file again.
    pub(crate) fn forget_all(&self) {
        self.ask(Task::ForgetAll);
    }

    fn ask(&self, task: Task) {
        // The thread ends with the other end.
        let _ended = self.tasks.send(task);
    }
}

/// A table that BPF has.
struct Slot {
    key: FileKey,
    bytes: usize,
}

struct Tables {
    maps: UnwindMaps,
    slots: HashMap<u32, Slot>,
    /// Oldest first.
    order: VecDeque<u32>,
    /// Those that were in use, with when they were let go, behind those that never were.
    free: VecDeque<(u32, u64)>,
    bytes: usize,
    evictions: u32,
}

impl Tables {
    fn new(maps: UnwindMaps) -> Self {
        let free = (0..TABLES_MAX).map(|slot| (slot, 0)).collect();
        Self { maps, slots: HashMap::new(), order: VecDeque::new(), free, bytes: 0, evictions: 0 }
    }

    fn work(mut self, asked: &Receiver<Task>) {
        let mut waiting = Waiting::default();
        loop {
            // What is asked comes before what waits: it may be told to forget that.
            let task = if waiting.0.is_empty() { asked.recv().map_err(TryRecvError::from) } else { asked.try_recv() };
            let done = match task {
                Ok(Task::Unwind(unwound)) => {
                    waiting.push(unwound);
                    Ok(())
                }
                Ok(Task::Forget(key)) => {
                    waiting.forget(&key);
                    self.forget(&key)
                }
                Ok(Task::ForgetAll) => {
                    waiting = Waiting::default();
                    self.forget_all()
                }
                Err(TryRecvError::Empty) => {
                    let Some(unwound) = waiting.pop() else { continue };
                    self.unwind(unwound)
                }
                Err(TryRecvError::Disconnected) => return,
            };
            if let Err(error) = done {
                tracing::warn!("the unwind table of a file is not used: {}", causes(&error));
            }
        }
    }

    fn unwind(&mut self, unwound: Unwound) -> Result<(), MapError> {
        let Unwound { key, number, file, parts, place, counted: _counted } = unwound;
        let Some(table) = timed_table(&file, place.as_ref()) else { return Ok(()) };
        self.put(key, number, go::labels::of(&file), &table, &parts)
    }

    fn forget(&mut self, key: &FileKey) -> Result<(), MapError> {
        match self.maps.files.remove(key) {
            Err(MapError::KeyNotFound) => Ok(()),
            done => done,
        }
    }

    /// What cannot be forgotten is no reason to keep the rest.
    fn forget_all(&mut self) -> Result<(), MapError> {
        let mut done = Ok(());
        while let Some(oldest) = self.order.pop_front() {
            done = done.and(self.let_go(oldest));
        }
        let rest: Vec<FileKey> = self.maps.files.keys().flatten().collect();
        rest.iter().fold(done, |done, key| done.and(self.forget(key)))
    }

    /// Has BPF unwind a file by a table.
    fn put(
        &mut self,
        key: FileKey,
        number: u32,
        go: Option<GoLabels>,
        table: &UnwindTable,
        parts: &[LoadedPart],
    ) -> Result<(), MapError> {
        let now_ns = sys::clock_ns(sys::Clock::Monotonic);
        // It was told of twice.
        if let Some(before) = self.slots.iter().find_map(|(slot, of)| (of.key == key).then_some(*slot)) {
            self.order.retain(|slot| *slot != before);
            self.let_go(before)?;
        }
        let bytes = table.bytes().next_multiple_of(BLOCK_BYTES);
        while TABLES_BYTES_MAX < self.bytes + bytes || self.free.is_empty() {
            // One that is too large for all of it is left out.
            let Some(oldest) = self.order.pop_front() else { return Ok(()) };
            self.let_go(oldest)?;
        }
        // Where none is free for long enough, the file is done without until it is met in another life.
        let is_forgotten = |&(_, freed_ns): &(u32, u64)| freed_ns + WALK_NS_MAX < now_ns || freed_ns == 0;
        let Some(&(slot, _)) = self.free.front().filter(|free| is_forgotten(free)) else { return Ok(()) };
        let blocks = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        let mut map = Array::<MapData, Block>::create(blocks, BLOCKS_FLAGS)?;
        for (i, block) in (0..).zip(table.blocks()) {
            map.set(i, block, 0)?;
        }
        self.free.pop_front();
        self.maps.tables.set(slot, &map, 0)?;
        let entry = file_entry(number, go, slot, table, parts);
        self.maps.files.insert(key, entry.to_bytes(), 0)?;
        self.bytes += bytes;
        self.order.push_back(slot);
        self.slots.insert(slot, Slot { key, bytes });
        Ok(())
    }

    fn let_go(&mut self, slot: u32) -> Result<(), MapError> {
        let Some(Slot { key, bytes }) = self.slots.remove(&slot) else { return Ok(()) };
        self.bytes -= bytes;
        // Met again, it is told of again.
        let forgotten = self.forget(&key);
        // Only then: whoever counted before may have found it.
        self.evictions = self.evictions.wrapping_add(1);
        let counted = self.maps.evictions.set(0, self.evictions, 0);
        // The kernel gives a table's memory back when it is in no place any more.
        let empty = Array::<MapData, Block>::create(1, BLOCKS_FLAGS);
        let emptied = empty.and_then(|empty| self.maps.tables.set(slot, &empty, 0));
        self.free.push_back((slot, sys::clock_ns(sys::Clock::Monotonic)));
        forgotten.and(counted).and(emptied)
    }
}

/// The same as [`table_of`], with a word on what it took.
fn timed_table(file: &File, place: Option<&Place>) -> Option<UnwindTable> {
    let started_ns = sys::clock_ns(sys::Clock::Monotonic);
    let table = table_of(file, place)?;
    let took_ns = sys::clock_ns(sys::Clock::Monotonic).saturating_sub(started_ns);
    tracing::debug!(?place, rows = table.rows(), table.rules, bytes = table.bytes(), took_ns, "unwind table");
    Some(table)
}

/// What BPF is told of a file that has its table in a slot.
pub(super) fn file_entry(
    number: u32,
    go: Option<GoLabels>,
    slot: u32,
    table: &UnwindTable,
    parts: &[LoadedPart],
) -> FileEntry {
    let table = Some((slot, table.layout));
    let mut entry = FileEntry { number, table, go, parts: [FilePart::default(); FILE_PARTS] };
    for (to, part) in entry.parts.iter_mut().zip(parts) {
        let end = part.offset.saturating_add(part.size);
        // Mappings begin with a page.
        let start = part.offset & !(PAGE_BYTES - 1);
        *to = FilePart { start, end, bias: part.address.wrapping_sub(part.offset) };
    }
    entry
}

/// The table of a file; `None`: it has no call frame information, or more than a table may have.
pub(super) fn table_of(file: &File, place: Option<&Place>) -> Option<UnwindTable> {
    let sections = CallFrameSections::read(file).ok()?;
    // What names Go code says why it cannot.
    let go = GoTable::open(file).ok().flatten();
    let frames = CallFrames {
        eh_frame: sections.eh_frame.as_ref().map(|(address, bytes)| Section { bytes, address: *address }),
        debug_frame: sections.debug_frame.as_deref(),
        text: sections.text.clone(),
        entry: sections.entry,
        go: go.as_ref(),
    };
    let mut builder = TableBuilder::default();
    if let Err(error) = frames.add_to(&mut builder, || debug_frame_elsewhere(file, place)) {
        tracing::warn!("a file has no unwind table: {error}");
        return None;
    }
    // They are megabytes, and so is the table.
    drop(sections);
    builder.finish()
}

/// The `.debug_frame` that a file has packed, or that was moved to another file: nearest first.
fn debug_frame_elsewhere(file: &File, place: Option<&Place>) -> Option<Vec<u8>> {
    let separate = || {
        let Place { pid, path } = place?;
        debug_file::debug_frame(&Root::of_process(*pid).ok()?, file, path)
    };
    elf::debug_frame(file).or_else(|| elf::debug_frame(&elf::debug_data(file)?)).or_else(separate)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use aya::Ebpf;
    use aya::maps::loaded_maps;
    use ebpf::{EVICTIONS_MAP, FILES_MAP, PROGRAM, TABLES_MAP};

    use super::super::rule::{Cfa, Register, Rule, Saved};
    use super::*;
    use crate::report;

    /// As long as no other table is.
    const BLOCKS: u32 = 1187;

    /// How many tables of that length the kernel has.
    fn count() -> usize {
        loaded_maps()
            .flatten()
            .filter(|map| (map.max_entries(), map.value_size()) == (BLOCKS, BLOCK_BYTES as u32))
            .count()
    }

    #[test]
    fn small_files_do_not_wait_for_large_ones() {
        let mut waiting = Waiting::default();
        for (number, bytes) in [(1, 1 << 20), (2, 100), (3, 1 << 30), (4, 100)] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes).unwrap();
            waiting.push(Unwound { key: [0; 40], number, file, parts: Vec::new(), place: None, counted: Arc::new(()) });
        }
        let order: Vec<u32> = std::iter::from_fn(|| waiting.pop()).map(|unwound| unwound.number).collect();
        assert_eq!(order, [2, 4, 1, 3]);
    }

    // Needs BPF.
    #[test]
    fn a_table_that_is_let_go_takes_no_memory_of_the_kernel() {
        let test = "a_table_that_is_let_go_takes_no_memory_of_the_kernel";
        if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
            return report::skipped(test, &missing);
        }
        let mut bpf = Ebpf::load(PROGRAM).unwrap();
        let files = BpfMap::try_from(bpf.take_map(FILES_MAP).unwrap()).unwrap();
        let tables = ArrayOfMaps::try_from(bpf.take_map(TABLES_MAP).unwrap()).unwrap();
        let evictions = Array::try_from(bpf.take_map(EVICTIONS_MAP).unwrap()).unwrap();
        let mut tables = Tables::new(UnwindMaps { files, tables, evictions });
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
        let fit = TABLES_BYTES_MAX / (BLOCKS as usize * BLOCK_BYTES);
        for number in 0..3 * fit {
            let mut key = [7; 40];
            key[0] = number as u8;
            tables.put(key, number as u32, None, &table, &[]).unwrap();
        }
        assert_eq!(tables.slots.len(), fit);
        // The kernel frees a map some time after it was let go.
        let started = Instant::now();
        while fit < count() {
            assert!(started.elapsed() < Duration::from_secs(10), "{} tables, {fit} of them in use", count());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(count(), fit);
        assert_eq!(tables.maps.evictions.get(&0, 0).unwrap(), 2 * fit as u32, "BPF is told of each that is let go");
        tables.forget_all().unwrap();
        while 0 < count() {
            assert!(started.elapsed() < Duration::from_secs(20), "{} tables, none in use", count());
            std::thread::sleep(Duration::from_millis(50));
        }
        report::bpf_test_ran(test);
    }
}
