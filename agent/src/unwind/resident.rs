//! The unwind tables that BPF has: each is made when its file is met for the first time, on a thread of their own, which puts it where BPF
//! finds it ([`slots`]).

pub(super) mod slots;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use aya::maps::MapError;
use ebpf::FileKey;
use symbol_store::elf::{self, CallFrameSections};
use symbol_store::{debug_file, open::Root};

pub(crate) use self::slots::UnwindMaps;
use self::slots::{Slots, file_entry};
use super::call_frames::{CallFrames, Section};
use super::table::{TableBuilder, UnwindTable};
use crate::file::LoadedPart;
use crate::go::{self, GoTable};
use crate::status::Status;
use crate::{causes, sys};

/// Files that may wait for their tables, each open.
const WAITING_MAX: usize = 256;
/// Files that may be left out: as many as BPF knows.
const LEFT_OUT_MAX: usize = 8192;

/// How long an age of the tables lasts, and files that were left out stay so.
const AGE_NS: u64 = 30_000_000_000;

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
    LeaveOut(FileKey),
    Forget(FileKey),
    ForgetAll,
}

/// Files that are to have tables.
#[derive(Default)]
struct Waiting {
    /// By length and number: the smallest is next. On a host that is busy, the largest take seconds, and it would be for them that all others
    /// stay without.
    files: BTreeMap<(u64, u32), Unwound>,
    /// Those that are unwound by frame pointers for now, since too many wait, or there was no room.
    left_out: HashSet<FileKey>,
}

impl Waiting {
    fn push(&mut self, unwound: Unwound) {
        self.left_out.remove(&unwound.key);
        let bytes = unwound.file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        self.files.insert((bytes, unwound.number), unwound);
    }

    fn pop(&mut self) -> Option<Unwound> {
        self.files.pop_first().map(|(_, unwound)| unwound)
    }

    fn leave_out(&mut self, key: FileKey) {
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.insert(key);
        }
    }

    /// As many of those that are left out as may wait.
    fn take_back(&mut self) -> Vec<FileKey> {
        let some: Vec<_> = self.left_out.iter().take(WAITING_MAX.saturating_sub(self.files.len())).copied().collect();
        some.iter().for_each(|key| _ = self.left_out.remove(key));
        some
    }

    fn forget(&mut self, key: &FileKey) {
        self.left_out.remove(key);
        self.files.retain(|_, unwound| unwound.key != *key);
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
    pub(crate) fn start(maps: UnwindMaps, status: Status) -> io::Result<Self> {
        let (tasks, asked) = channel();
        let waiting = Arc::new(());
        let slots = Slots::new(maps);
        let worker = Worker { slots, waiting: Waiting::default(), status, age_ends_ns: now_ns() + AGE_NS };
        let work = move || worker.work(&asked);
        thread::Builder::new().name("varve-unwind".to_owned()).spawn(work)?;
        Ok(Self { tasks, waiting })
    }

    /// Has the stacks of a file unwound by its table, soon.
    pub(crate) fn unwind(&self, key: FileKey, number: u32, file: File, parts: Vec<LoadedPart>, place: Option<Place>) {
        if Arc::strong_count(&self.waiting) <= WAITING_MAX {
            let counted = Arc::clone(&self.waiting);
            self.ask(Task::Unwind(Unwound { key, number, file, parts, place, counted }));
        } else {
            self.ask(Task::LeaveOut(key));
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

/// What the thread does.
struct Worker {
    slots: Slots,
    waiting: Waiting,
    status: Status,
    age_ends_ns: u64,
}

impl Worker {
    fn work(mut self, asked: &Receiver<Task>) {
        loop {
            let wait = self.until_next().unwrap_or_else(|error| {
                tracing::warn!("there is no room for unwind tables: {}", causes(&error));
                Duration::from_nanos(AGE_NS)
            });
            // What is asked comes before what waits: it may be told to forget that.
            let done = match asked.recv_timeout(wait) {
                Ok(task) => self.take(task),
                Err(RecvTimeoutError::Timeout) if wait.is_zero() => self.unwind_next(),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = done.and(self.end_age()) {
                tracing::warn!("unwind tables cannot be used: {}", causes(&error));
            }
            let (waiting, left_out) = (self.waiting.files.len(), self.waiting.left_out.len());
            self.status.set_waiting_unwind_tables(waiting, left_out);
            self.status.set_unwind_tables(self.slots.count(), self.slots.bytes(), self.slots.evicted());
        }
    }

    /// How long there is nothing to do unless it is asked for.
    fn until_next(&mut self) -> Result<Duration, MapError> {
        // No time at all says that there is room.
        let age = Duration::from_nanos(self.age_ends_ns.saturating_sub(now_ns()).max(1));
        Ok(if self.waiting.files.is_empty() { age } else { age.min(self.slots.make_room(now_ns())?) })
    }

    fn take(&mut self, task: Task) -> Result<(), MapError> {
        match task {
            Task::Unwind(unwound) => self.waiting.push(unwound),
            Task::LeaveOut(key) => self.waiting.leave_out(key),
            Task::Forget(key) => {
                self.waiting.forget(&key);
                return self.slots.forget(&key);
            }
            Task::ForgetAll => {
                self.waiting = Waiting::default();
                return self.slots.forget_all(now_ns());
            }
        }
        Ok(())
    }

    fn unwind_next(&mut self) -> Result<(), MapError> {
        let Some(Unwound { key, number, file, parts, place, counted: _counted }) = self.waiting.pop() else {
            return Ok(());
        };
        let Some(table) = timed_table(&file, place.as_ref()) else { return Ok(()) };
        let put = self.slots.put(key, file_entry(number, go::labels::of(&file), &parts), &table, now_ns());
        if !matches!(put, Ok(true)) {
            self.waiting.leave_out(key);
        }
        put.map(|_| ())
    }

    /// Begins the next age when it is time, and has BPF tell again of files that were left out.
    fn end_age(&mut self) -> Result<(), MapError> {
        if now_ns() < self.age_ends_ns {
            return Ok(());
        }
        self.age_ends_ns = now_ns() + AGE_NS;
        let done = self.slots.begin_age(now_ns());
        self.waiting.take_back().iter().fold(done, |done, key| done.and(self.slots.forget(key)))
    }
}

fn now_ns() -> u64 {
    sys::clock_ns(sys::Clock::Monotonic)
}

/// The same as [`table_of`], with a word on what it took.
fn timed_table(file: &File, place: Option<&Place>) -> Option<UnwindTable> {
    let started_ns = sys::clock_ns(sys::Clock::Monotonic);
    let table = table_of(file, place)?;
    let took_ns = sys::clock_ns(sys::Clock::Monotonic).saturating_sub(started_ns);
    tracing::debug!(?place, rows = table.rows(), table.rules, bytes = table.bytes(), took_ns, "unwind table");
    Some(table)
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
    let code = |part| sections.code(file, part);
    if let Err(error) = frames.add_to(&mut builder, || debug_frame_elsewhere(file, place), code) {
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
    use super::*;

    fn unwound(number: u32, bytes: u64) -> Unwound {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let key = [number as u8; 40];
        Unwound { key, number, file, parts: Vec::new(), place: None, counted: Arc::new(()) }
    }

    #[test]
    fn small_files_do_not_wait_for_large_ones() {
        let mut waiting = Waiting::default();
        for (number, bytes) in [(1, 1 << 20), (2, 100), (3, 1 << 30), (4, 100)] {
            waiting.push(unwound(number, bytes));
        }
        waiting.forget(&[4; 40]);
        let order: Vec<u32> = std::iter::from_fn(|| waiting.pop()).map(|unwound| unwound.number).collect();
        assert_eq!(order, [2, 1, 3]);
    }

    #[test]
    fn what_is_left_out_is_told_of_again_and_not_more_than_may_wait() {
        let mut waiting = Waiting::default();
        for number in 0..=WAITING_MAX {
            waiting.leave_out(std::array::from_fn(|index| (number >> (8 * (index % 4))) as u8));
        }
        waiting.leave_out([1; 40]);
        waiting.push(unwound(1, 1));
        waiting.leave_out([2; 40]);
        waiting.forget(&[2; 40]);
        assert_eq!(waiting.left_out.len(), WAITING_MAX + 1, "those of 1 and 2 are not among them");
        assert_eq!((waiting.take_back().len(), waiting.left_out.len()), (WAITING_MAX - 1, 2));
        waiting.pop();
        assert_eq!((waiting.take_back().len(), waiting.left_out.len()), (2, 0));
    }
}
