//! Threads that wait: from the record of a wait's beginning to the samples of how long it lasted.
//!
//! A wait is reported when it ends, and one that lasts long also once a minute: as much as has passed since the last report. So what is
//! reported of a time lies within it, but for a minute.
//!
//! Invariants: the locations of waits are of the locator's present age; what is waited for when that ends is reported up to then. A wait
//! whose end may have been lost is forgotten: it would grow for ever.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ebpf::{Sample, WAITS_MAX, WaitEnd};
use foldhash::fast::RandomState;

use crate::aggregate::Aggregate;
use crate::label::{self, Labels};
use crate::location::LocationId;
use crate::locator::Locator;
use crate::process::ProcessKey;
use crate::procfs;
use crate::resource::Resource;

/// A wait is reported after this time, though it goes on.
const REPORT_NS: u64 = 60_000_000_000;
/// Locations of all waits together, 4 MB; the wait with which there are more is not recorded.
const LOCATIONS_MAX: usize = 1 << 20;

/// Descriptions of the processes of all waits together, in bytes; the same.
const RESOURCES_BYTES_MAX: usize = 16 << 20;

/// Labels of all waits together, in bytes; the same.
const LABELS_BYTES_MAX: usize = 4 << 20;

/// A thread that waits, and where.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) key: ProcessKey,
    pub(crate) resource: Arc<Resource>,
    pub(crate) stack: Box<[LocationId]>,
    pub(crate) labels: Labels,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) comm: [u8; 16],
    /// When it began, or until when it is reported.
    since_ktime_ns: u64,
    /// Of how many waits this one stands for, the reciprocal.
    chance: u32,
}

impl Wait {
    /// What a wait until `ktime_ns` stands for, in nanoseconds; from then on it is another.
    fn take_until(&mut self, ktime_ns: u64) -> u64 {
        let waited_ns = ktime_ns.saturating_sub(self.since_ktime_ns);
        self.since_ktime_ns = ktime_ns;
        // 2^32 - 1 stands for 2^32.
        let chance = u128::from(self.chance) + u128::from(self.chance == u32::MAX);
        u64::try_from((u128::from(waited_ns) << 32) / chance.max(1)).unwrap_or(u64::MAX)
    }
}

/// Every wait that is recorded and has not ended.
#[derive(Debug, Default)]
pub(crate) struct OffCpu {
    /// By thread.
    waits: HashMap<u32, Wait, RandomState>,
    locations: usize,
    /// How many waits each process has, and the bytes of its description.
    processes: HashMap<ProcessKey, (u32, usize), RandomState>,
    resources_bytes: usize,
    labels_bytes: usize,
}

impl OffCpu {
    /// Takes in the beginning of a wait; says no where there is no room.
    pub(crate) fn begin(&mut self, sample: &Sample<'_>, locator: &mut Locator) -> bool {
        let header = &sample.header;
        // Of a wait whose end was lost, nobody knows how long it was.
        self.remove(header.tid);
        let mut stack = Vec::new();
        locator.locate(sample, &mut stack);
        let (key, resource) = (ProcessKey::of(sample), locator.resource(sample));
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
        let wait = Wait {
            key,
            resource,
            stack: stack.into(),
            labels,
            tid: header.tid,
            cpu: header.cpu,
            comm: header.comm,
            since_ktime_ns: header.ktime_ns,
            chance: header.chance,
        };
        self.labels_bytes += label::bytes(&wait.labels);
        self.locations += wait.stack.len();
        self.waits.insert(header.tid, wait);
        true
    }

    fn remove(&mut self, tid: u32) -> Option<Wait> {
        let wait = self.waits.remove(&tid)?;
        self.labels_bytes -= label::bytes(&wait.labels);
        self.locations -= wait.stack.len();
        if let Entry::Occupied(mut process) = self.processes.entry(wait.key) {
            process.get_mut().0 -= 1;
            if process.get().0 == 0 {
                let (_, bytes) = process.remove();
                self.resources_bytes -= bytes;
            }
        }
        Some(wait)
    }

    /// Forgets all; returns how many there were.
    pub(crate) fn forget_all(&mut self) -> u64 {
        std::mem::take(self).waits.len() as u64
    }

    /// Reports a wait that has ended; returns how many samples that are.
    pub(crate) fn end(&mut self, end: &WaitEnd, aggregate: &mut Aggregate) -> u64 {
        match self.remove(end.tid) {
            Some(mut wait) if end.since_ktime_ns <= wait.since_ktime_ns => report(&mut wait, end.ktime_ns, aggregate),
            // Of another wait, whose beginning was lost, and so was the end of this one.
            Some(_) | None => 0,
        }
    }

    /// Reports what has lasted for long, and goes on; what has lost its end, because its thread is gone, is forgotten. Returns how many
    /// samples that are.
    pub(crate) fn report_long(&mut self, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        let is_long = |wait: &Wait| REPORT_NS <= ktime_ns.saturating_sub(wait.since_ktime_ns);
        let gone: Vec<_> = self
            .waits
            .values()
            .filter(|wait| is_long(wait) && !procfs::is_thread(wait.key.pid, wait.tid))
            .map(|wait| wait.tid)
            .collect();
        for tid in gone {
            self.remove(tid);
        }
        self.waits.values_mut().filter(|wait| is_long(wait)).map(|wait| report(wait, ktime_ns, aggregate)).sum()
    }

    /// Reports everything up to now. Returns how many samples that are.
    pub(crate) fn report_all(&mut self, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        self.waits.values_mut().map(|wait| report(wait, ktime_ns, aggregate)).sum()
    }
}

fn report(wait: &mut Wait, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
    let waited_ns = wait.take_until(ktime_ns);
    if waited_ns == 0 {
        return 0;
    }
    aggregate.add_wait(wait, ktime_ns, waited_ns);
    1
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use ebpf::SampleHeader;

    use super::*;
    use crate::test_record::TestRecord;

    /// Records the beginning of a wait of a thread of this process.
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
    fn a_wait_stands_for_as_many_as_its_chance_says() {
        let (mut off_cpu, mut locator, mut aggregate) =
            (OffCpu::default(), Locator::new(Arc::default()), Aggregate::default());
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
    fn a_long_wait_is_reported_by_the_minute_and_only_once() {
        let (mut off_cpu, mut locator, mut aggregate) =
            (OffCpu::default(), Locator::new(Arc::default()), Aggregate::default());
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
    fn a_wait_whose_end_was_lost_is_replaced_or_forgotten_and_never_counted_on() {
        let (mut off_cpu, mut locator, mut aggregate) =
            (OffCpu::default(), Locator::new(Arc::default()), Aggregate::default());
        begin(&mut off_cpu, &mut locator, 1, 1_000, u32::MAX);
        begin(&mut off_cpu, &mut locator, 1, 5_000, u32::MAX);
        assert_eq!(off_cpu.end(&WaitEnd { since_ktime_ns: 5_000, ktime_ns: 5_100, tid: 1 }, &mut aggregate), 1);
        // No thread of this process has this number.
        begin(&mut off_cpu, &mut locator, u32::MAX, 0, u32::MAX);
        assert_eq!(off_cpu.report_long(2 * REPORT_NS, &mut aggregate), 0);
        // The end of one whose beginning was lost, too, with the end of the one before.
        begin(&mut off_cpu, &mut locator, 2, 1_000, u32::MAX);
        assert_eq!(off_cpu.end(&WaitEnd { since_ktime_ns: 7_000, ktime_ns: 7_100, tid: 2 }, &mut aggregate), 0);
        assert_eq!(reported(&mut aggregate), [(1, 5_100, 100)]);
        assert_eq!(
            (off_cpu.waits.len(), off_cpu.locations, off_cpu.processes.len(), off_cpu.resources_bytes),
            (0, 0, 0, 0)
        );
    }

    #[test]
    fn at_the_end_everything_is_reported_and_there_is_room_for_no_more_than_there_may_be() {
        let (mut off_cpu, mut locator, mut aggregate) =
            (OffCpu::default(), Locator::new(Arc::default()), Aggregate::default());
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
        // Another thread of the same process needs no description of its own.
        off_cpu.resources_bytes = RESOURCES_BYTES_MAX;
        assert!(begin(&mut off_cpu, &mut locator, 2, 40, u32::MAX));
        off_cpu.processes.clear();
        assert!(!begin(&mut off_cpu, &mut locator, 3, 40, u32::MAX));
    }
}
