//! The unwind tables that BPF has: each is made when its file is met for the first time, on a thread of their own, which puts it where BPF
//! finds it ([`slots`]).

pub(super) mod slots;

use std::collections::BTreeMap;
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

use self::slots::Slots;
pub(crate) use self::slots::{Counts, UnwindMaps};
use super::call_frames::{CallFrames, Section};
use super::table::{TableBuilder, UnwindTable};
use crate::file::LoadedPart;
use crate::go::{self, GoTable};
use crate::status::Status;
use crate::{causes, sys};

/// Files that may wait for their tables, each open; what comes behind them is unwound by frame pointers, until it is met again.
const WAITING_MAX: usize = 256;
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
    pub(crate) fn start(maps: UnwindMaps, status: Status) -> io::Result<Self> {
        let (tasks, asked) = channel();
        let waiting = Arc::new(());
        let work = move || work(Slots::new(maps), &asked, &status);
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

/// What the thread does.
fn work(mut slots: Slots, asked: &Receiver<Task>, status: &Status) {
    let mut waiting = Waiting::default();
    loop {
        // What is asked comes before what waits: it may be told to forget that.
        let task = asked.recv_timeout(if waiting.0.is_empty() { slots::AGE } else { Duration::ZERO });
        let done = match task {
            Ok(Task::Unwind(unwound)) => {
                waiting.push(unwound);
                Ok(())
            }
            Ok(Task::Forget(key)) => {
                waiting.forget(&key);
                slots.forget(&key)
            }
            Ok(Task::ForgetAll) => {
                waiting = Waiting::default();
                slots.forget_all()
            }
            Err(RecvTimeoutError::Timeout) => waiting.pop().map_or(Ok(()), |unwound| unwind(&mut slots, unwound)),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(error) = done.and(slots.grow_older()) {
            tracing::warn!("the unwind table of a file is not used: {}", causes(&error));
        }
        status.set_unwind_tables(waiting.0.len(), &slots.counts());
    }
}

fn unwind(slots: &mut Slots, unwound: Unwound) -> Result<(), MapError> {
    let Unwound { key, number, file, parts, place, counted: _counted } = unwound;
    let Some(table) = timed_table(&file, place.as_ref()) else { return Ok(()) };
    slots.put(key, number, go::labels::of(&file), &table, &parts)
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
    use super::*;

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
}
