//! Reads the CPU time and memory of measured processes, and ends processes.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Number of ticks per second. Times in /proc are numbers of ticks. This is USER_HZ, the same on every Linux on which
/// varve runs.
const TICKS_PER_S: f64 = 100.0;

/// Time for which this thread has run on a core. Unlike elapsed time, it does not depend on other load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreTime(Duration);

impl CoreTime {
    /// Reads the core time since this thread started. The kernel updates this time only every few milliseconds. One
    /// short span is therefore inexact, and only the sum of many spans is exact.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        let ns = text.split(' ').next().context("/proc/thread-self/schedstat is empty")?;
        Ok(Self(Duration::from_nanos(ns.parse()?)))
    }

    /// Returns the core time that has passed since this value was read.
    pub(crate) fn elapsed(self) -> anyhow::Result<Duration> {
        Ok(Self::now()?.0.saturating_sub(self.0))
    }
}

/// Reads the fields of /proc/PID/stat that follow the name of the process. The first of these fields is the state.
pub(crate) fn stat(pid: &str) -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, behind_name) = text.rsplit_once(") ").context("/proc/PID/stat has no name")?;
    Ok(behind_name.split_whitespace().map(str::to_owned).collect())
}

/// Returns the CPU time that a process has used since its start, in seconds, with a resolution of 10 ms. This is user
/// and kernel time, including that of children that ended. `pid` may be `self`.
pub(crate) fn cpu_s(pid: &str) -> anyhow::Result<f64> {
    let stat = stat(pid)?;
    // Fields 14 to 17 of proc(5): utime, stime, cutime, cstime. The first element of `stat`, the state, is field 3.
    let ticks = stat.get(11..15).context("/proc/PID/stat is short")?;
    let ticks: Vec<u64> = ticks.iter().map(|ticks| ticks.parse()).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<u64>() as f64 / TICKS_PER_S)
}

/// Returns the largest resident memory that a process has had since its start, in bytes. `pid` may be `self`.
pub(crate) fn peak_rss_bytes(pid: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

/// A process and its descendants, which are one process group. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Group(pub(crate) Child);

impl Group {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        Ok(Self(command.process_group(0).stdin(Stdio::null()).spawn().context(name)?))
    }

    pub(crate) fn end(&mut self, patience: Duration) -> anyhow::Result<()> {
        let group = format!("-{}", self.0.id());
        let signal = |name: &str| Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status();
        signal("-TERM")?;
        let began = Instant::now();
        while self.0.try_wait()?.is_none() && began.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        signal("-KILL")?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // An error is ignored: the process may have ended already.
        drop(self.end(Duration::ZERO));
    }
}

/// Returns the path given by `--binary`, or else the path of the varve beside this program.
pub(crate) fn varve_binary(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("varve"),
    };
    path.canonicalize().with_context(|| format!("{}: build it (make build), or name one with --binary", path.display()))
}
