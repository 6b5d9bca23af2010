//! Waiting threads: a recorded wait becomes one or more samples, which are weighted by its duration.
//!
//! A wait is reported when it ends. A long wait is also reported once a minute, each time for the time since the last
//! report. So waiting time is reported at most a minute late.
//!
//! Invariants: the location ids of waits are valid in the locator, because all waits are reported and forgotten before
//! ids become void. A wait whose end may have been lost is forgotten, because it would grow for ever.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ebpf::{Sample, WAITS_MAX, WaitEnd};
use foldhash::fast::RandomState;

use super::aggregate::{Aggregate, LocatedSample};
use super::label;
use crate::names::locator::Locator;
use crate::process::key::ProcessKey;
use crate::process::procfs;

/// Time in nanoseconds after which a wait is reported although it continues.
const REPORT_NS: u64 = 60_000_000_000;
/// Largest number of locations of all waits together, which take 4 MB. Waits beyond this limit are not recorded.
const LOCATIONS_MAX: usize = 1 << 20;
/// Largest size of the descriptions of all waiting processes, in bytes. Waits beyond this limit are not recorded.
const RESOURCES_BYTES_MAX: usize = 16 << 20;
/// Largest size of the labels of all waits, in bytes. Waits beyond this limit are not recorded.
const LABELS_BYTES_MAX: usize = 4 << 20;

/// A wait that has not ended.
#[derive(Clone, Debug)]
struct Wait {
    sample: LocatedSample,
    /// Start of the unreported part of the wait: the start of the wait, or the end of its last report.
    since_ktime_ns: u64,
    /// Probability with which the wait was recorded, times 2^32.
    chance: u32,
}

impl Wait {
    /// Returns the waiting time until `ktime_ns` that this wait represents, in nanoseconds: its duration divided by its
    /// probability. The next report begins at `ktime_ns`.
    fn take_until(&mut self, ktime_ns: u64) -> u64 {
        let waited_ns = ktime_ns.saturating_sub(self.since_ktime_ns);
        self.since_ktime_ns = ktime_ns;
        // The largest value, 2^32 - 1, stands for 2^32, because a u32 cannot hold that.
        let chance = u128::from(self.chance) + u128::from(self.chance == u32::MAX);
        u64::try_from((u128::from(waited_ns) << 32) / chance.max(1)).unwrap_or(u64::MAX)
    }
}

/// Every recorded wait that has not ended.
#[derive(Debug, Default)]
pub(crate) struct OffCpu {
    /// Waits by thread ID.
    waits: HashMap<u32, Wait, RandomState>,
    locations: usize,
    /// For each process: the number of its waits, and the size of its description in bytes.
    processes: HashMap<ProcessKey, (u32, usize), RandomState>,
    resources_bytes: usize,
    labels_bytes: usize,
}

impl OffCpu {
    /// Adds the start of a wait. Returns false if a limit is reached.
    pub(crate) fn begin(&mut self, sample: &Sample<'_>, locator: &mut Locator) -> bool {
        let header = &sample.header;
        // The end of an earlier wait of this thread was lost, so its duration is unknown.
        self.remove(header.tid);
        let mut stack = Vec::new();
        locator.locate(sample, &mut stack);
        locator.search_context(sample);
        let key = ProcessKey::of(sample);
        let resource = locator.resource(sample);
        let labels = label::of(sample);
        let bytes = if self.processes.contains_key(&key) { 0 } else { resource.bytes() };
        if WAITS_MAX <= self.waits.len()
            || LOCATIONS_MAX < self.locations + stack.len()
            || RESOURCES_BYTES_MAX < self.resources_bytes + bytes
            || LABELS_BYTES_MAX < self.labels_bytes + label::bytes(&labels)
        {
            return false;
        }
        self.resources_bytes += bytes;
        self.processes.entry(key).or_insert((0, bytes)).0 += 1;
        self.labels_bytes += label::bytes(&labels);
        self.locations += stack.len();
        let sample = LocatedSample {
            key,
            resource,
            stack: stack.into(),
            labels,
            link: sample.link,
            tid: header.tid,
            cpu: header.cpu,
            comm: header.comm,
        };
        self.waits.insert(header.tid, Wait { sample, since_ktime_ns: header.ktime_ns, chance: header.chance });
        true
    }

    fn remove(&mut self, tid: u32) -> Option<Wait> {
        let wait = self.waits.remove(&tid)?;
        self.labels_bytes -= label::bytes(&wait.sample.labels);
        self.locations -= wait.sample.stack.len();
        if let Entry::Occupied(mut process) = self.processes.entry(wait.sample.key) {
            process.get_mut().0 -= 1;
            if process.get().0 == 0 {
                let (_, bytes) = process.remove();
                self.resources_bytes -= bytes;
            }
        }
        Some(wait)
    }

    /// Forgets all waits. Returns their number.
    pub(crate) fn forget_all(&mut self) -> u64 {
        std::mem::take(self).waits.len() as u64
    }

    /// Reports a wait that has ended. Returns the number of samples added to `aggregate`.
    pub(crate) fn end(&mut self, end: &WaitEnd, aggregate: &mut Aggregate) -> u64 {
        match self.remove(end.tid) {
            Some(mut wait) if end.since_ktime_ns <= wait.since_ktime_ns => report(&mut wait, end.ktime_ns, aggregate),
            // The end belongs to a later wait of this thread. The start of that wait was lost, and so was the end of
            // the wait in the map.
            Some(_) | None => 0,
        }
    }

    /// Reports long waits that continue, and forgets those whose thread has ended. Returns the number of samples added.
    pub(crate) fn report_long(&mut self, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        let is_long = |wait: &Wait| REPORT_NS <= ktime_ns.saturating_sub(wait.since_ktime_ns);
        let ended: Vec<_> = self
            .waits
            .values()
            .filter(|wait| is_long(wait) && !procfs::is_thread(wait.sample.key.pid, wait.sample.tid))
            .map(|wait| wait.sample.tid)
            .collect();
        for tid in ended {
            self.remove(tid);
        }
        self.waits.values_mut().filter(|wait| is_long(wait)).map(|wait| report(wait, ktime_ns, aggregate)).sum()
    }

    /// Reports every wait up to `ktime_ns`. Returns the number of samples added.
    pub(crate) fn report_all(&mut self, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        self.waits.values_mut().map(|wait| report(wait, ktime_ns, aggregate)).sum()
    }
}

fn report(wait: &mut Wait, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
    let waited_ns = wait.take_until(ktime_ns);
    if waited_ns == 0 {
        return 0;
    }
    aggregate.add_wait(&wait.sample, ktime_ns, waited_ns);
    1
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::sync::Arc;

    use ebpf::SampleHeader;

    use super::*;
    use crate::process::test_record::TestRecord;

    /// Records the start of a wait of a thread of this process.
    fn begin(off_cpu: &mut OffCpu, locator: &mut Locator, tid: u32, ktime_ns: u64, chance: u32) -> bool {
        let mut bytes = TestRecord { tid, ktime_ns, user: &[1], ..TestRecord::default() }.bytes();
        let at = offset_of!(SampleHeader, chance);
        bytes[at..at + 4].copy_from_slice(&chance.to_ne_bytes());
        off_cpu.begin(&Sample::read(&bytes).unwrap(), locator)
    }

    fn reported(aggregate: &mut Aggregate) -> Vec<(u32, u64, u64)> {
        let waits = aggregate.take_sorted_waits();
        waits.into_iter().map(|(identity, ktime_ns, waited_ns)| (identity.tid, ktime_ns, waited_ns)).collect()
    }

    #[test]
    fn a_wait_is_weighted_by_the_inverse_of_its_probability() {
        let mut off_cpu = OffCpu::default();
        let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut aggregate = Aggregate::default();
        for (tid, chance) in [(1, u32::MAX), (2, 1 << 31), (3, 1)] {
            assert!(begin(&mut off_cpu, &mut locator, tid, 1_000, chance));
            let end = WaitEnd { since_ktime_ns: 1_000, ktime_ns: 1_500, tid };
            assert_eq!(off_cpu.end(&end, &mut aggregate), 1);
            assert_eq!(off_cpu.end(&end, &mut aggregate), 0, "it has ended");
        }
        assert_eq!(reported(&mut aggregate), [(1, 1_500, 500), (2, 1_500, 1_000), (3, 1_500, 500 << 32)]);
        assert_eq!(
            (off_cpu.waits.len(), off_cpu.locations, off_cpu.processes.len(), off_cpu.resources_bytes),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn a_long_wait_is_reported_every_minute_and_no_time_twice() {
        let mut off_cpu = OffCpu::default();
        let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut aggregate = Aggregate::default();
        let tid = std::process::id();
        begin(&mut off_cpu, &mut locator, tid, 0, u32::MAX);
        assert_eq!(off_cpu.report_long(REPORT_NS - 1, &mut aggregate), 0);
        assert_eq!(off_cpu.report_long(REPORT_NS + 5, &mut aggregate), 1);
        assert_eq!(off_cpu.report_long(REPORT_NS + 6, &mut aggregate), 0);
        let end = WaitEnd { since_ktime_ns: 0, ktime_ns: REPORT_NS + 105, tid };
        assert_eq!(off_cpu.end(&end, &mut aggregate), 1);
        assert_eq!(reported(&mut aggregate), [(tid, REPORT_NS + 5, REPORT_NS + 5), (tid, REPORT_NS + 105, 100)]);
    }

    #[test]
    fn a_wait_whose_end_was_lost_is_replaced_or_forgotten() {
        let mut off_cpu = OffCpu::default();
        let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut aggregate = Aggregate::default();
        begin(&mut off_cpu, &mut locator, 1, 1_000, u32::MAX);
        begin(&mut off_cpu, &mut locator, 1, 5_000, u32::MAX);
        assert_eq!(off_cpu.end(&WaitEnd { since_ktime_ns: 5_000, ktime_ns: 5_100, tid: 1 }, &mut aggregate), 1);
        // No thread of this process has this id.
        begin(&mut off_cpu, &mut locator, u32::MAX, 0, u32::MAX);
        assert_eq!(off_cpu.report_long(2 * REPORT_NS, &mut aggregate), 0);
        // The thread has waited twice. The end of the first wait and the start of the second were lost.
        begin(&mut off_cpu, &mut locator, 2, 1_000, u32::MAX);
        assert_eq!(off_cpu.end(&WaitEnd { since_ktime_ns: 7_000, ktime_ns: 7_100, tid: 2 }, &mut aggregate), 0);
        assert_eq!(reported(&mut aggregate), [(1, 5_100, 100)]);
        assert_eq!(
            (off_cpu.waits.len(), off_cpu.locations, off_cpu.processes.len(), off_cpu.resources_bytes),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn all_waits_are_reported_at_the_end_and_limits_hold() {
        let mut off_cpu = OffCpu::default();
        let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut aggregate = Aggregate::default();
        let began = (0..).take_while(|tid| begin(&mut off_cpu, &mut locator, *tid, 10, u32::MAX)).count();
        assert_eq!(began, WAITS_MAX);
        assert_eq!(off_cpu.report_all(30, &mut aggregate), WAITS_MAX as u64);
        assert_eq!(off_cpu.report_all(30, &mut aggregate), 0, "once");
        assert_eq!(off_cpu.forget_all(), WAITS_MAX as u64);
        assert!(reported(&mut aggregate).iter().all(|(_, ktime_ns, waited_ns)| (*ktime_ns, *waited_ns) == (30, 20)));
        assert!(begin(&mut off_cpu, &mut locator, 1, 40, u32::MAX));
        off_cpu.locations = LOCATIONS_MAX;
        assert!(!begin(&mut off_cpu, &mut locator, 2, 40, u32::MAX));
        off_cpu.locations = 1;
        // Another thread of the same process shares its description.
        off_cpu.resources_bytes = RESOURCES_BYTES_MAX;
        assert!(begin(&mut off_cpu, &mut locator, 2, 40, u32::MAX));
        off_cpu.processes.clear();
        assert!(!begin(&mut off_cpu, &mut locator, 3, 40, u32::MAX));
    }
}
