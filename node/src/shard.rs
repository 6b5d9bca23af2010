//! One shard's engine: entries go in, in log order; now and then it is flushed.
//!
//! Invariant: entries are applied by one thread at a time, while flushes go on; what was flushed is known together with the
//! membership as of then, so that the log can be cut.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use openraft::EntryPayload;
use parking_lot::Mutex;
use storage_engine::{DamageCounts, Engine, Outcome, Position};

use crate::consensus::RecordError;
use crate::consensus::record;
use crate::consensus::types::{LogEntry, LogId, StoredMembership};
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};

/// Damaged windows that one log line names.
const DAMAGE_LOGGED_MAX: usize = 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shard {
    id: u32,
    engine: Engine,
    /// What was true when the engine was last flushed.
    flushed: Mutex<Flushed>,
    /// Bytes of entries applied since the last flush.
    unflushed_bytes: AtomicU64,
    /// Damaged reads that were counted and logged already.
    damage_reported: AtomicU64,
    failure: Failure,
    metrics: Metrics,
    /// Dropped last: while anybody can upgrade it, files may be open.
    open: Arc<()>,
}

#[derive(Debug)]
struct Flushed {
    position: Option<LogId>,
    membership: StoredMembership,
}

impl Shard {
    pub(crate) fn open(
        id: u32,
        directory: PathBuf,
        head_bytes_max: usize,
        cache_bytes: usize,
        failure: Failure,
        metrics: Metrics,
    ) -> Result<Self, ReplicaError> {
        let engine = Engine::open(storage_engine::Config {
            directory,
            head_bytes_max,
            dictionary_bytes_max: proto::limits::DICTIONARY_BYTES_MAX,
            cache_bytes,
            time_resolution: storage_engine::TimeResolution::default(),
            dropped_labels: Default::default(),
        })?;
        let flushed = Flushed { position: log_id(engine.flushed())?, membership: membership(engine.membership())? };
        let index = gauge(flushed.position.map_or(0, |log_id| log_id.index));
        metrics.flushed_index.set(index);
        metrics.applied_index.set(index);
        let (flushed, unflushed_bytes) = (Mutex::new(flushed), AtomicU64::new(0));
        let damage_reported = AtomicU64::new(0);
        Ok(Self { id, engine, flushed, unflushed_bytes, damage_reported, failure, metrics, open: Arc::default() })
    }

    /// Has no strong references when all files are closed; the last reference to this may have gone a moment before.
    pub(crate) fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// The last entry in the engine, and the last membership.
    pub(crate) fn applied(&self) -> Result<(Option<LogId>, StoredMembership), ReplicaError> {
        Ok((log_id(self.engine.applied())?, membership(self.engine.membership())?))
    }

    /// Up to where the engine is on disk, and the membership as of then.
    pub(crate) fn flushed(&self) -> (Option<LogId>, StoredMembership) {
        let flushed = self.flushed.lock();
        (flushed.position, flushed.membership.clone())
    }

    /// Bytes of entries that a restart would apply again.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes.load(Ordering::Relaxed)
    }

    /// Applies the entry behind the last one. Blocks.
    pub(crate) fn apply(&self, entry: LogEntry) -> Result<Outcome, ReplicaError> {
        let position = Position { index: entry.log_id.index, log_id: record::encode_log_id(&entry.log_id).into() };
        let index = entry.log_id.index;
        let outcome = match entry.payload {
            EntryPayload::Blank => {
                self.engine.skip(position, None)?;
                Outcome::Applied
            }
            EntryPayload::Membership(members) => {
                let stored = StoredMembership::new(Some(entry.log_id), members);
                self.engine.skip(position, Some(record::encode_membership(&stored).into()))?;
                Outcome::Applied
            }
            EntryPayload::Normal(payload) => {
                self.unflushed_bytes.fetch_add(payload.bytes().len() as u64, Ordering::Relaxed);
                self.engine.apply(position, &*payload.entry()?)?
            }
        };
        self.metrics.applied_index.set(gauge(index));
        // Flushing goes on beside this; where it is too slow, entries wait for it.
        if self.engine.is_overfull() {
            self.flush()?;
        }
        Ok(outcome)
    }

    /// Whether the engine has something to seal; tells how much memory it takes. Blocks.
    pub(crate) fn wants_flush(&self, log_ns: i64) -> bool {
        let bytes = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.metrics.dictionary_memory_bytes.set(bytes(self.engine.dictionary_bytes()));
        self.metrics.head_memory_bytes.set(bytes(self.engine.head_bytes()));
        self.report_damage();
        // Of a shard to which nothing is sent, too, the time of the last windows is over.
        self.engine.pass_time(log_ns);
        self.engine.wants_flush()
    }

    /// Counts and logs damage that was found since the last call.
    fn report_damage(&self) {
        let DamageCounts { windows, damaged_reads } = self.engine.damage_counts();
        self.metrics.quarantined_windows.set(gauge(windows));
        let reported = self.damage_reported.swap(damaged_reads, Ordering::Relaxed);
        let new = damaged_reads.saturating_sub(reported);
        if new > 0 {
            self.metrics.damaged_reads.inc_by(new);
            let damaged = self.engine.damaged_windows();
            let some: Vec<String> = damaged.iter().take(DAMAGE_LOGGED_MAX).map(ToString::to_string).collect();
            tracing::error!(shard = self.id, new, quarantined = windows, ?some, "stored values are damaged");
        }
    }

    /// Makes everything applied so far durable, so that the log may be cut behind it. Blocks.
    pub(crate) fn flush(&self) -> Result<(), ReplicaError> {
        self.note(Engine::flush)
    }

    /// Seals, rolls up and compacts everything. Blocks, for long.
    pub(crate) fn settle(&self) -> Result<(), ReplicaError> {
        self.note(Engine::compact)
    }

    fn note(
        &self,
        write: impl FnOnce(&Engine) -> Result<storage_engine::Flushed, storage_engine::EngineError>,
    ) -> Result<(), ReplicaError> {
        let start = Instant::now();
        // What is applied meanwhile may be flushed, too, and counts as if it were not.
        let unflushed_bytes = self.unflushed_bytes.load(Ordering::Relaxed);
        let written = write(&self.engine)?;
        let (position, membership) = (log_id(written.position)?, membership(written.membership)?);
        {
            let mut flushed = self.flushed.lock();
            // Another may have been faster.
            if flushed.position <= position {
                *flushed = Flushed { position, membership };
                self.metrics.flushed_index.set(gauge(position.map_or(0, |log_id| log_id.index)));
            }
        }
        let less = |bytes: u64| Some(bytes.saturating_sub(unflushed_bytes));
        // Always succeeds: `less` never refuses.
        let _before: Result<u64, u64> = self.unflushed_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.metrics.flush_seconds.observe(start.elapsed().as_secs_f64());
        Ok(())
    }
}

fn log_id(position: Option<Position>) -> Result<Option<LogId>, RecordError> {
    position.map(|position| record::decode_log_id(&position.log_id)).transpose()
}

fn membership(stored: Option<Bytes>) -> Result<StoredMembership, RecordError> {
    stored.map_or_else(|| Ok(StoredMembership::default()), |bytes| record::decode_membership(&bytes))
}
