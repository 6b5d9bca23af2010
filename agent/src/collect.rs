//! The sampler's thread: reads records, aggregates them, and every five seconds hands them on as export requests, to be sent or recorded.

use std::sync::Arc;
use std::time::Duration;

use ebpf::{NewFile, Record};
use tokio_util::sync::CancellationToken;

use crate::aggregate::Aggregate;
use crate::clock::WallClock;
use crate::config::Sampling;
use crate::export::queue::ExportQueue;
use crate::export::request::{self, Interval};
use crate::locator::Locator;
use crate::off_cpu::OffCpu;
use crate::procfs;
use crate::sampler::{Said, Sampler, SamplerError};
use crate::status::{DropReason, Status};
use crate::sys::{self, Clock};

/// How long samples are aggregated.
const INTERVAL_NS: u64 = 5_000_000_000;
/// How long records may lie in the ring buffer. BPF asks to be read earlier for a process that it has not met.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Between two times that unused memory is given back: a minute.
const RELEASE_INTERVALS: u32 = 12;
/// Records read before the clock is looked at again.
const RECORDS_MAX: usize = 1024;

/// Everything between the ring buffer and the export queue.
pub(crate) struct Collector {
    sampler: Sampler,
    locator: Locator,
    aggregate: Aggregate,
    off_cpu: OffCpu,
    queue: Arc<ExportQueue>,
    status: Status,
    host_name: String,
    period_ns: u64,
    interval_start_ns: u64,
    intervals: u32,
}

impl Collector {
    /// Starts sampling.
    pub(crate) fn start(
        sampling: Sampling,
        environment: Arc<[String]>,
        queue: Arc<ExportQueue>,
        status: Status,
    ) -> Result<Self, SamplerError> {
        let interval_start_ns = sys::clock_ns(Clock::Monotonic);
        let sampler = Sampler::start(sampling, status.clone())?;
        // After the programs, which have symbols too.
        let locator = Locator::new(environment);
        sys::release_unused();
        let host_name = procfs::read_at_most("/proc/sys/kernel/hostname", 256).unwrap_or_default();
        let host_name = String::from_utf8_lossy(host_name.trim_ascii()).into_owned();
        let (aggregate, off_cpu, period_ns) = (Aggregate::default(), OffCpu::default(), sampling.period_ns);
        Ok(Self {
            sampler,
            locator,
            aggregate,
            off_cpu,
            queue,
            status,
            host_name,
            period_ns,
            interval_start_ns,
            intervals: 0,
        })
    }

    /// Collects until `stop` is cancelled or something fails, then hands on what is left.
    pub(crate) fn run(mut self, stop: &CancellationToken) -> Result<(), SamplerError> {
        let result = self.collect(stop);
        let finished = self.finish();
        result.and(finished)
    }

    fn collect(&mut self, stop: &CancellationToken) -> Result<(), SamplerError> {
        while !stop.is_cancelled() {
            let until_export_ns =
                (self.interval_start_ns + INTERVAL_NS).saturating_sub(sys::clock_ns(Clock::Monotonic));
            // A millisecond more, because poll(2) counts in whole ones.
            self.sampler.wait(READ_INTERVAL.min(Duration::from_nanos(until_export_ns + 1_000_000)))?;
            self.read();
            if self.interval_start_ns + INTERVAL_NS <= sys::clock_ns(Clock::Monotonic) {
                self.count_dropped()?;
                self.export();
                self.sampler.follow_cpus()?;
            }
        }
        Ok(())
    }

    /// Ends sampling, and hands on or counts every sample that was taken.
    fn finish(&mut self) -> Result<(), SamplerError> {
        // What fails to detach ends with the sampler, which this outlives by nothing.
        let detached = self.sampler.detach();
        while self.read() {}
        let counted = self.count_dropped();
        let reported = self.off_cpu.report_all(sys::clock_ns(Clock::Monotonic), &mut self.aggregate);
        self.status.count_samples(reported);
        self.export();
        detached.and(counted)
    }

    /// Reads what is there; returns whether there may be more.
    fn read(&mut self) -> bool {
        let Self { sampler, locator, aggregate, off_cpu, status, .. } = self;
        let mut may_have_more = true;
        // What keeps coming while it is read is left for later, so that an interval ends in time.
        for _ in 0..RECORDS_MAX {
            if !may_have_more || aggregate.is_full() {
                break;
            }
            let mut samples = 0;
            may_have_more = sampler.read(RECORDS_MAX, |said| match said {
                Said::NewFile(record, tables) => match NewFile::read(record) {
                    Ok(new) => locator.tables.files.number(&new, tables),
                    Err(error) => tracing::error!("BPF sent a record that makes no sense: {error}"),
                },
                Said::Record(record) => match Record::read(record) {
                    Ok(Record::Running(sample)) => {
                        aggregate.add(&sample, locator);
                        samples += 1;
                    }
                    Ok(Record::Waiting(sample)) => {
                        if !off_cpu.begin(&sample, locator) {
                            status.count_dropped(DropReason::TooManyWaits, 1);
                        }
                    }
                    Ok(Record::WaitEnd(end)) => samples += off_cpu.end(&end, aggregate),
                    Err(error) => {
                        tracing::error!("BPF sent a record that makes no sense: {error}");
                        status.count_dropped(DropReason::MalformedRecord, 1);
                    }
                },
            });
            status.count_samples(samples);
            status.sampler_is_awake(sys::clock_ns(Clock::Monotonic));
        }
        if aggregate.is_full() {
            self.export();
        }
        may_have_more
    }

    fn count_dropped(&mut self) -> Result<(), SamplerError> {
        let dropped = self.sampler.take_dropped()?;
        self.status.count_dropped(DropReason::RingBufferFull, dropped.records);
        self.status.count_dropped(DropReason::TooManyWaits, dropped.waits);
        if dropped.records != 0 {
            // The end of any wait may be among them: it would seem to go on for ever.
            self.status.count_dropped(DropReason::WaitsLost, self.off_cpu.forget_all());
        }
        Ok(())
    }

    /// Turns what was aggregated into requests, and begins the next interval.
    fn export(&mut self) {
        let end_ktime_ns = sys::clock_ns(Clock::Monotonic);
        let Self { off_cpu, aggregate, .. } = self;
        // What waits is told by ids, which may be void soon.
        let reported = if self.locator.is_full() {
            let reported = off_cpu.report_all(end_ktime_ns, aggregate);
            // The rest of each.
            self.status.count_dropped(DropReason::WaitsLost, off_cpu.forget_all());
            reported
        } else {
            off_cpu.report_long(end_ktime_ns, aggregate)
        };
        self.status.count_samples(reported);
        let interval = Interval {
            start_ktime_ns: std::mem::replace(&mut self.interval_start_ns, end_ktime_ns),
            end_ktime_ns,
            clock: WallClock::measure(),
            period_ns: self.period_ns.cast_signed(),
            host_name: self.host_name.clone(),
        };
        if !self.aggregate.is_empty() {
            let tables = &self.locator.tables;
            for request in request::encode(&mut self.aggregate, &interval, &tables.files, &tables.locations) {
                self.queue.push(request);
            }
        }
        if self.locator.end_interval(end_ktime_ns, self.aggregate.processes()) {
            self.sampler.tables.forget_all();
        }
        self.aggregate.clear();
        if self.intervals.is_multiple_of(RELEASE_INTERVALS) {
            sys::release_unused();
        }
        self.intervals = self.intervals.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::export::queue::QUEUE_BYTES_MAX;
    use crate::report;

    // Needs BPF. The aggregate is full already when the end comes, so that what is in the ring buffer does not fit it.
    #[test]
    fn every_sample_in_the_ring_buffer_is_handed_on_at_the_end() {
        let test = "every_sample_in_the_ring_buffer_is_handed_on_at_the_end";
        if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
            return report::skipped(test, &missing);
        }
        let status = Status::new(&mut Registry::default());
        let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
        let sampling = Sampling { period_ns: 1_000_000, off_cpu: false };
        let mut collector = Collector::start(sampling, Arc::default(), Arc::clone(&queue), status.clone()).unwrap();
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_millis(300) {
            std::hint::black_box(started);
        }
        let filled = collector.aggregate.fill();
        let stop = CancellationToken::new();
        stop.cancel();
        collector.run(&stop).unwrap();
        queue.close();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut handed_on = 0;
        while let Some(request) = runtime.block_on(queue.pop()) {
            handed_on += request.samples();
        }
        let snapshot = status.snapshot();
        // One CPU was busy for 300 ms.
        assert!(200 < snapshot.samples, "{snapshot:?}");
        assert_eq!(handed_on + snapshot.dropped, filled + snapshot.samples);
        report::bpf_test_ran(test);
    }
}
