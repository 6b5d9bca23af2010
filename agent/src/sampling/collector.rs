//! The work of the sampler's thread: it reads records, adds them up, and exports them every five seconds.

use std::sync::Arc;
use std::time::Duration;

use ebpf::{NewFile, Record};
use tokio_util::sync::CancellationToken;

use super::aggregate::Aggregate;
use super::clock::WallClock;
use super::eager::{EagerPrograms, Records};
use super::interval::Interval;
use super::off_cpu::OffCpu;
use super::sampler::{Message, Sampler, SamplerError};
use super::trim::trim_memory;
use crate::config::Sampling;
use crate::names::locator::Locator;
use crate::names::shared_tables::SharedTables;
use crate::process::file::MappedFile;
use crate::process::file::table::Reported;
use crate::process::procfs;
use crate::process::sys::{Clock, clock_ns};
use crate::runtimes::Runtimes;
use crate::status::{DropReason, Status};
use crate::unwind::bpf_tables::BpfTables;

/// Length of an interval, after which its samples are exported; in nanoseconds.
const INTERVAL_NS: u64 = 5_000_000_000;
/// Longest time between two reads of the ring buffer. BPF wakes the reader earlier when it sends the first record of a
/// program.
const READ_INTERVAL: Duration = Duration::from_millis(250);
/// Number of intervals between two calls of [`trim_memory`]: one minute in total.
const TRIM_INTERVALS: u32 = 12;
/// Largest number of records in a batch, and largest number of batches that are read before the time is checked again.
const RECORDS_MAX: usize = 1024;

/// Collects the samples of this host, and calls `export` with those of each interval.
pub(crate) struct Collector<F> {
    sampler: Sampler,
    locator: Locator,
    aggregate: Aggregate,
    off_cpu: OffCpu,
    status: Status,
    host_name: String,
    period_ns: u64,
    interval_start_ns: u64,
    intervals: u32,
    eager: EagerPrograms,
    /// Records that are added after those of eager programs.
    later: Records,
    export: F,
}

impl<F: FnMut(&mut Aggregate, &Interval, &SharedTables)> Collector<F> {
    /// Starts sampling.
    pub(crate) fn start(
        sampling: Sampling,
        environment: Arc<[String]>,
        status: Status,
        export: F,
    ) -> Result<Self, SamplerError> {
        let interval_start_ns = clock_ns(Clock::Monotonic);
        let runtimes = Runtimes::new(sampling.java_parameters);
        let sampler = Sampler::start(sampling, runtimes.clone(), status.clone())?;
        // After the BPF programs are loaded, because the locator reads their symbols, too.
        let locator = Locator::new(environment, runtimes);
        trim_memory();
        let host_name = procfs::read_at_most("/proc/sys/kernel/hostname", 256).unwrap_or_default();
        Ok(Self {
            sampler,
            locator,
            aggregate: Aggregate::default(),
            off_cpu: OffCpu::default(),
            status,
            host_name: String::from_utf8_lossy(host_name.trim_ascii()).into_owned(),
            period_ns: sampling.period_ns,
            interval_start_ns,
            intervals: 0,
            eager: EagerPrograms::default(),
            later: Records::default(),
            export,
        })
    }

    /// Collects until `stop` is cancelled or an error occurs. Then exports the remaining samples.
    pub(crate) fn run(mut self, stop: &CancellationToken) -> Result<(), SamplerError> {
        let result = self.collect(stop);
        let finished = self.finish();
        result.and(finished)
    }

    fn collect(&mut self, stop: &CancellationToken) -> Result<(), SamplerError> {
        while !stop.is_cancelled() {
            let interval_end_ns = self.interval_start_ns + INTERVAL_NS;
            let left_ns = interval_end_ns.saturating_sub(clock_ns(Clock::Monotonic));
            // One millisecond more, because poll(2) takes whole milliseconds.
            self.sampler.wait(READ_INTERVAL.min(Duration::from_nanos(left_ns + 1_000_000)))?;
            self.read();
            if self.interval_start_ns + INTERVAL_NS <= clock_ns(Clock::Monotonic) {
                self.count_dropped()?;
                self.export();
                self.sampler.follow_cpus()?;
            }
        }
        Ok(())
    }

    /// Ends sampling. Exports every sample that was taken, or counts it as dropped.
    fn finish(&mut self) -> Result<(), SamplerError> {
        // Programs that cannot be detached end when the sampler is dropped, which follows at once.
        let detached = self.sampler.detach();
        while self.read() {}
        let counted = self.count_dropped();
        let reported = self.off_cpu.report_all(clock_ns(Clock::Monotonic), &mut self.aggregate);
        self.status.count_samples(reported);
        self.export();
        detached.and(counted)
    }

    /// Reads the records in the ring buffer. Returns true if there may be more.
    fn read(&mut self) -> bool {
        let mut may_have_more = true;
        // Records that arrive meanwhile are left for the next read, so that an interval ends in time.
        for _ in 0..RECORDS_MAX {
            if !may_have_more || self.aggregate.is_full() {
                break;
            }
            may_have_more = self.read_some();
            self.status.sampler_is_awake();
        }
        if self.aggregate.is_full() {
            self.export();
        }
        may_have_more
    }

    /// Reads some records. Samples of programs that free functions soon come first, because the names of the others'
    /// functions take milliseconds to read.
    fn read_some(&mut self) -> bool {
        let Self { sampler, locator, aggregate, off_cpu, status, eager, later, .. } = self;
        let mut samples = 0;
        let mut add = |record: &[u8], locator: &mut Locator| match Record::read(record) {
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
                tracing::error!("BPF sent a malformed record: {error}");
                status.count_dropped(DropReason::MalformedRecord, 1);
            }
        };
        let may_have_more = sampler.read(RECORDS_MAX, |message| match message {
            Message::NewFile(record, tables) => match NewFile::read(record) {
                Ok(new) => add_file(&mut locator.tables, &new, tables),
                Err(error) => tracing::error!("BPF sent a malformed record: {error}"),
            },
            Message::Record(record) if eager.is_empty() || eager.is_urgent(record) => add(record, locator),
            Message::Record(record) => {
                if !later.fits(record) {
                    later.take(|record| add(record, locator));
                }
                later.push(record);
            }
        });
        later.take(|record| add(record, locator));
        for new in locator.tables.runtimes.take_processes() {
            sampler.tables.add_process(new);
        }
        for (program, number) in locator.tables.eager.drain(..) {
            sampler.read_eagerly(program, number);
            eager.insert(program.pid);
        }
        for (pid, program) in locator.tables.runtimes.contexts.take_found() {
            sampler.set_program(pid, &program);
        }
        self.status.count_samples(samples);
        may_have_more
    }

    fn count_dropped(&mut self) -> Result<(), SamplerError> {
        let dropped = self.sampler.take_dropped()?;
        self.status.count_dropped(DropReason::RingBufferFull, dropped.records);
        self.status.count_dropped(DropReason::TooManyWaits, dropped.waits);
        if dropped.records != 0 {
            // The end of any wait may be among the lost records. That wait would seem to last for ever.
            self.status.count_dropped(DropReason::WaitsLost, self.off_cpu.forget_all());
        }
        Ok(())
    }

    /// Exports the samples of the interval, and begins the next one.
    fn export(&mut self) {
        let end_ktime_ns = clock_ns(Clock::Monotonic);
        let Self { off_cpu, aggregate, .. } = self;
        // Waits hold location ids, which are void once the locator forgets them.
        let reported = if self.locator.is_full() {
            let reported = off_cpu.report_all(end_ktime_ns, aggregate);
            // The rest of each wait is lost.
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
            (self.export)(&mut self.aggregate, &interval, &self.locator.tables);
        }
        if self.locator.end_interval(end_ktime_ns, self.aggregate.processes()) {
            self.sampler.tables.forget_all();
        }
        self.aggregate.clear();
        self.eager.end_interval();
        if self.intervals.is_multiple_of(TRIM_INTERVALS) {
            trim_memory();
        }
        self.intervals = self.intervals.wrapping_add(1);
    }
}

/// Adds a file that BPF reports: opens it, and requests its unwind table. If it cannot be opened, BPF will report it
/// again.
pub(crate) fn add_file(shared: &mut SharedTables, new: &NewFile<'_>, tables: &BpfTables) {
    match shared.open_file(new) {
        Reported::Known => {}
        Reported::Opened(opened) => {
            let file = shared.files.get(opened.id);
            if file.is_some_and(MappedFile::is_memory) {
                return tables.without_file(new.key);
            }
            let parts = file.map(|file| file.parts.clone()).unwrap_or_default();
            tables.unwind(new.key, new.number, opened.file, parts, opened.origin);
        }
        // BPF then reports the file again for the next process that runs it, which may live longer.
        Reported::Unopened => tables.forget(new.key),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use testkit::report;

    // Needs BPF. The aggregate is already full at the end, so the records in the ring buffer do not fit.
    #[test]
    fn every_sample_in_the_ring_buffer_is_exported_at_the_end() {
        let test = "every_sample_in_the_ring_buffer_is_exported_at_the_end";
        if let Some(missing) = crate::probe().into_iter().find(|missing| missing.is_required) {
            return report::skipped(test, missing);
        }
        let status = Status::new(&mut Registry::default());
        let sampling = Sampling { period_ns: 1_000_000, off_cpu: false, java_parameters: false };
        let mut exported = 0;
        let export = |aggregate: &mut Aggregate, _: &Interval, _: &SharedTables| {
            exported += aggregate.take_sorted().len() as u64;
        };
        let mut collector = Collector::start(sampling, Arc::default(), status.clone(), export).unwrap();
        let started = std::time::Instant::now();
        while started.elapsed() < Duration::from_millis(300) {
            std::hint::black_box(started);
        }
        let filled = collector.aggregate.fill();
        let stop = CancellationToken::new();
        stop.cancel();
        collector.run(&stop).unwrap();
        let snapshot = status.snapshot();
        // One CPU was busy for 300 ms.
        assert!(200 < snapshot.samples, "{snapshot:?}");
        assert_eq!(exported + snapshot.dropped, filled + snapshot.samples);
        report::bpf_test_ran(test);
    }
}
