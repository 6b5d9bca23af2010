//! The engine: one shard's data, in memory and in the state database.
//!
//! The state consists of the database as of position `flushed`, and of samples (heads), definitions and batch IDs that
//! are only in memory. A flush moves the part in memory into the database in one atomic write, together with the
//! position of the last entry. So the database always holds the state as of exactly one position. Later entries are in
//! the Raft log. The database has no WAL: a write is durable once [`Engine::flush`] returns. Entries may be applied
//! during a flush.
//!
//! This file is the whole interface of the engine. `state` holds the data in memory, and `store` holds the database,
//! the state and their locks. Each method calls a function in another file, and passes it the store or the guard of the
//! write lock.

pub(crate) mod apply;
mod recovery;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod upkeep;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proto::{
    Answer, Batch, BatchId, Command, Entry, KnownLocations, LocationPage, Selection, SeriesAnswer, SeriesQuery,
    Stripped, TenantId, Tier,
};

use crate::database::key::PartitionKey;
use crate::engine::apply::{append, delete, drop_labels, expire, strip};
use crate::engine::state::partitions::SharedPartition;
use crate::engine::store::Store;
use crate::engine::store::write_lock::{WriteLock, Writing};
use crate::engine::upkeep::service_rates::{self, ServiceRate};
use crate::engine::upkeep::{checkpoint, compact, flush, space, statistics};
use crate::error::{EngineError, SelectError, StripError};
use crate::integrity::quarantine::report;
use crate::integrity::verify::{self, content};
use crate::select::{self, locations, series};
use crate::{Config, Content, DamageCounts, DamagedWindow, Extent, Flushed, Outcome, Position, Statistics, Verified};

/// One shard's data. All methods take `&self`. One thread at a time may call apply and skip; any thread may call the
/// others.
pub struct Engine {
    store: Store,
    write_lock: WriteLock,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", self.store.config()).finish_non_exhaustive()
    }
}

/// Methods that open the engine, apply entries, and return positions.
impl Engine {
    /// Opens or creates the state. Entries that were applied but not flushed must be applied again.
    ///
    /// # Errors
    /// [`EngineError`]: another process has the directory open, the disk fails, or the state is corrupt or of another
    /// version.
    pub fn open(config: Config) -> Result<Self, EngineError> {
        let store = Store::open(config)?;
        let durable = store.state().applied().cloned();
        let engine = Self { store, write_lock: WriteLock::new(durable) };
        recovery::recover(&engine.writing())?;
        Ok(engine)
    }

    /// Stops compactions, which may take long, so that the engine can be closed. Nothing may be written afterwards.
    pub fn stop_background_work(&self) {
        self.store.database().stop_background_work();
    }

    /// Removes from the batch the definitions that the shard already has, so that only new ones are proposed. Returns
    /// the data that restores the batch, or `None` if the batch is still complete. A batch with a new series is refused
    /// if a partition would then have more than `series_max` series; batches at one moment may together exceed this.
    ///
    /// # Errors
    /// [`StripError`]: the batch is refused, temporarily or permanently, or a partition cannot be read. The batch must
    /// not be used afterwards.
    pub fn strip(&self, batch: &mut Batch, series_max: usize) -> Result<Option<Stripped>, StripError> {
        strip::strip(self, batch, series_max)
    }

    /// Returns the names of the labels that new sums of a tenant drop: first those that hours drop, then those that
    /// days drop. Also returns the revision of the state of the meta group from which they are.
    pub fn dropped_labels(&self, tenant: &TenantId) -> (Arc<[Vec<String>; 2]>, u64) {
        drop_labels::newest(&self.store, tenant)
    }

    /// Returns whether a batch of a tenant with this ID was applied in the last
    /// [`IDEMPOTENCY_WINDOW_NS`](proto::limits::IDEMPOTENCY_WINDOW_NS).
    ///
    /// # Errors
    /// [`EngineError`]: the database cannot be read.
    pub fn holds_batch(&self, tenant: &TenantId, id: BatchId) -> Result<bool, EngineError> {
        append::holds_batch(self, tenant, id)
    }

    /// Applies the entry at the next position.
    ///
    /// # Errors
    /// [`EngineError`]: the state is unchanged or not trustworthy, so the replica must stop.
    pub fn apply(&self, position: Position, entry: &Entry) -> Result<Outcome, EngineError> {
        self.check_order(&position)?;
        let now_ns = entry.proposed_at_ns;
        match &entry.command {
            Command::Append(batch) => append::append(self, position, now_ns, batch),
            // These two write to the database, and RocksDB may make a write durable at any time.
            &Command::Expire { tier, retention_class, before_ns } => {
                self.store.config().barrier.wait(position.index)?;
                expire::expire(&self.writing(), position, now_ns, tier, retention_class, before_ns)
            }
            Command::DropLabels(drops) => Ok(drop_labels::drop_labels(&self.store, position, now_ns, drops)),
            Command::Delete(deletion) => {
                self.store.config().barrier.wait(position.index)?;
                delete::delete(&self.writing(), position, now_ns, deletion)
            }
        }
    }

    /// Advances the position over an entry that holds no command. If the entry changes the membership of the Raft
    /// group, stores the new membership for the log.
    ///
    /// # Errors
    /// [`EngineError::OutOfOrder`].
    pub fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), EngineError> {
        self.check_order(&position)?;
        self.store.state_mut().skip(position, membership);
        Ok(())
    }

    fn check_order(&self, position: &Position) -> Result<(), EngineError> {
        let applied = self.store.state().applied().map_or(0, |applied| applied.index);
        // The first index of a log is 0 or 1, and its indexes have no gaps.
        if applied > 0 && position.index != applied + 1 {
            return Err(EngineError::OutOfOrder { index: position.index, applied });
        }
        Ok(())
    }

    /// Returns the position of the last entry in the state. After opening, this is the last flushed entry.
    pub fn applied(&self) -> Option<Position> {
        self.store.state().applied().cloned()
    }

    /// Returns the position up to which the state is durable. The log may be purged up to this position.
    pub fn flushed(&self) -> Option<Position> {
        self.write_lock.durable()
    }

    /// Returns the membership of the Raft group that was last stored with [`Engine::skip`].
    pub fn membership(&self) -> Option<Bytes> {
        self.store.state().membership().cloned()
    }

    /// Waits until no other thread writes to the store. Returns the guard of the write lock.
    fn writing(&self) -> Writing<'_> {
        self.write_lock.lock(&self.store)
    }
}

/// Methods for queries.
impl Engine {
    /// Returns sums of samples. The response reflects each entry entirely or not at all.
    ///
    /// # Errors
    /// [`SelectError`]: the query is invalid, its response is too large, its data has expired, or the state cannot be
    /// read.
    pub fn select(&self, selection: &Selection) -> Result<Answer, SelectError> {
        self.select_while(selection, &|| true)
    }

    /// Does the same as [`Engine::select`], but stops when `is_wanted` returns false. `is_wanted` is called before each
    /// partition and each series that is read, by several threads at the same time.
    ///
    /// # Errors
    /// [`SelectError::Cancelled`] if `is_wanted` returned false; otherwise the errors of [`Engine::select`].
    pub fn select_while(
        &self,
        selection: &Selection,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Answer, SelectError> {
        select::select(&self.store, selection, is_wanted)
    }

    /// Returns the series that have samples in the window, and the times for which the list may be incomplete. A label
    /// that one tier dropped is listed if another tier still has it for these times.
    ///
    /// # Errors
    /// The errors of [`Engine::select`].
    pub fn series(&self, query: &SeriesQuery) -> Result<SeriesAnswer, SelectError> {
        self.series_while(query, &|| true)
    }

    /// Does the same as [`Engine::series`], but stops when `is_wanted` returns false.
    ///
    /// # Errors
    /// The errors of [`Engine::select_while`].
    pub fn series_while(
        &self,
        query: &SeriesQuery,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<SeriesAnswer, SelectError> {
        series::series(&self.store, query, is_wanted)
    }

    /// Returns the next page of a tenant's locations in memory, after those that the router has already. The generation
    /// in `known` identifies the dictionary that numbered these locations. If it is not the current one, the router
    /// gets the first page. Returns an empty page for a tenant without locations.
    pub fn locations(&self, tenant: &TenantId, known: KnownLocations) -> LocationPage {
        locations::locations(&self.store, tenant, known)
    }
}

/// Methods for upkeep, which changes no response.
impl Engine {
    /// Returns the services of which most samples arrived in the last minutes, with their rates.
    #[must_use]
    pub fn service_rates(&self) -> Vec<ServiceRate> {
        service_rates::service_rates(&self.store)
    }

    /// Advances the clock that decides when windows are sealed to at least this time, in nanoseconds since 1970.
    /// Without this call, windows would not end in a shard that gets no entries.
    pub fn pass_time(&self, now_ns: i64) {
        self.store.state_mut().clock.pass(now_ns);
    }

    /// Returns true if a window is due to be sealed or summed up. Also returns true if the samples of all engines in
    /// memory exceed the shared budget, and this engine has the most of them.
    pub fn wants_flush(&self) -> bool {
        flush::wants_flush(&self.store)
    }

    /// Returns whether samples in memory exceed their shared budget so far that new entries should wait for a flush of
    /// this engine. This is false for an engine with less than an equal part of the budget: its entries never wait for
    /// the flush of another engine.
    pub fn is_overfull(&self) -> bool {
        flush::is_overfull(&self.store)
    }

    /// Evicts dictionaries and series that nobody uses, if those of all engines come close to their shared budget. An
    /// engine that gets neither entries nor queries would otherwise keep memory that other engines need.
    pub fn evict_idle(&self) {
        self.store.evict_idle();
    }

    /// Makes all applied entries durable. Returns the position up to which the state is durable.
    ///
    /// # Errors
    /// [`EngineError`]. If the disk is full, nothing is lost, and the flush can be repeated when there is space.
    pub fn flush(&self) -> Result<Flushed, EngineError> {
        let flushed = flush::flush(&self.writing());
        // Once a compaction has read a damaged block, RocksDB fails every write. Its error names the damaged table
        // file.
        flushed.inspect_err(|error| self.store.database().note_error(error))
    }

    /// Seals all samples in memory, sums up every hour and day that is over, merges the blocks of each dictionary, and
    /// compacts the database. Returns the position up to which the state is durable. This takes long.
    ///
    /// # Errors
    /// The errors of [`Engine::flush`].
    pub fn compact(&self) -> Result<Flushed, EngineError> {
        compact::compact(self)
    }

    /// Writes the state as of the last applied entry to `directory`, which must not exist yet, and returns that
    /// position. [`Engine::open`] can open `directory`. Table files are hard links where possible. Entries are applied
    /// meanwhile, except deletions and expiries, which wait.
    ///
    /// # Errors
    /// [`EngineError::Unrepaired`]: table files are damaged. Other errors: the directory may be incomplete.
    pub fn checkpoint(&self, directory: &Path) -> Result<Flushed, EngineError> {
        checkpoint::checkpoint(&self.writing(), directory)
    }

    /// Frees the disk space of the partitions of a tier and class that end at or before a time. These partitions must
    /// have been dropped by an entry, and the drop must be flushed. For minutes, this includes the raw samples. Runs a
    /// compaction, because until then the deleted keys still take space in files that other keys share. This takes
    /// long.
    pub fn reclaim(&self, tier: Tier, retention_class: u8, before_ns: i64) {
        space::reclaim(&self.store, tier, retention_class, before_ns);
    }
}

/// Methods that measure the engine's data.
impl Engine {
    /// Returns the largest `proposed_at_ns` of the applied entries, in nanoseconds since 1970; 0 if none was applied.
    pub fn clock_ns(&self) -> i64 {
        self.store.state().clock.entries_ns()
    }

    /// Returns the end of the newest window with samples in memory, in nanoseconds since 1970; `None` if there are
    /// none. The newest of these samples is at most ten minutes older.
    pub fn newest_unsealed_ns(&self) -> Option<i64> {
        let state = self.store.state();
        let newest = |(_, partition): (&PartitionKey, &SharedPartition)| {
            partition.read().head.arrivals().map(|(window, _)| window).max()
        };
        state.partitions.all_loaded().filter_map(newest).max().map(|window| Tier::Raw.window_end_ns(window))
    }

    /// Returns the approximate memory of dictionaries and series, in bytes.
    pub fn dictionary_bytes(&self) -> usize {
        self.store.shares().dictionaries.total().bytes()
    }

    /// Returns the approximate memory of unsealed samples, in bytes.
    pub fn head_bytes(&self) -> usize {
        self.store.shares().heads.total().bytes()
    }

    /// Returns the end, in nanoseconds since 1970, of the oldest partition of each tier and retention class. Expiring a
    /// tier and class up to this time frees space.
    pub fn oldest_ends_ns(&self) -> BTreeMap<(Tier, u8), i64> {
        let mut oldest = BTreeMap::new();
        for key in self.store.state().partitions.existing() {
            let end_ns = oldest.entry((key.tier, key.class)).or_insert(i64::MAX);
            *end_ns = key.end_ns().min(*end_ns);
        }
        oldest
    }

    /// Returns the disk space of the partitions of each tier, class and time, ordered by the end of the time, then by
    /// tier, finest first.
    ///
    /// # Errors
    /// [`EngineError`]: the disk cannot be read.
    pub fn extents(&self) -> Result<Vec<Extent>, EngineError> {
        space::extents(&self.store)
    }

    /// Reads and counts all data on disk.
    ///
    /// # Errors
    /// [`EngineError`]: something cannot be read.
    pub fn statistics(&self) -> Result<Statistics, EngineError> {
        statistics::statistics(&self.store)
    }
}

/// Methods that check the data and report damage.
impl Engine {
    /// Reads and checks everything on disk. Data that is only in memory is not checked. Takes as long as reading and
    /// unpacking all files.
    ///
    /// # Errors
    /// [`EngineError`]: the database itself cannot be read. Faults of values are part of the result.
    pub fn verify(&self) -> Result<Verified, EngineError> {
        verify::verify(&self.store)
    }

    /// Makes all applied entries durable, and returns the signature of the content at this position. Upkeep waits
    /// meanwhile, and so do entries that delete or expire. Takes as long as [`Engine::verify`].
    ///
    /// # Errors
    /// The errors of [`Engine::flush`]. Also [`EngineError`] if a value cannot be read.
    pub fn content(&self) -> Result<Content, EngineError> {
        content::read(&self.writing())
    }

    /// Returns all known damage, by tier and time.
    pub fn damaged_windows(&self) -> Vec<DamagedWindow> {
        report::damaged_windows(&self.store)
    }

    /// Returns the counts of known damage.
    pub fn damage_counts(&self) -> DamageCounts {
        report::damage_counts(&self.store)
    }

    /// Returns whether table files with damaged blocks were found. Such files are repaired when the engine is opened
    /// again. Until then nothing is compacted, because RocksDB refuses all writes after a compaction that read such a
    /// block.
    pub fn needs_repair(&self) -> bool {
        self.store.database().needs_repair()
    }

    /// Returns whether there are table files with damaged blocks, including files whose repair failed at opening. Until
    /// they are repaired nothing is compacted, so dropped partitions still take disk space.
    pub fn has_damaged_files(&self) -> bool {
        self.store.database().has_damaged_files()
    }

    /// Returns whether damaged table files were repaired at opening. What could not be read is quarantined, or made
    /// again from finer values.
    pub fn are_files_repaired(&self) -> bool {
        self.store.database().are_files_repaired()
    }

    /// Returns the error of the repair at opening, if the repair failed. The state is then served unrepaired, and
    /// nothing is compacted, so the state grows.
    pub fn repair_failure(&self) -> Option<&EngineError> {
        self.store.database().repair_failure()
    }
}
