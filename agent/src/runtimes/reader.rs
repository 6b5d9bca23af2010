//! Reads of the memory of other processes, each within a limit of time.
//!
//! A process can make a read of its memory take as long as it likes: the memory may be a mapped file, of a file system
//! that the process serves itself. Reads therefore run on a thread of their own. If a read is late, the thread is left
//! alone, and another one takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use crate::process::sys::{Clock, clock_ns};

/// Longest time that a read may take. A read from a disk takes a few milliseconds for each page, and a busy host may
/// run the thread later.
const TIME_MAX: Duration = Duration::from_millis(300);
/// Largest number of threads whose reads are late. If there are so many, nothing is read.
const LATE_MAX: usize = 32;

type Task = Box<dyn FnOnce() + Send>;

/// The read took too long, or too many others still do. The flag is true when the read has returned.
#[derive(Clone, Debug)]
pub(crate) struct Late(Arc<AtomicBool>);

impl Late {
    /// Nothing was read, so that there is no read to wait for.
    fn unread() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// True if the thread that was late is free again.
    pub(crate) fn has_returned(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The result of a read, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timed<T> {
    pub(crate) result: T,
    pub(crate) cpu: Duration,
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
    ) -> Result<Timed<T>, Late> {
        if LATE_MAX <= self.late.load(Ordering::Acquire) {
            return Err(Late::unread());
        }
        let returned = Arc::new(AtomicBool::new(false));
        let (sender, result) = sync_channel(1);
        let returns = Arc::clone(&returned);
        let task: Task = Box::new(move || {
            let began_ns = clock_ns(Clock::ThreadCpu);
            let result = read();
            let cpu = Duration::from_nanos(clock_ns(Clock::ThreadCpu).saturating_sub(began_ns));
            // Nobody waits for the result of a late read.
            drop(sender.send(Timed { result, cpu }));
            returns.store(true, Ordering::Release);
        });
        let tasks = match self.tasks.take() {
            Some(tasks) => tasks,
            None => self.start().ok_or_else(Late::unread)?,
        };
        if tasks.send(task).is_err() {
            return Err(Late::unread());
        }
        match result.recv_timeout(TIME_MAX) {
            Ok(result) => {
                self.tasks = Some(tasks);
                Ok(result)
            }
            Err(_) => {
                self.late.fetch_add(1, Ordering::AcqRel);
                // The thread ends when its task returns, because `tasks` is dropped.
                Err(Late(returned))
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
        assert_eq!(reader.run(|| 1).unwrap().result, 1);
        let (release, released) = channel::<()>();
        let began = Instant::now();
        let late = reader.run(move || released.recv().is_ok()).unwrap_err();
        assert!(began.elapsed() < 10 * TIME_MAX && !late.has_returned());
        assert_eq!(reader.run(|| 2).unwrap().result, 2);
        assert_eq!(reader.late.load(Ordering::Acquire), 1);
        release.send(()).unwrap();
        while reader.late.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        assert!(late.has_returned());
        assert_eq!(reader.run(|| 3).unwrap().result, 3);
    }

    #[test]
    fn nothing_is_read_while_too_many_reads_are_late() {
        let mut reader = Reader::default();
        let releases: Vec<_> = (0..LATE_MAX)
            .map(|_| {
                let (release, released) = channel::<()>();
                assert!(!reader.run(move || released.recv().is_ok()).unwrap_err().has_returned());
                release
            })
            .collect();
        assert!(reader.run(|| 1).unwrap_err().has_returned());
        drop(releases);
        while reader.late.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
        assert_eq!(reader.run(|| 2).unwrap().result, 2);
    }

    #[test]
    fn the_time_of_a_read_is_that_of_the_cpu() {
        let mut reader = Reader::default();
        let asleep = reader.run(|| thread::sleep(Duration::from_millis(20))).unwrap();
        let busy = reader.run(|| {
            let began_ns = clock_ns(Clock::ThreadCpu);
            while clock_ns(Clock::ThreadCpu) < began_ns + 20_000_000 {}
        });
        assert!(asleep.cpu < Duration::from_millis(10), "{asleep:?}");
        assert!(Duration::from_millis(20) <= busy.unwrap().cpu);
    }
}
