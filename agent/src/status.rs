//! How the agent is doing: what `GET /api/v1/agent` and `GET /metrics` show.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::sys::{self, Clock};

/// What the agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started, or ended by its shutdown token.
    Off,
    /// Sampling.
    Running,
    /// Ended by an error, or never able to start.
    Failed,
}

impl State {
    /// `off`, `running` or `failed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Running => "running",
            Self::Failed => "failed",
        }
    }
}

/// The agent at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSnapshot {
    /// What it is doing.
    pub state: State,
    /// Why it is not running, or why what it samples does not arrive; empty if all is well.
    pub reason: String,
    /// What it lacks on this machine, each as `capability: what happened`.
    pub missing: Vec<String>,
    /// Samples taken since the start.
    pub samples: u64,
    /// Samples lost since the start, wherever that was.
    pub dropped: u64,
}

/// Why samples were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DropReason {
    /// The kernel found no room in the ring buffer.
    RingBufferFull,
    /// A record made no sense.
    MalformedRecord,
    /// More threads waited at a time than are kept in mind.
    TooManyWaits,
    /// Of waits that went on it is not known any more when they ended, or where they were.
    WaitsLost,
    /// The endpoint was away for so long that the queue overflowed.
    QueueFull,
    /// The endpoint refused them for good.
    Refused,
    /// The endpoint was away when the agent ended, and there was no place on disk.
    Shutdown,
    /// The endpoint was away for so long that the spool on disk reached its limit.
    SpoolFull,
    /// A request on disk was torn, or is gone.
    SpoolDamaged,
}

impl DropReason {
    const ALL: [Self; 9] = [
        Self::RingBufferFull,
        Self::MalformedRecord,
        Self::TooManyWaits,
        Self::WaitsLost,
        Self::QueueFull,
        Self::Refused,
        Self::Shutdown,
        Self::SpoolFull,
        Self::SpoolDamaged,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::RingBufferFull => "ring_buffer_full",
            Self::MalformedRecord => "malformed_record",
            Self::TooManyWaits => "too_many_waits",
            Self::WaitsLost => "waits_lost",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Shutdown => "shutdown",
            Self::SpoolFull => "spool_full",
            Self::SpoolDamaged => "spool_damaged",
        }
    }
}

impl EncodeLabelValue for DropReason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.name())
    }
}

/// How an export ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Ok,
    /// Not accepted, and tried again.
    Retried,
    /// Not accepted, and given up.
    Failed,
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(match self {
            Self::Ok => "ok",
            Self::Retried => "retried",
            Self::Failed => "failed",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: DropReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExportLabels {
    outcome: Outcome,
}

/// A handle on the state and the counters of one agent; clones share them.
#[derive(Clone, Debug)]
pub struct Status(Arc<Shared>);

/// The sampler reads four times a second; when it was not heard of for so long, something that it looks at holds it up.
const SILENT_NS: u64 = 15_000_000_000;

#[derive(Debug)]
struct Shared {
    /// When the sampler was last heard of, on CLOCK_MONOTONIC.
    awake_ns: AtomicU64,
    condition: Mutex<Condition>,
    samples: Counter,
    dropped: Family<DropLabels, Counter>,
    exports: Family<ExportLabels, Counter>,
    export_bytes: Counter,
    spool_bytes: Gauge,
    spool_bytes_max: Gauge,
    spool_errors: Counter,
    unwind_tables: Gauge,
    unwind_table_bytes: Gauge,
    unwind_tables_waiting: Gauge,
    unwind_tables_left_out: Gauge,
    unwind_tables_evicted: Counter,
}

#[derive(Debug)]
struct Condition {
    state: State,
    reason: String,
    missing: Vec<String>,
}

impl Status {
    /// A status that is [`State::Off`], with its counters in `registry` under the prefix `varve_agent`.
    pub fn new(registry: &mut Registry) -> Self {
        let condition = Condition { state: State::Off, reason: "not started".to_owned(), missing: Vec::new() };
        let shared = Shared {
            awake_ns: AtomicU64::new(0),
            condition: Mutex::new(condition),
            samples: Counter::default(),
            dropped: Family::default(),
            exports: Family::default(),
            export_bytes: Counter::default(),
            spool_bytes: Gauge::default(),
            spool_bytes_max: Gauge::default(),
            spool_errors: Counter::default(),
            unwind_tables: Gauge::default(),
            unwind_table_bytes: Gauge::default(),
            unwind_tables_waiting: Gauge::default(),
            unwind_tables_left_out: Gauge::default(),
            unwind_tables_evicted: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("varve_agent");
        registry.register("samples", "Samples taken", shared.samples.clone());
        registry.register("samples_dropped", "Samples lost, by reason", shared.dropped.clone());
        registry.register("exports", "Export requests sent, by outcome", shared.exports.clone());
        registry.register(
            "export_bytes",
            "Bytes of acknowledged requests before compression",
            shared.export_bytes.clone(),
        );
        registry.register("spool_bytes", "Bytes of requests on disk that wait to be sent", shared.spool_bytes.clone());
        registry.register(
            "spool_bytes_max",
            "Most bytes that requests on disk may take; 0 if there is no spool",
            shared.spool_bytes_max.clone(),
        );
        registry.register("spool_errors", "Times that the spool could not be used", shared.spool_errors.clone());
        registry.register("unwind_tables", "Files that have an unwind table", shared.unwind_tables.clone());
        registry.register("unwind_table_bytes", "Bytes of all unwind tables", shared.unwind_table_bytes.clone());
        registry.register(
            "unwind_tables_waiting",
            "Files whose unwind tables are still to be made",
            shared.unwind_tables_waiting.clone(),
        );
        registry.register(
            "unwind_tables_left_out",
            "Files that are unwound by frame pointers for now, for want of room",
            shared.unwind_tables_left_out.clone(),
        );
        registry.register(
            "unwind_tables_evicted",
            "Unwind tables that made room for others",
            shared.unwind_tables_evicted.clone(),
        );
        Self(Arc::new(shared))
    }

    /// The state and the counters now.
    #[must_use]
    pub fn snapshot(&self) -> StatusSnapshot {
        let dropped = DropReason::ALL.map(|reason| self.0.dropped.get_or_create(&DropLabels { reason }).get());
        let condition = self.0.condition.lock();
        let awake_ns = self.0.awake_ns.load(Ordering::Relaxed);
        let silent_ns = sys::clock_ns(Clock::Monotonic).saturating_sub(awake_ns);
        let reason = match condition.state {
            State::Running if SILENT_NS < silent_ns => {
                format!("no samples are read for {} s: a file or a process does not answer", silent_ns / 1_000_000_000)
            }
            _ => condition.reason.clone(),
        };
        StatusSnapshot {
            state: condition.state,
            reason,
            missing: condition.missing.clone(),
            samples: self.0.samples.get(),
            dropped: dropped.iter().sum(),
        }
    }

    /// Samples lost since the start, by the reasons for which any were: as in the metrics.
    #[must_use]
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let count = |reason: DropReason| (reason.name(), self.0.dropped.get_or_create(&DropLabels { reason }).get());
        DropReason::ALL.map(count).into_iter().filter(|(_, samples)| *samples != 0).collect()
    }

    pub(crate) fn sampler_is_awake(&self, ktime_ns: u64) {
        self.0.awake_ns.store(ktime_ns, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, state: State, reason: impl Into<String>) {
        let mut condition = self.0.condition.lock();
        condition.state = state;
        condition.reason = reason.into();
    }

    /// Says why exports do not arrive, or with an empty text that they do again.
    pub(crate) fn set_reason(&self, reason: &str) {
        let mut condition = self.0.condition.lock();
        if condition.reason != reason {
            reason.clone_into(&mut condition.reason);
        }
    }

    pub(crate) fn set_missing(&self, missing: Vec<String>) {
        self.0.condition.lock().missing = missing;
    }

    pub(crate) fn count_samples(&self, samples: u64) {
        self.0.samples.inc_by(samples);
    }

    pub(crate) fn count_dropped(&self, reason: DropReason, samples: u64) {
        self.0.dropped.get_or_create(&DropLabels { reason }).inc_by(samples);
    }

    pub(crate) fn count_export(&self, outcome: Outcome) {
        self.0.exports.get_or_create(&ExportLabels { outcome }).inc();
    }

    pub(crate) fn count_export_bytes(&self, bytes: usize) {
        self.0.export_bytes.inc_by(bytes as u64);
    }

    pub(crate) fn set_spool_bytes(&self, bytes: u64) {
        self.0.spool_bytes.set(bytes.cast_signed());
    }

    pub(crate) fn set_spool_bytes_max(&self, bytes: u64) {
        self.0.spool_bytes_max.set(bytes.cast_signed());
    }

    /// `evicted` since the start.
    pub(crate) fn set_unwind_tables(&self, tables: usize, bytes: usize, evicted: u64) {
        self.0.unwind_tables.set(tables as i64);
        self.0.unwind_table_bytes.set(bytes as i64);
        self.0.unwind_tables_evicted.inc_by(evicted.saturating_sub(self.0.unwind_tables_evicted.get()));
    }

    pub(crate) fn set_waiting_unwind_tables(&self, waiting: usize, left_out: usize) {
        self.0.unwind_tables_waiting.set(waiting as i64);
        self.0.unwind_tables_left_out.set(left_out as i64);
    }

    pub(crate) fn count_spool_error(&self) {
        self.0.spool_errors.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_that_is_held_up_is_said_to_be() {
        let status = Status::new(&mut Registry::default());
        status.set(State::Running, "");
        let now_ns = sys::clock_ns(Clock::Monotonic);
        status.sampler_is_awake(now_ns);
        assert_eq!(status.snapshot().reason, "");
        status.sampler_is_awake(now_ns - SILENT_NS - 2_000_000_000);
        assert!(status.snapshot().reason.starts_with("no samples are read for 17 s"), "{:?}", status.snapshot());
    }

    #[test]
    fn counters_are_in_the_registry_and_in_the_snapshot() {
        let mut registry = Registry::default();
        let status = Status::new(&mut registry);
        status.count_samples(3);
        status.count_dropped(DropReason::QueueFull, 2);
        status.count_dropped(DropReason::RingBufferFull, 1);
        status.count_export(Outcome::Ok);
        status.set_unwind_tables(5, 6, 7);
        status.set_unwind_tables(5, 6, 8);
        status.set_waiting_unwind_tables(9, 10);
        status.set(State::Failed, "no BTF");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "varve_agent_unwind_tables 5",
            "varve_agent_unwind_table_bytes 6",
            "varve_agent_unwind_tables_evicted_total 8",
            "varve_agent_unwind_tables_waiting 9",
            "varve_agent_unwind_tables_left_out 10",
            "varve_agent_samples_total 3",
            "varve_agent_samples_dropped_total{reason=\"queue_full\"} 2",
            "varve_agent_exports_total{outcome=\"ok\"} 1",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let snapshot = status.snapshot();
        assert_eq!((snapshot.samples, snapshot.dropped), (3, 3));
        assert_eq!(status.dropped(), [("ring_buffer_full", 1), ("queue_full", 2)]);
        assert_eq!((snapshot.state.name(), &*snapshot.reason), ("failed", "no BTF"));
    }
}
