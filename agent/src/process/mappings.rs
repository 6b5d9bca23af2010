//! The executable mappings of one process, read when they are needed and read again when they may have changed.
//!
//! The mappings are read when BPF first reports an address of the process that is in no file. They are read again when
//! an address is in none of them. As long as that does not find the address, the time between two reads grows, because
//! a process can jump to such addresses all the time. Mappings are also read again after [`STALE_NS`], because another
//! mapping may have replaced one of them.

use std::io;

use super::key::ProcessKey;
use super::maps::{Maps, ProcessMapping};
use super::rate_limit::RateLimit;

/// Shortest time between two reads of the mappings, in nanoseconds.
pub(crate) const REREAD_NS_MIN: u64 = 100_000_000;
/// Longest time, in nanoseconds, between two reads of the mappings while addresses lie in none of them.
const REREAD_NS_MAX: u64 = 25_600_000_000;
/// Age in nanoseconds at which the mappings are read again: on the next sample, or on a later one if the rate limit
/// forbids it.
const STALE_NS: u64 = 10_000_000_000;

/// Reason why the mapping of an address is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapsError {
    /// No executable mapping holds the address.
    NotMapped,
    /// The process ended before its mappings could be read.
    Exited,
    /// The mappings were not read yet, or may not be read.
    Unreadable,
}

/// The executable mappings of one process.
#[derive(Debug)]
pub(crate) struct ProcessMappings {
    key: ProcessKey,
    maps: Result<Maps, MapsError>,
    /// Number of reads that found changed mappings.
    changes: u64,
    reread_after_ns: u64,
    reread_interval_ns: u64,
    stale_after_ns: u64,
}

impl ProcessMappings {
    /// Creates mappings that were not read yet. Until they are read, every lookup fails with `reason`.
    pub(crate) fn unread(key: ProcessKey, reason: MapsError, ktime_ns: u64) -> Self {
        Self {
            key,
            maps: Err(reason),
            changes: 0,
            reread_after_ns: ktime_ns,
            reread_interval_ns: REREAD_NS_MIN / 2,
            stale_after_ns: ktime_ns + STALE_NS,
        }
    }

    /// Finds the mapping that holds `address`, which was sampled at `ktime_ns`. Reads the mappings again if necessary.
    pub(crate) fn find(
        &mut self,
        address: u64,
        ktime_ns: u64,
        rate_limit: &mut RateLimit,
    ) -> Result<&ProcessMapping, MapsError> {
        if !self.holds(address) && self.reread(ktime_ns, rate_limit) && self.holds(address) {
            self.reread_interval_ns = REREAD_NS_MIN;
            self.reread_after_ns = ktime_ns + REREAD_NS_MIN;
        }
        match &self.maps {
            Ok(maps) => maps.find(address).ok_or(MapsError::NotMapped),
            Err(reason) => Err(*reason),
        }
    }

    /// Returns the first mapping of a file whose last path component is `name`. Reads the mappings again if there is
    /// none.
    pub(crate) fn find_file(
        &mut self,
        name: &str,
        ktime_ns: u64,
        rate_limit: &mut RateLimit,
    ) -> Option<&ProcessMapping> {
        if self.maps().is_none_or(|maps| maps.find_file(name).is_none()) {
            self.reread(ktime_ns, rate_limit);
        }
        self.maps()?.find_file(name)
    }

    fn holds(&self, address: u64) -> bool {
        self.maps.as_ref().is_ok_and(|maps| maps.find(address).is_some())
    }

    /// Reads the mappings again, doubles the time to the next read, and returns true. Does nothing and returns false if
    /// the mappings were read lately or the rate limit forbids a read.
    fn reread(&mut self, ktime_ns: u64, rate_limit: &mut RateLimit) -> bool {
        if ktime_ns < self.reread_after_ns || !self.read(ktime_ns, rate_limit) {
            return false;
        }
        self.reread_interval_ns = (self.reread_interval_ns * 2).min(REREAD_NS_MAX);
        self.reread_after_ns = ktime_ns + self.reread_interval_ns;
        true
    }

    /// Reads the mappings again if they are older than [`STALE_NS`].
    pub(crate) fn refresh(&mut self, ktime_ns: u64, rate_limit: &mut RateLimit) {
        if self.stale_after_ns <= ktime_ns && self.maps.is_ok() {
            self.read(ktime_ns, rate_limit);
        }
    }

    fn read(&mut self, ktime_ns: u64, rate_limit: &mut RateLimit) -> bool {
        let key = self.key;
        let read = || if key.is_running() { read_maps(key.pid) } else { Err(MapsError::Exited) };
        let Some(read) = rate_limit.run(read) else { return false };
        self.stale_after_ns = ktime_ns + STALE_NS;
        match read {
            Ok(maps) => self.replace(maps),
            // The mappings of a process that has ended meanwhile are still right. A process that seemed to have ended
            // may have been inside execve, without mappings.
            Err(reason) if self.maps.is_err() => self.maps = Err(reason),
            Err(_) => {}
        }
        true
    }

    fn replace(&mut self, maps: Maps) {
        if self.maps.as_ref().is_ok_and(|old| old.has_same_code(&maps)) {
            return;
        }
        self.maps = Ok(maps);
        self.changes += 1;
    }

    /// Mappings that were read last; `None` if none were read yet.
    pub(crate) fn maps(&self) -> Option<&Maps> {
        self.maps.as_ref().ok()
    }

    /// Number of times that the mappings have changed. Data that was derived from older mappings is void.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Approximate memory that the mappings take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.maps.as_ref().map_or(0, Maps::bytes)
    }
}

fn read_maps(pid: u32) -> Result<Maps, MapsError> {
    match Maps::of_process(pid) {
        // A process without mappings is ending: it has given its memory back already.
        Ok(maps) if maps.len() == 0 => Err(MapsError::Exited),
        Ok(maps) => {
            if maps.lines_skipped != 0 {
                tracing::debug!(pid, lines = maps.lines_skipped, "skipped mappings of a process");
            }
            Ok(maps)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(MapsError::Unreadable),
        Err(_) => Err(MapsError::Exited),
    }
}
