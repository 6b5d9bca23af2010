//! Faults of system calls of a running process, which strace injects.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tests::program::signal;

/// Longest time until strace traces all threads of a process.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time until strace has detached from a process.
const DETACH_PATIENCE: Duration = Duration::from_secs(2);

/// An injection, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Injection {
    strace: Child,
    folder: TempDir,
}

impl Injection {
    /// Traces the system calls `calls` of a process, and injects `fault` into them, such as `error=EIO:when=3`. With
    /// `paths`, only calls on these files are traced. Every thread counts its own calls.
    pub(crate) fn attach(pid: i32, calls: &str, fault: &str, paths: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-q", "-ttt", "-e", "signal=none", "-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:{fault}"), "-p", &pid.to_string()]);
        command.arg("-o").arg(folder.path().join("trace"));
        for path in paths {
            command.arg("-P").arg(path);
        }
        let strace = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let began = Instant::now();
        while !is_traced(pid) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { strace, folder }
    }

    /// Returns the number of calls that got the fault, which strace marks.
    pub(crate) fn injected(&self) -> u64 {
        let trace = fs::read_to_string(self.folder.path().join("trace")).unwrap_or_default();
        trace.lines().filter(|line| line.contains("(INJECTED)") || line.contains("(DELAYED)")).count() as u64
    }

    /// Returns the number of traced calls that have begun.
    pub(crate) fn begun(&self) -> u64 {
        let trace = fs::read_to_string(self.folder.path().join("trace")).unwrap_or_default();
        trace.lines().filter(|line| line.contains('(') && !line.contains("resumed>")).count() as u64
    }
}

impl Drop for Injection {
    fn drop(&mut self) {
        // Strace detaches from the process, and ends. It waits in vain if the process is a zombie of which nobody has
        // taken the status; then it is killed.
        signal(self.strace.id().cast_signed(), libc::SIGINT);
        let began = Instant::now();
        while matches!(self.strace.try_wait(), Ok(None)) && began.elapsed() < DETACH_PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop((self.strace.kill(), self.strace.wait()));
    }
}

/// Returns true if all threads of a process are traced, or the process has ended.
fn is_traced(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    })
}
