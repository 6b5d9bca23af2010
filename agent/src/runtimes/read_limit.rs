//! Limits of the time that reads of functions take.
//!
//! Reads are work for the agent, so their CPU time is limited. A process can also make reads slow without work, so the
//! time that passes is limited, too. On a busy host that time is much longer, so its limit allows more.
//!
//! The limit for all processes can be used up by processes that start others again and again. So processes are in
//! groups, by their container or systemd unit, and a group that has read little may then go on for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::reader::{Late, Reader, Timed};
use crate::process::rate_limit::RateLimit;

/// Work that may be done at once for a process: the functions of a large program are met within seconds.
const BURST: Duration = Duration::from_secs(1);
/// Work that may be done at once for all processes: that of a few large programs which start together.
const BURST_OF_ALL: Duration = Duration::from_secs(4);
/// Work that may be done at once for a group, and for all groups, when the limit for all processes is reached.
const BURST_OF_GROUP: Duration = Duration::from_millis(500);
const BURST_OF_GROUPS: Duration = Duration::from_secs(2);
/// Largest number of groups that are known. Others together are one group.
const GROUPS_MAX: usize = 512;

/// Limit of the reads for a process, or for all of them.
#[derive(Debug)]
pub(crate) struct ReadLimit {
    cpu: RateLimit,
    wall: RateLimit,
}

impl ReadLimit {
    /// 1 % of a CPU, and 10 % of the time.
    pub(crate) fn of_process() -> Self {
        Self { cpu: RateLimit::with_burst(100, BURST), wall: RateLimit::with_burst(10, BURST) }
    }

    /// 2 % of a CPU, and 25 % of the time.
    fn of_all() -> Self {
        Self { cpu: RateLimit::with_burst(50, BURST_OF_ALL), wall: RateLimit::with_burst(4, 2 * BURST_OF_ALL) }
    }

    /// 0.5 % of a CPU, and 5 % of the time.
    fn of_group() -> Self {
        Self { cpu: RateLimit::with_burst(200, BURST_OF_GROUP), wall: RateLimit::with_burst(20, 2 * BURST_OF_GROUP) }
    }

    /// 1 % of a CPU, and 12.5 % of the time.
    fn of_groups() -> Self {
        Self { cpu: RateLimit::with_burst(100, BURST_OF_GROUPS), wall: RateLimit::with_burst(8, 2 * BURST_OF_GROUPS) }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { cpu: RateLimit::new(0), wall: RateLimit::new(0) }
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.cpu.is_reached() || self.wall.is_reached()
    }

    pub(crate) fn count(&mut self, cpu: Duration, wall: Duration) {
        self.cpu.count(cpu);
        self.wall.count(wall);
    }
}

/// The limits of the reads for all processes, and for groups of them.
#[derive(Debug)]
pub(crate) struct ReadLimits {
    pub(crate) all: ReadLimit,
    /// Limit of the reads beyond that of all.
    beyond: ReadLimit,
    groups: HashMap<String, ReadLimit>,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { all: ReadLimit::of_all(), beyond: ReadLimit::of_groups(), groups: HashMap::new() }
    }
}

impl ReadLimits {
    /// Returns the limit of a group. Groups that have not reached theirs are forgotten if there are too many.
    fn of_group(&mut self, group: &str) -> &mut ReadLimit {
        if GROUPS_MAX <= self.groups.len() && !self.groups.contains_key(group) {
            self.groups.retain(|_, limit| limit.is_reached());
        }
        let name = if self.groups.len() < GROUPS_MAX || self.groups.contains_key(group) { group } else { "" };
        self.groups.entry(name.to_owned()).or_insert_with(ReadLimit::of_group)
    }

    /// Returns the limit to which a read for a process of `group` counts; `None` if the read would exceed it.
    fn limit_for(&mut self, group: &str) -> Option<&mut ReadLimit> {
        if !self.all.is_reached() {
            return Some(&mut self.all);
        }
        let is_reached = self.of_group(group).is_reached() || self.beyond.is_reached();
        (!is_reached).then_some(&mut self.beyond)
    }

    /// Counts a read to its group. Reads within the limit of all cost a group no more than its own limit.
    fn count_to_group(&mut self, group: &str, cpu: Duration, wall: Duration) {
        let limit = self.of_group(group);
        if !limit.is_reached() {
            limit.count(cpu, wall);
        }
    }
}

/// Runs `read` by the reader, within the limits of a process of `group` and of all processes. `None` if one of them is
/// reached.
pub(crate) fn run<T: Send + 'static>(
    reader: &mut Reader,
    process: &mut ReadLimit,
    (limits, group): (&mut ReadLimits, &str),
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<Result<T, Late>> {
    if process.is_reached() {
        return None;
    }
    let limit = limits.limit_for(group)?;
    let began = Instant::now();
    let read = reader.run(read);
    let cpu = read.as_ref().map_or(Duration::ZERO, |read| read.cpu);
    let wall = began.elapsed();
    process.count(cpu, wall);
    limit.count(cpu, wall);
    limits.count_to_group(group, cpu, wall);
    Some(read.map(|Timed { result, .. }| result))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Reads for a new process of a group as long as it may, each time for 10 ms. Returns the time of all reads.
    fn read_as_much_as_possible(limits: &mut ReadLimits, group: &str) -> Duration {
        let mut time = Duration::ZERO;
        while let Some(limit) = limits.limit_for(group) {
            limit.count(10 * MS, 10 * MS);
            limits.count_to_group(group, 10 * MS, 10 * MS);
            time += 10 * MS;
        }
        time
    }

    #[test]
    fn a_group_that_uses_up_the_limit_of_all_leaves_others_their_own() {
        let mut limits = ReadLimits::default();
        let near = |time: Duration, expected: Duration| time.abs_diff(expected) < 100 * MS;
        let time = read_as_much_as_possible(&mut limits, "hostile");
        assert!(near(time, BURST_OF_ALL), "{time:?}");
        // It goes on, with processes that are new each time.
        assert!(limits.limit_for("hostile").is_none());
        let time = read_as_much_as_possible(&mut limits, "other");
        assert!(near(time, BURST_OF_GROUP), "{time:?}");
        // Very many groups are limited, too.
        let time: Duration =
            (0..1000).map(|group| read_as_much_as_possible(&mut limits, &format!("group {group}"))).sum();
        assert!(near(time, BURST_OF_GROUPS - BURST_OF_GROUP), "{time:?}");
        assert!(limits.groups.len() <= GROUPS_MAX);
    }

    #[test]
    fn a_group_that_has_read_much_may_read_soon_after_that() {
        let mut limits = ReadLimits::default();
        for _ in 0..1000 {
            limits.count_to_group("busy", 100 * MS, 100 * MS);
        }
        read_as_much_as_possible(&mut limits, "hostile");
        assert!(limits.limit_for("busy").is_none());
        let limit = limits.of_group("busy");
        let is_reached_after = |limit: &mut ReadLimit, time: Duration| {
            limit.cpu.pass(time);
            limit.wall.pass(time);
            limit.is_reached()
        };
        assert!(!is_reached_after(limit, 60 * 1000 * MS));
    }

    #[test]
    fn groups_beyond_the_largest_number_are_one() {
        let mut limits = ReadLimits::default();
        for group in 0..GROUPS_MAX {
            limits.count_to_group(&group.to_string(), 1000 * MS, 1000 * MS);
        }
        limits.count_to_group("one more", 1000 * MS, 1000 * MS);
        assert!(limits.of_group("and another").is_reached());
        assert!(limits.groups.len() <= GROUPS_MAX + 1);
    }
}
