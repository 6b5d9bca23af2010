//! One shard's engine, as the state of its group: applies entries in log order, and flushes.
//!
//! Invariant: one thread at a time applies entries, and goes on during a flush. The flushed position is kept together
//! with the membership at this position, so that the log can be purged.

mod kept_log;
pub(crate) mod snapshot;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use storage_engine::{Budgets, DamageCounts, Engine, Flushed, LogBarrier, Position, Verified};

use crate::consensus::{GroupState, Outcome, Payload};
use crate::directory::DataDirectory;
use crate::directory::shard::ShardDirectory;
use crate::error::{RecordError, ReplicaError};
use crate::metrics::{ShardMetrics, gauge};
pub(crate) use crate::shard::kept_log::KeepLimits;
pub(crate) use crate::shard::kept_log::KeptLog;

/// Largest number of damaged windows that one log line names.
const DAMAGE_LOGGED_MAX: usize = 10;

/// An open engine and its flushed position.
#[derive(Debug)]
pub(crate) struct Shard {
    id: u32,
    engine: Engine,
    /// Position of the last flushed entry, and the membership at this position.
    flushed: Mutex<Flushed>,
    /// Flushed entries that are kept in the log.
    kept_log: Mutex<KeptLog>,
    /// Size of the entries applied since the last flush, in bytes, before compression.
    unflushed_bytes: AtomicU64,
    /// Size of these entries in the log, in bytes.
    unflushed_log_bytes: AtomicU64,
    /// Number of reads of damaged values that are already counted in the metrics and logged.
    damage_reported: AtomicU64,
    /// Faults that a verification has found.
    faults: Mutex<Option<String>>,
    metrics: ShardMetrics,
    /// Marker that the engine is open. It is dropped last: once a weak reference to it cannot be upgraded, all files
    /// are closed.
    open: Arc<()>,
    /// The directory, which stays locked until all files are closed.
    directory: Arc<DataDirectory>,
}

impl Shard {
    /// Opens the engine in the folder `state`, which is in `directory`. `barrier` blocks until this node's log has
    /// synced an entry; the engine writes nothing before.
    pub(crate) fn open(
        id: u32,
        directory: &Arc<DataDirectory>,
        state: PathBuf,
        budgets: Budgets,
        barrier: LogBarrier,
        metrics: ShardMetrics,
    ) -> Result<Self, ReplicaError> {
        let engine = Engine::open(storage_engine::Config { directory: state, budgets, barrier })?;
        if let Some(error) = engine.repair_failure() {
            tracing::error!(shard = id, %error, "damaged table files cannot be repaired: nothing is compacted");
        }
        if engine.are_files_repaired() {
            let damage = engine.damage_counts();
            if damage == DamageCounts::default() {
                tracing::warn!(shard = id, "repaired: nothing is missing from the new files");
            } else {
                tracing::warn!(shard = id, ?damage, "damaged table files were replaced, but some values are lost");
            }
        }
        let flushed = Flushed { position: engine.flushed(), membership: engine.membership() };
        let index = gauge(flushed.position.as_ref().map_or(0, |position| position.index));
        metrics.flushed_index.set(index);
        metrics.applied_index.set(index);
        let mut kept_log = KeptLog::default();
        kept_log.add(Instant::now(), flushed.clone(), 0);
        Ok(Self {
            id,
            engine,
            flushed: Mutex::new(flushed),
            kept_log: Mutex::new(kept_log),
            unflushed_bytes: AtomicU64::new(0),
            unflushed_log_bytes: AtomicU64::new(0),
            damage_reported: AtomicU64::new(0),
            faults: Mutex::default(),
            metrics,
            open: Arc::default(),
            directory: Arc::clone(directory),
        })
    }

    /// Returns a weak reference that can be upgraded until all files are closed. The files may close a moment after the
    /// last reference to `self` is dropped.
    pub(crate) fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Directory of the shard, which holds the folder of the state.
    pub(crate) fn directory(&self) -> ShardDirectory {
        self.directory.shard(self.id)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the index of the last entry that is on disk in the engine; `None` if there is none.
    pub(crate) fn flushed_index(&self) -> Option<u64> {
        self.flushed.lock().position.as_ref().map(|position| position.index)
    }

    /// Returns the size of the entries that a restart would apply again, in bytes.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes.load(Ordering::Relaxed)
    }

    fn note_applied(&self, index: u64) -> Result<(), ReplicaError> {
        self.metrics.applied_index.set(gauge(index));
        // A flush usually runs in parallel. If flushes are too slow, entries wait here for another flush of this shard.
        if self.engine.is_overfull() { self.flush() } else { Ok(()) }
    }

    /// Returns true if a window is due to be sealed or summed up, or the samples in memory exceed their budget and this
    /// shard has most of them. Also evicts idle dictionaries, sets the memory metrics, and reports new damage. Blocks.
    pub(crate) fn wants_flush(&self, log_ns: i64) -> bool {
        let bytes = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.metrics.dictionary_memory_bytes.set(bytes(self.engine.dictionary_bytes()));
        self.metrics.head_memory_bytes.set(bytes(self.engine.head_bytes()));
        self.report_damage();
        self.engine.evict_idle();
        // Windows also end in a shard that receives no entries.
        self.engine.pass_time(log_ns);
        self.engine.wants_flush()
    }

    /// Describes the damage of the state; `None` if none is known.
    pub(crate) fn damage(&self) -> Option<String> {
        let DamageCounts { windows, without_batch_ids, damaged_reads } = self.engine.damage_counts();
        let faults = self.faults.lock().clone();
        let unrepaired = || self.engine.repair_failure().map(|error| format!("damaged files: {error}"));
        let quarantined = || (windows > 0).then(|| format!("{windows} quarantined windows"));
        let without_ids = || (without_batch_ids > 0).then(|| format!("{without_batch_ids} partitions lost batch IDs"));
        let read = || (damaged_reads > 0).then(|| format!("{damaged_reads} damaged values"));
        faults.or_else(unrepaired).or_else(quarantined).or_else(without_ids).or_else(read)
    }

    /// Reads and checks everything on disk. Faults count as damage from then on. Blocks for a long time.
    pub(crate) fn verify(&self) -> Result<Verified, storage_engine::EngineError> {
        let verified = self.engine.verify()?;
        if verified.faults > 0 {
            let first = verified.described.first().map_or("", String::as_str);
            *self.faults.lock() = Some(format!("{} faults, the first: {first}", verified.faults));
        }
        Ok(verified)
    }

    /// Counts the damage that was found since the last call in the metrics, and logs it.
    fn report_damage(&self) {
        let DamageCounts { windows, without_batch_ids, damaged_reads } = self.engine.damage_counts();
        self.metrics.quarantined_windows.set(gauge(windows));
        self.metrics.partitions_without_batch_ids.set(gauge(without_batch_ids));
        self.metrics.unrepaired.set(i64::from(self.engine.repair_failure().is_some()));
        let reported = self.damage_reported.swap(damaged_reads, Ordering::Relaxed);
        let new = damaged_reads.saturating_sub(reported);
        if new > 0 {
            self.metrics.damaged_reads.inc_by(new);
            let damaged = self.engine.damaged_windows();
            let some: Vec<String> = damaged.iter().take(DAMAGE_LOGGED_MAX).map(ToString::to_string).collect();
            tracing::error!(shard = self.id, new, quarantined = windows, ?some, "stored values are damaged");
        }
    }

    /// Writes the effects of all applied entries to disk, so that the Raft log may be purged up to the last applied
    /// entry. Blocks.
    pub(crate) fn flush(&self) -> Result<(), ReplicaError> {
        self.write(Engine::flush).map(drop)
    }

    /// Records that the log is purged up to `purged`, when the shard is opened. The log has `flushed_bytes` bytes of
    /// flushed entries.
    pub(crate) fn begin_log(&self, purged: Option<Position>, flushed_bytes: u64) {
        // The membership at the end of the state, because none is stored for `purged`. Consensus only uses the
        // position.
        let membership = self.engine.membership();
        self.kept_log.lock().begin(Flushed { position: purged, membership }, flushed_bytes);
    }

    /// Allows the log to be purged, except for flushed entries within `limits` and for entries after `kept_index`;
    /// without limits, up to the last flush.
    pub(crate) fn release_log(&self, limits: Option<KeepLimits>, kept_index: Option<u64>) {
        self.kept_log.lock().release(Instant::now(), limits, kept_index);
    }

    /// Returns the size of the entries in the log that are not released, in bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.kept_log.lock().bytes() + self.unflushed_log_bytes.load(Ordering::Relaxed)
    }

    /// Flushes, and writes an image of the state to a folder that must not exist yet. Returns its position. Blocks.
    pub(crate) fn checkpoint(&self, folder: &Path) -> Result<Flushed, ReplicaError> {
        self.write(|engine| engine.checkpoint(folder))
    }

    /// Seals, rolls up and compacts all data. Blocks for a long time.
    pub(crate) fn compact(&self) -> Result<(), ReplicaError> {
        self.write(Engine::compact).map(drop)
    }

    fn write(
        &self,
        write: impl FnOnce(&Engine) -> Result<Flushed, storage_engine::EngineError>,
    ) -> Result<Flushed, ReplicaError> {
        let start = Instant::now();
        // Read before the flush: entries that are applied during the flush still count as unflushed, even if it
        // includes them.
        let counters = [&self.unflushed_bytes, &self.unflushed_log_bytes];
        let unflushed = counters.map(|bytes| bytes.load(Ordering::Relaxed));
        let written = write(&self.engine)?;
        {
            let mut flushed = self.flushed.lock();
            let index = |flushed: &Flushed| flushed.position.as_ref().map(|position| position.index);
            // Another flush may have been faster.
            if index(&flushed) <= index(&written) {
                self.metrics.flushed_index.set(gauge(index(&written).unwrap_or(0)));
                flushed.clone_from(&written);
                self.kept_log.lock().add(Instant::now(), written.clone(), unflushed[1]);
            }
        }
        for (bytes, flushed) in counters.into_iter().zip(unflushed) {
            let less = |bytes: u64| Some(bytes.saturating_sub(flushed));
            // Always succeeds: `less` never refuses.
            let _before: Result<u64, u64> = bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        self.metrics.flush_seconds.observe(start.elapsed().as_secs_f64());
        Ok(written)
    }
}

impl GroupState for Shard {
    fn applied(&self) -> Flushed {
        Flushed { position: self.engine.applied(), membership: self.engine.membership() }
    }

    fn flushed(&self) -> Flushed {
        self.flushed.lock().clone()
    }

    fn purgeable(&self) -> Flushed {
        self.kept_log.lock().purgeable()
    }

    fn apply(&self, position: Position, command: Payload) -> Result<Outcome, ReplicaError> {
        let index = position.index;
        self.unflushed_bytes.fetch_add(command.encoded_len() as u64, Ordering::Relaxed);
        self.unflushed_log_bytes.fetch_add(command.logged_len() as u64, Ordering::Relaxed);
        let outcome = self.engine.apply(position, &*entry(command)?)?;
        self.note_applied(index)?;
        Ok(Outcome::Shard(outcome))
    }

    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError> {
        let index = position.index;
        self.engine.skip(position, membership)?;
        self.note_applied(index)
    }
}

/// Returns the entry of a command. An error means that the bytes cannot be decoded. Their checksum was right, so broken
/// software proposed the entry, and no replica may apply it.
fn entry(command: Payload) -> Result<Arc<proto::Entry>, RecordError> {
    if let Some(entry) = command.decoded() {
        return Ok(entry);
    }
    let broken = RecordError::Content { record: "entry's command" };
    let Ok(wire) = proto::wire::Entry::decode(command.encoded()?) else { return Err(broken) };
    proto::Entry::from_wire(wire).map(Arc::new).map_err(|error| {
        tracing::error!(%error, "an entry of the log contradicts itself");
        broken
    })
}
