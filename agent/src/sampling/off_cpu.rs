//! Waiting threads: a recorded wait becomes one or more samples, which are weighted by its duration.
//!
//! A wait is reported when it ends. A long wait is also reported once a minute, each time for the time since the last
//! report. So waiting time is reported at most a minute late.
//!
//! Invariants: all waits of a process have the description that it had when the last of them began. The location
//! ids of waits are valid in the locator, because all waits are reported and forgotten before ids become void. A wait
//! whose end may have been lost is forgotten, because it would grow for ever.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ebpf::{Sample, WAITS_MAX, WaitEnd};
use foldhash::fast::RandomState;

use super::aggregate::{Aggregate, LocatedSample};
use super::label;
use crate::names::locator::Locator;
use crate::process::key::ProcessKey;
use crate::process::procfs;
use crate::process::resource::Resource;

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

/// A process with waits.
#[derive(Debug)]
struct WaitingProcess {
    resource: Arc<Resource>,
    waits: u32,
}

/// Every recorded wait that has not ended.
#[derive(Debug, Default)]
pub(crate) struct OffCpu {
    /// Waits by thread ID.
    waits: HashMap<u32, Wait, RandomState>,
    locations: usize,
    processes: HashMap<ProcessKey, WaitingProcess, RandomState>,
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
        let bytes_before = self.processes.get(&key).map_or(0, |process| process.resource.bytes());
        let resources_bytes = self.resources_bytes - bytes_before + resource.bytes();
        if WAITS_MAX <= self.waits.len()
            || LOCATIONS_MAX < self.locations + stack.len()
            || RESOURCES_BYTES_MAX < resources_bytes
            || LABELS_BYTES_MAX < self.labels_bytes + label::bytes(&labels)
        {
            return false;
        }
        self.resources_bytes = resources_bytes;
        let waits = self.processes.get(&key).map_or(0, |process| process.waits);
        self.processes.insert(key, WaitingProcess { resource, waits: waits + 1 });
        self.labels_bytes += label::bytes(&labels);
        self.locations += stack.len();
        let sample = LocatedSample {
            key,
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

    /// Removes a wait, and returns it with the description of its process.
    fn remove(&mut self, tid: u32) -> Option<(Wait, Arc<Resource>)> {
        let wait = self.waits.remove(&tid)?;
        self.labels_bytes -= label::bytes(&wait.sample.labels);
        self.locations -= wait.sample.stack.len();
        let Entry::Occupied(mut process) = self.processes.entry(wait.sample.key) else { return None };
        process.get_mut().waits -= 1;
        let resource = Arc::clone(&process.get().resource);
        if process.get().waits == 0 {
            process.remove();
            self.resources_bytes -= resource.bytes();
        }
        Some((wait, resource))
    }

    /// Forgets all waits. Returns their number.
    pub(crate) fn forget_all(&mut self) -> u64 {
        std::mem::take(self).waits.len() as u64
    }

    /// Reports a wait that has ended. Returns the number of samples added to `aggregate`.
    pub(crate) fn end(&mut self, end: &WaitEnd, aggregate: &mut Aggregate) -> u64 {
        match self.remove(end.tid) {
            Some((mut wait, resource)) if end.since_ktime_ns <= wait.since_ktime_ns => {
                report(&mut wait, &resource, end.ktime_ns, aggregate)
            }
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
        self.report_if(is_long, ktime_ns, aggregate)
    }

    /// Reports every wait up to `ktime_ns`. Returns the number of samples added.
    pub(crate) fn report_all(&mut self, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        self.report_if(|_| true, ktime_ns, aggregate)
    }

    fn report_if(&mut self, is_due: impl Fn(&Wait) -> bool, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
        let due = self.waits.values_mut().filter(|wait| is_due(wait));
        due.map(|wait| match self.processes.get(&wait.sample.key) {
            Some(process) => report(wait, &process.resource, ktime_ns, aggregate),
            None => 0,
        })
        .sum()
    }
}

fn report(wait: &mut Wait, resource: &Arc<Resource>, ktime_ns: u64, aggregate: &mut Aggregate) -> u64 {
    let waited_ns = wait.take_until(ktime_ns);
    if waited_ns == 0 {
        return 0;
    }
    aggregate.add_wait(&wait.sample, resource, ktime_ns, waited_ns);
    1
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use ebpf::SampleHeader;
    use testkit::report;
    use testkit::workshop::{Workshop, have};

    use super::*;
    use crate::process::test_record::TestRecord;
    use crate::runtimes::contexts::tests::{PUBLISHER, Running};

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
    fn a_wait_that_began_before_a_publication_has_its_attributes() {
        let test = "a_wait_that_began_before_a_publication_has_its_attributes";
        if !have(&["gcc"]) {
            return report::skipped(test, "this machine has no gcc");
        }
        let workshop = Workshop::default();
        workshop.write("publisher.c", PUBLISHER);
        workshop.run("gcc publisher.c -o publisher");
        let mut publisher = Running::start(&workshop, "publisher");
        assert_eq!((publisher.line(), publisher.go_on()), ("none".to_owned(), "cart".to_owned()));
        let pid = publisher.key().pid;
        let mut off_cpu = OffCpu::default();
        let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
        let mut begin = |tid: u32, ktime_ns: u64| {
            let bytes = TestRecord { pid, tid, ktime_ns, ..TestRecord::default() }.bytes();
            assert!(off_cpu.begin(&Sample::read(&bytes).unwrap(), &mut locator));
            let process = off_cpu.processes.values().next().unwrap();
            assert_eq!(off_cpu.resources_bytes, process.resource.bytes());
            process.resource.attributes.iter().any(|(key, value)| (&**key, &**value) == ("service.name", "cart"))
        };
        assert!(!begin(1, 0), "the first sample of the process");
        let started = std::time::Instant::now();
        while !begin(2, 2_000_000_000) {
            assert!(started.elapsed().as_secs() < 20);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let mut aggregate = Aggregate::default();
        assert_eq!(off_cpu.report_all(3_000_000_000, &mut aggregate), 2);
        let named = ("service.name".to_owned(), "cart".to_owned());
        assert!(aggregate.resource_at(0).unwrap().attributes.contains(&named));
        assert_eq!(aggregate.resource_at(1), None);
        let end = WaitEnd { since_ktime_ns: 2_000_000_000, ktime_ns: 4_000_000_000, tid: 1 };
        assert_eq!(off_cpu.end(&end, &mut aggregate), 1);
        off_cpu.remove(2);
        assert_eq!((off_cpu.processes.len(), off_cpu.resources_bytes), (0, 0));
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
        let bytes = TestRecord { tid: 3, pid: u32::MAX, ..TestRecord::default() }.bytes();
        assert!(!off_cpu.begin(&Sample::read(&bytes).unwrap(), &mut locator));
    }
}
