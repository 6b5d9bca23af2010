//! Cost of the agent: CPU time and memory of its process, run time of its BPF programs, and memory of its BPF maps.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use aya::maps::loaded_maps;
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};

/// Measurement of the BPF programs and maps that are loaded after this value is created. Those of other processes are
/// included, so no other process may load BPF programs during the measurement.
#[derive(Debug)]
pub(crate) struct Bpf {
    /// IDs of the programs that were loaded before this value was created. They are not measured.
    programs: HashSet<u32>,
    /// IDs of the maps that existed before this value was created. They are not measured.
    maps: HashSet<u32>,
    /// While this file descriptor is open, the kernel measures the run times of BPF programs.
    _measuring: OwnedFd,
}

impl Bpf {
    pub(crate) fn before() -> anyhow::Result<Self> {
        let _measuring = enable_stats(Stats::RunTime).context("BPF's run time takes root to be measured")?;
        let programs = loaded_programs().flatten().map(|program| program.id()).collect();
        Ok(Self { programs, maps: loaded_maps().flatten().map(|map| map.id()).collect(), _measuring })
    }

    /// Returns the run time of all measured programs since they were loaded.
    pub(crate) fn run_time(&self) -> Duration {
        let new = loaded_programs().flatten().filter(|program| !self.programs.contains(&program.id()));
        new.map(|program| program.run_time()).sum()
    }

    /// Returns the memory of all measured maps, in bytes.
    pub(crate) fn map_bytes(&self) -> u64 {
        let new = loaded_maps().flatten().filter(|map| !self.maps.contains(&map.id()));
        // A map that was removed in the meantime cannot be opened, and counts as 0.
        new.filter_map(|map| {
            let map = map.fd().ok()?;
            let said = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd())).ok()?;
            said.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse::<u64>().ok()
        })
        .sum()
    }
}

/// Returns the CPU time that a process has used since its start: user and kernel time of all its threads, including
/// ended threads. It includes the time of BPF programs that interrupted the process.
#[allow(unsafe_code, reason = "the standard library has no clocks of processes")]
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock` outlives the call.
    let error = unsafe { libc::clock_getcpuclockid(i32::try_from(pid)?, &raw mut clock) };
    anyhow::ensure!(error == 0, "the clock of process {pid}: {}", io::Error::from_raw_os_error(error));
    // SAFETY: `time` outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    anyhow::ensure!(result == 0, "the clock of process {pid}: {}", io::Error::last_os_error());
    Ok(Duration::new(time.tv_sec.try_into()?, time.tv_nsec.try_into()?))
}

/// Returns the current and the peak resident memory of a process, in bytes.
pub(crate) fn memory(pid: u32) -> anyhow::Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("the status of a process")?;
        Ok::<u64, anyhow::Error>(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}
