//! Reads of the memory of other processes, each within a limit of time.
//!
//! A process can make a read of its memory take as long as it likes: the memory may be a mapped file, of a file system
//! that the process serves itself. Reads therefore run on a thread of their own. If a read is late, the thread is left
//! alone, and another one takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::sys::{Clock, clock_ns};

/// Longest time that a read may take. A read from a disk takes a few milliseconds for each page, and a busy host may
/// run the thread later.
pub(crate) const TIME_MAX: Duration = Duration::from_millis(200);
/// Number of times that waiting for a read may be longer than the work, before it counts as work. On a busy host, the
/// thread waits for a CPU.
const WAIT_PARTS: u32 = 10;
/// Largest number of threads whose reads are late. If there are so many, nothing is read.
const LATE_MAX: usize = 8;

type Task = Box<dyn FnOnce() + Send>;

/// The read took too long, or too many others still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// A read that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done<T> {
    pub(crate) result: T,
    /// The work: the CPU time of the read, or a tenth of its whole time if that is longer. A process whose reads are
    /// slow but not late thus cannot hold up the agent for long.
    pub(crate) work: Duration,
}

/// The thread that reads, and the number of earlier ones that do not return.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    tasks: Option<Sender<Task>>,
    late: Arc<AtomicUsize>,
}

impl Reader {
    /// Runs `read` on the other thread, and waits for its result.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Done<T>, Late> {
        if LATE_MAX <= self.late.load(Ordering::Acquire) {
            return Err(Late);
        }
        let (sender, result) = sync_channel(1);
        // Nobody waits for the result of a late read.
        let task: Task = Box::new(move || {
            let before_ns = clock_ns(Clock::Thread);
            let result = read();
            drop(sender.send((result, Duration::from_nanos(clock_ns(Clock::Thread) - before_ns))));
        });
        let began = Instant::now();
        let tasks = match self.tasks.take() {
            Some(tasks) => tasks,
            None => self.start().ok_or(Late)?,
        };
        if tasks.send(task).is_err() {
            return Err(Late);
        }
        match result.recv_timeout(TIME_MAX) {
            Ok((result, cpu)) => {
                self.tasks = Some(tasks);
                Ok(Done { result, work: cpu.max(began.elapsed() / WAIT_PARTS) })
            }
            Err(_) => {
                self.late.fetch_add(1, Ordering::AcqRel);
                // The thread ends when its task returns, because `tasks` is dropped.
                Err(Late)
            }
        }
    }

    /// Starts a thread. It ends when nobody can give it a task any more.
    fn start(&self) -> Option<Sender<Task>> {
        let (sender, tasks) = channel::<Task>();
        let late = Arc::clone(&self.late);
        let run = move || {
            tasks.iter().for_each(|task| task());
            late.fetch_sub(1, Ordering::AcqRel);
        };
        let started = thread::Builder::new().name("varve-read".to_owned()).spawn(run);
        started.inspect_err(|error| tracing::warn!("cannot start a thread that reads names: {error}")).ok()?;
        Some(sender)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_late_read_is_left_alone_and_the_next_ones_run() {
        let mut reader = Reader::default();
        assert_eq!(reader.run(|| 1).map(|done| done.result), Ok(1));
        let (release, released) = channel::<()>();
        let began = Instant::now();
        assert_eq!(reader.run(move || released.recv().is_ok()).err(), Some(Late));
        assert!(began.elapsed() < 10 * TIME_MAX);
        assert_eq!(reader.run(|| 2).map(|done| done.result), Ok(2));
        assert_eq!(reader.late.load(Ordering::Acquire), 1);
        release.send(()).unwrap();
        while reader.late.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        assert_eq!(reader.run(|| 3).map(|done| done.result), Ok(3));
    }

    #[test]
    fn nothing_is_read_while_too_many_reads_are_late() {
        let mut reader = Reader::default();
        let releases: Vec<_> = (0..LATE_MAX)
            .map(|_| {
                let (release, released) = channel::<()>();
                assert_eq!(reader.run(move || released.recv().is_ok()).err(), Some(Late));
                release
            })
            .collect();
        assert_eq!(reader.run(|| 1).err(), Some(Late));
        drop(releases);
        while reader.late.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        assert_eq!(reader.run(|| 2).map(|done| done.result), Ok(2));
    }

    #[test]
    fn waiting_counts_as_a_tenth_of_work() {
        let mut reader = Reader::default();
        // On a busy host, a read may be late.
        let mut work_of = |read: fn()| (0..LATE_MAX).find_map(|_| reader.run(read).ok()).unwrap().work;
        let waited = work_of(|| thread::sleep(Duration::from_millis(50)));
        assert!((Duration::from_millis(5)..Duration::from_millis(50)).contains(&waited), "{waited:?}");
        let worked = work_of(|| {
            let end_ns = clock_ns(Clock::Thread) + 5_000_000;
            while clock_ns(Clock::Thread) < end_ns {}
        });
        assert!(Duration::from_millis(5) <= worked, "{worked:?}");
    }
}
