//! The unwind tables that are stored in BPF maps.
//!
//! When BPF reports a file for the first time, a separate thread builds the file's table and stores it in a BPF map
//! ([`slots`]).

pub(super) mod slots;
mod waiting;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use aya::maps::MapError;
use ebpf::{FileEntry, FileKey};

pub(crate) use self::slots::UnwindMaps;
use self::slots::{Slots, file_entry};
use self::waiting::{WAITING_MAX, Waiting, WaitingFile};
use super::file_table::table_of;
use super::table::UnwindTable;
use crate::names::go;
use crate::process::file::{FileOrigin, LoadedPart};
use crate::process::sys::{Clock, clock_ns};
use crate::runtimes::{NewProcess, Recognised, Runtimes};
use crate::status::{Status, causes};

/// Length of an epoch of the tables, in nanoseconds. A skipped file has no table for now; it may get one when the epoch
/// ends.
const EPOCH_NS: u64 = 30_000_000_000;

/// A request to the thread that makes tables.
enum Task {
    Unwind(WaitingFile),
    Skip(FileKey),
    Forget(FileKey),
    WithoutFile(FileKey),
    ForgetAll,
    AddProcess(Box<NewProcess>),
}

/// A handle on the thread that makes tables. The thread ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct BpfTables {
    tasks: Sender<Task>,
    /// Counter of the files that wait for a table: each of them holds a reference to it.
    waiting: Arc<()>,
}

impl BpfTables {
    /// Starts the thread.
    pub(crate) fn start(maps: UnwindMaps, runtimes: Runtimes, status: Status) -> io::Result<Self> {
        let (tasks, receiver) = channel();
        let waiting = Arc::new(());
        let worker = Worker {
            slots: Slots::new(maps),
            runtimes,
            waiting: Waiting::default(),
            status,
            epoch_ends_ns: now_ns() + EPOCH_NS,
        };
        thread::Builder::new().name("varve-unwind".to_owned()).spawn(move || worker.run(&receiver))?;
        Ok(Self { tasks, waiting })
    }

    /// Requests the unwind table of a file.
    pub(crate) fn unwind(
        &self,
        key: FileKey,
        number: u32,
        file: File,
        parts: Vec<LoadedPart>,
        origin: Option<FileOrigin>,
    ) {
        if Arc::strong_count(&self.waiting) <= WAITING_MAX {
            let counted = Arc::clone(&self.waiting);
            self.send(Task::Unwind(WaitingFile { key, number, file, parts, origin, counted }));
        } else {
            self.send(Task::Skip(key));
        }
    }

    /// Makes BPF report a file again when it sees the file again, unless the file's table is stored or will be. Such
    /// requests need no limit: each follows a report, and BPF reports a file only once until it is forgotten.
    pub(crate) fn forget(&self, key: FileKey) {
        self.send(Task::Forget(key));
    }

    /// Makes BPF report frames in a file as frames in memory without a file.
    pub(crate) fn without_file(&self, key: FileKey) {
        self.send(Task::WithoutFile(key));
    }

    /// Makes BPF walk the frames of a process that runs HotSpot.
    pub(crate) fn add_process(&self, new: NewProcess) {
        self.send(Task::AddProcess(Box::new(new)));
    }

    /// Makes BPF report every file again.
    pub(crate) fn forget_all(&self) {
        self.send(Task::ForgetAll);
    }

    fn send(&self, task: Task) {
        // The thread ends only after this handle is dropped, so a send always succeeds.
        let _ended = self.tasks.send(task);
    }
}

/// State of the thread that makes tables.
struct Worker {
    slots: Slots,
    runtimes: Runtimes,
    waiting: Waiting,
    status: Status,
    epoch_ends_ns: u64,
}

impl Worker {
    fn run(mut self, tasks: &Receiver<Task>) {
        loop {
            let wait = self.time_to_next().unwrap_or_else(|error| {
                tracing::warn!("cannot evict unwind tables: {}", causes(&error));
                Duration::from_nanos(EPOCH_NS)
            });
            // Requests come before waiting files, because a request may be to forget one of these files.
            let done = match tasks.recv_timeout(wait) {
                Ok(task) => self.execute(task),
                Err(RecvTimeoutError::Timeout) if wait.is_zero() => self.unwind_next(),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = done.and(self.end_epoch()) {
                tracing::warn!("cannot use unwind tables: {}", causes(&error));
            }
            self.status.set_waiting_unwind_tables(self.waiting.len(), self.waiting.skipped());
            self.status.set_unwind_tables(self.slots.count(), self.slots.bytes(), self.slots.evicted());
        }
    }

    /// Returns the time for which the thread may wait for a request; zero if the table of the next file can be made at
    /// once.
    fn time_to_next(&mut self) -> Result<Duration, MapError> {
        // The minimum is 1 ns, because zero means that a table can be made at once.
        let epoch = Duration::from_nanos(self.epoch_ends_ns.saturating_sub(now_ns()).max(1));
        Ok(if self.waiting.len() == 0 { epoch } else { epoch.min(self.slots.reserve(now_ns())?) })
    }

    fn execute(&mut self, task: Task) -> Result<(), MapError> {
        match task {
            // BPF has reported a file again whose table is stored.
            Task::Unwind(WaitingFile { key, .. }) | Task::Skip(key) | Task::Forget(key) if self.slots.has(&key) => {
                return self.slots.renew(&key, now_ns());
            }
            Task::Unwind(waiting) => self.waiting.push(waiting),
            Task::Skip(key) => self.waiting.skip(key),
            // The file is open already, through another process that has it mapped.
            Task::Forget(key) if self.waiting.has(&key) => {}
            Task::Forget(key) => return self.slots.forget(&key),
            Task::WithoutFile(key) => return self.slots.without_file(key),
            Task::ForgetAll => {
                self.waiting = Waiting::default();
                self.runtimes.forget_files();
                return self.slots.forget_all(now_ns());
            }
            Task::AddProcess(new) => {
                let NewProcess { key, process, recognised } = *new;
                self.store_runtime(&recognised)?;
                return self.slots.store_hotspot(key, &process, recognised.id);
            }
        }
        Ok(())
    }

    fn unwind_next(&mut self) -> Result<(), MapError> {
        let Some(WaitingFile { key, number, file, parts, origin, counted: _counted }) = self.waiting.pop() else {
            return Ok(());
        };
        let Some(table) = timed_table(&file, origin.as_ref()) else { return Ok(()) };
        let path = origin.as_ref().map_or("", |origin| &origin.path);
        let recognised = self.runtimes.recognise(number, &file, path);
        let stored = recognised.as_ref().map_or(Ok(()), |recognised| self.store_runtime(recognised));
        let runtime = recognised.map_or(0, |recognised| recognised.id);
        let entry = FileEntry { runtime, ..file_entry(number, go::labels::of(&file), &parts) };
        let stored = stored.and_then(|()| self.slots.store(key, entry, &table, now_ns()));
        if !matches!(stored, Ok(true)) {
            self.waiting.skip(key);
        }
        stored.map(|_| ())
    }

    /// Stores the description of a runtime, unless BPF has it already.
    fn store_runtime(&mut self, recognised: &Recognised) -> Result<(), MapError> {
        if let Recognised { id, new: Some(runtime) } = recognised {
            self.slots.store_runtime(*id, runtime)?;
            self.runtimes.stored(*id);
        }
        Ok(())
    }

    /// If the epoch is over, begins the next one, and makes BPF report skipped files again.
    fn end_epoch(&mut self) -> Result<(), MapError> {
        if now_ns() < self.epoch_ends_ns {
            return Ok(());
        }
        self.epoch_ends_ns = now_ns() + EPOCH_NS;
        let mut done = self.slots.begin_epoch(now_ns());
        for key in self.waiting.take_skipped() {
            done = done.and(self.slots.forget(&key));
        }
        done
    }
}

fn now_ns() -> u64 {
    clock_ns(Clock::Monotonic)
}

/// Calls [`table_of`] and logs the time it took.
fn timed_table(file: &File, origin: Option<&FileOrigin>) -> Option<UnwindTable> {
    let started_ns = now_ns();
    let table = table_of(file, origin)?;
    let took_ns = now_ns().saturating_sub(started_ns);
    tracing::debug!(?origin, rows = table.rows(), table.rules, bytes = table.bytes(), took_ns, "made an unwind table");
    Some(table)
}

#[cfg(test)]
mod tests;
