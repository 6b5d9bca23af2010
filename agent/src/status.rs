//! State and counters of the agent, as `GET /api/v1/agent` and `GET /metrics` show them.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// State of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The agent was not started, or was ended by its shutdown token.
    Off,
    /// The agent samples.
    Running,
    /// The agent was ended by an error, or could not start.
    Failed,
}

impl State {
    /// Returns `off`, `running` or `failed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Running => "running",
            Self::Failed => "failed",
        }
    }
}

/// State of the agent at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSnapshot {
    /// State of the agent.
    pub state: State,
    /// Reason why the agent does not run, or why its samples do not arrive; empty if all is well.
    pub reason: String,
    /// Missing requirements of this machine, each as `capability: what happened`.
    pub missing: Vec<String>,
    /// Number of samples taken since the start of the agent.
    pub samples: u64,
    /// Number of samples lost since the start of the agent, for any reason.
    pub dropped: u64,
}

/// Reason why samples were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DropReason {
    /// The ring buffer was full.
    RingBufferFull,
    /// A record could not be decoded.
    MalformedRecord,
    /// More threads waited at the same time than the agent can track.
    TooManyWaits,
    /// The end or the stack of a wait was lost while the wait lasted.
    WaitsLost,
    /// The endpoint was unreachable for so long that the queue overflowed.
    QueueFull,
    /// The endpoint refused the samples.
    Refused,
    /// The endpoint was unreachable when the agent ended, and the samples could not be spooled.
    Shutdown,
    /// The endpoint was unreachable for so long that the spool reached its limit.
    SpoolFull,
    /// A request in the spool was damaged or removed.
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

/// Outcome of one export request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Ok,
    /// The request was not accepted, and is tried again later.
    Retried,
    /// The request was not accepted, and is not tried again.
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

/// A handle on the state and the counters of one agent. Clones share state and counters.
#[derive(Clone, Debug)]
pub struct Status(Arc<Shared>);

/// Time without a read of records after which the agent reports that a file or a process blocks it. The sampler
/// normally reads four times a second.
const SILENT_MAX: Duration = Duration::from_secs(15);

#[derive(Debug)]
struct Shared {
    /// Time of the last read of records.
    last_read: Mutex<Instant>,
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

/// State, reason and missing capabilities, which change together.
#[derive(Debug)]
struct Condition {
    state: State,
    reason: String,
    missing: Vec<String>,
}

impl Status {
    /// Creates a status in [`State::Off`]. Its counters are registered in `registry` with the prefix `varve_agent`.
    pub fn new(registry: &mut Registry) -> Self {
        let condition = Condition { state: State::Off, reason: "not started".to_owned(), missing: Vec::new() };
        let shared = Shared {
            last_read: Mutex::new(Instant::now()),
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
        registry.register("spool_bytes", "Bytes of the requests that wait on disk", shared.spool_bytes.clone());
        registry.register(
            "spool_bytes_max",
            "Limit of the spool, in bytes; 0 if there is no spool",
            shared.spool_bytes_max.clone(),
        );
        registry.register("spool_errors", "Errors while reading or writing the spool", shared.spool_errors.clone());
        registry.register("unwind_tables", "Files that have an unwind table", shared.unwind_tables.clone());
        registry.register("unwind_table_bytes", "Bytes of all unwind tables", shared.unwind_table_bytes.clone());
        registry.register(
            "unwind_tables_waiting",
            "Files that wait for their unwind tables",
            shared.unwind_tables_waiting.clone(),
        );
        registry.register(
            "unwind_tables_left_out",
            "Files that are unwound by frame pointers until there is space for their unwind table or too many wait",
            shared.unwind_tables_left_out.clone(),
        );
        registry.register(
            "unwind_tables_evicted",
            "Unwind tables evicted because the budget was exceeded",
            shared.unwind_tables_evicted.clone(),
        );
        Self(Arc::new(shared))
    }

    /// Returns the state and the counters.
    #[must_use]
    pub fn snapshot(&self) -> StatusSnapshot {
        let dropped = DropReason::ALL.map(|reason| self.0.dropped.get_or_create(&DropLabels { reason }).get());
        let condition = self.0.condition.lock();
        let silent = self.0.last_read.lock().elapsed();
        let reason = match condition.state {
            State::Running if SILENT_MAX < silent => {
                format!("no samples were read for {} s: a file or a process blocks the agent", silent.as_secs())
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

    /// Returns the number of samples lost since the start of the agent, for each reason that occurred. The reasons have
    /// the names that they have in the metrics.
    #[must_use]
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let count = |reason: DropReason| (reason.name(), self.0.dropped.get_or_create(&DropLabels { reason }).get());
        DropReason::ALL.map(count).into_iter().filter(|(_, samples)| *samples != 0).collect()
    }

    /// Stores the current time as that of the last read of records.
    pub(crate) fn sampler_is_awake(&self) {
        *self.0.last_read.lock() = Instant::now();
    }

    pub(crate) fn set(&self, state: State, reason: impl Into<String>) {
        let mut condition = self.0.condition.lock();
        condition.state = state;
        condition.reason = reason.into();
    }

    /// Sets the reason why exports do not arrive; empty once they arrive again.
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

    /// Sets the number of unwind tables, their total size in bytes, and the number of evictions since the start.
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

/// Returns the text of an error, followed by those of its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors include their cause in their own text.
        if !text.ends_with(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_sampler_is_reported() {
        let status = Status::new(&mut Registry::default());
        status.set(State::Running, "");
        status.sampler_is_awake();
        assert_eq!(status.snapshot().reason, "");
        *status.0.last_read.lock() -= SILENT_MAX + Duration::from_secs(2);
        assert!(status.snapshot().reason.starts_with("no samples were read for 17 s"), "{:?}", status.snapshot());
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
