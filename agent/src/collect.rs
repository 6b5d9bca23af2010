//! The sampler's thread: reads records, aggregates them, and every five seconds hands them on as export requests.

use std::sync::Arc;
use std::time::Duration;

use ebpf::Sample;
use tokio_util::sync::CancellationToken;

use crate::aggregate::Aggregate;
use crate::clock::WallClock;
use crate::export::queue::ExportQueue;
use crate::export::request::{self, Interval};
use crate::locator::Locator;
use crate::procfs;
use crate::sampler::{Sampler, SamplerError};
use crate::status::{DropReason, Status};
use crate::sys::{self, Clock};

/// How long samples are aggregated.
const INTERVAL_NS: u64 = 5_000_000_000;
/// How long records may lie in the ring buffer. BPF asks to be read earlier for a process that it has not met.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Records read before the clock is looked at again.
const RECORDS_MAX: usize = 1024;

/// Everything between the ring buffer and the export queue.
pub(crate) struct Collector {
    sampler: Sampler,
    locator: Locator,
    aggregate: Aggregate,
    queue: Arc<ExportQueue>,
    status: Status,
    host_name: String,
    period_ns: u64,
    interval_start_ns: u64,
}

impl Collector {
    /// Starts sampling.
    pub(crate) fn start(period_ns: u64, queue: Arc<ExportQueue>, status: Status) -> Result<Self, SamplerError> {
        let interval_start_ns = sys::clock_ns(Clock::Monotonic);
        let sampler = Sampler::start(period_ns)?;
        // After the programs, which have symbols too.
        let locator = Locator::new();
        sys::release_free_memory();
        let host_name = procfs::read_at_most("/proc/sys/kernel/hostname", 256).unwrap_or_default();
        let host_name = String::from_utf8_lossy(host_name.trim_ascii()).into_owned();
        let aggregate = Aggregate::default();
        Ok(Self { sampler, locator, aggregate, queue, status, host_name, period_ns, interval_start_ns })
    }

    /// Collects until `stop` is cancelled, then hands on what is left.
    pub(crate) fn run(mut self, stop: &CancellationToken) -> Result<(), SamplerError> {
        while !stop.is_cancelled() {
            let until_export_ns =
                (self.interval_start_ns + INTERVAL_NS).saturating_sub(sys::clock_ns(Clock::Monotonic));
            // A millisecond more, because poll(2) counts in whole ones.
            self.sampler.wait(READ_INTERVAL.min(Duration::from_nanos(until_export_ns + 1_000_000)))?;
            self.read();
            if self.interval_start_ns + INTERVAL_NS <= sys::clock_ns(Clock::Monotonic) {
                self.end_interval()?;
            }
        }
        self.read();
        self.end_interval()
    }

    fn read(&mut self) {
        let Self { sampler, locator, aggregate, status, .. } = self;
        let mut may_have_more = true;
        // What keeps coming while it is read is left for later, so that an interval ends in time.
        for _ in 0..RECORDS_MAX {
            if !may_have_more || aggregate.is_full() {
                break;
            }
            let mut samples = 0;
            may_have_more = sampler.read(RECORDS_MAX, |record| match Sample::read(record) {
                Ok(sample) => {
                    aggregate.add(&sample, locator);
                    samples += 1;
                }
                Err(error) => {
                    tracing::error!("BPF sent a record that makes no sense: {error}");
                    status.count_dropped(DropReason::MalformedRecord, 1);
                }
            });
            status.count_samples(samples);
        }
        if aggregate.is_full() {
            self.export();
        }
    }

    fn end_interval(&mut self) -> Result<(), SamplerError> {
        self.status.count_dropped(DropReason::RingBufferFull, self.sampler.take_dropped()?);
        self.export();
        self.sampler.follow_cpus()
    }

    /// Turns what was aggregated into requests, and begins the next interval.
    fn export(&mut self) {
        let end_ktime_ns = sys::clock_ns(Clock::Monotonic);
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
        self.locator.end_interval(end_ktime_ns, self.aggregate.processes());
        self.aggregate.clear();
    }
}
