//! The engine: one shard's data, in memory and in the state database.
//!
//! The state is the database as of `flushed`, plus heads, new definitions and new batch IDs in memory.
//! A flush moves them into the database in one atomic write, together with the position of their last entry. So the
//! database always holds the state as of exactly one position.
//! Later entries are in the Raft log. The database has no WAL: a write is durable once [`Engine::flush`] returns.
//! Entries are applied during a flush.

pub(crate) mod apply;
pub(crate) mod state;
pub(crate) mod upkeep;
pub(crate) mod write_lock;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use proto::Tier;
use rocksdb::DB;

use crate::database::key::{PartitionKey, Section};
use crate::database::{self, Snapshot};
use crate::engine::state::State;
use crate::engine::state::partitions::SharedPartition;
use crate::engine::write_lock::WriteLock;
use crate::error::{Corruption, CorruptionCheck, EngineError, is_corruption};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::quarantine::repair;
use crate::memory::footprint::MemoryTotal;
use crate::memory::partition::Partition;
use crate::memory::stored_partition::StoredPartition;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::{Config, Position};

/// One shard's data. All methods take `&self`. One thread at a time may call apply and skip; any thread may call the
/// others.
///
/// Lock order: `writing`, `loading`, then those of `State`, `flushed`.
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) database: DB,
    pub(crate) state: RwLock<State>,
    /// Memory of the definitions.
    definitions: MemoryTotal,
    /// Held while a partition is read into memory, so that concurrent readers read it once.
    loading: Mutex<()>,
    /// Held while the database is written.
    pub(crate) writing: WriteLock,
    /// Last position up to which the database is durable.
    pub(crate) flushed: Mutex<Option<Position>>,
    /// True if table files with damaged blocks were found since the engine was opened.
    pub(crate) needs_repair: AtomicBool,
    /// True if there are table files with damaged blocks. Nothing is compacted then.
    pub(crate) has_damaged_files: AtomicBool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or creates the state. Entries that were applied but not flushed must be applied again.
    ///
    /// # Errors
    /// [`EngineError`]: another process has the directory open, the disk fails, or the state is corrupt or of another
    /// version.
    pub fn open(config: Config) -> Result<Self, EngineError> {
        let (database, is_damaged) = open_repaired(&config)?;
        let state = State::read(&database.snapshot())?;
        let applied = state.applied().cloned();
        let definitions = state.partitions.definitions().clone();
        let engine = Self {
            config,
            database,
            state: RwLock::new(state),
            definitions,
            loading: Mutex::new(()),
            writing: WriteLock::default(),
            flushed: Mutex::new(applied),
            needs_repair: AtomicBool::new(false),
            has_damaged_files: AtomicBool::new(is_damaged),
        };
        engine.quarantine_lost()?;
        engine.find_orphans()?;
        engine.load_heads()?;
        Ok(engine)
    }

    /// Quarantines raw samples whose partition of minutes has no key, because the block with its definitions cannot
    /// be read.
    fn find_orphans(&self) -> Result<(), EngineError> {
        {
            let mut state = self.state.write();
            let damaged: Vec<PartitionKey> = state.damage.iter().map(|(key, ..)| key).collect();
            damaged.into_iter().for_each(|key| state.partitions.add(key));
        }
        let orphans: Vec<PartitionKey> = {
            let state = self.state.read();
            let raw = state.partitions.existing().iter().filter(|key| key.tier == Tier::Raw);
            raw.map(|raw| raw.in_tier(Tier::Minute)).filter(|key| !state.partitions.exists(key)).collect()
        };
        for key in orphans {
            self.state.write().partitions.add(key);
            let raw = key.in_tier(Tier::Raw);
            let snapshot = self.database.snapshot();
            // Batch IDs need no definitions.
            let samples = Walk::between(&snapshot, raw.prefix(), raw.section(Section::BatchIds), false).next()?;
            if samples.is_some() {
                let lost = Corruption { key: key.section(Section::Series), check: CorruptionCheck::Missing };
                self.quarantine_partition(key, &lost.into());
            }
        }
        Ok(())
    }

    /// Loads the partitions that have samples in no chunk yet. They stay in memory.
    fn load_heads(&self) -> Result<(), EngineError> {
        let raw: Vec<PartitionKey> = {
            let state = self.state.read();
            state.partitions.existing().iter().copied().filter(|key| key.tier == Tier::Raw).collect()
        };
        for key in raw {
            let snapshot = self.database.snapshot();
            if Walk::new(&snapshot, key.section(Section::Head)).next()?.is_none() {
                continue;
            }
            match self.partition(key.in_tier(Tier::Minute)) {
                Ok(_) => {}
                // The partition is quarantined, and everything else is served.
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the position of the last entry in the state; after opening, that of the last flushed one.
    pub fn applied(&self) -> Option<Position> {
        self.state.read().applied().cloned()
    }

    /// Returns the position up to which the state is durable. The log may be purged up to it.
    pub fn flushed(&self) -> Option<Position> {
        self.flushed.lock().clone()
    }

    /// Returns the membership that was last stored with [`Engine::skip`].
    pub fn membership(&self) -> Option<Bytes> {
        self.state.read().membership().cloned()
    }

    /// Returns an existing partition of minutes, hours or days. Reads it from the database if it is not in memory.
    pub(crate) fn partition(&self, key: PartitionKey) -> Result<Option<Arc<RwLock<Partition>>>, EngineError> {
        if let Some(partition) = self.state.read().partitions.loaded(&key) {
            return Ok(Some(Arc::clone(partition)));
        }
        let _loading = self.loading.lock();
        loop {
            let (shared, drops, now_ns) = {
                let mut state = self.state.write();
                if let Some(partition) = state.partitions.loaded(&key) {
                    return Ok(Some(Arc::clone(partition)));
                }
                if !state.partitions.exists(&key) {
                    return Ok(None);
                }
                if state.damage.has_damaged_definitions(key) {
                    return Err(EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() });
                }
                (state.partitions.dictionary(key.tenant), state.partitions.drops(), state.clock.entries_ns())
            };
            // Reads without the locks that `apply` takes. A partition that is not loaded has no head, so the database
            // holds all of it. No other thread loads it meanwhile, but it may be dropped, and a new one created in
            // its place.
            let read = StoredPartition::read(&self.database.snapshot(), key, now_ns).and_then(|mut stored| {
                let damaged_head = std::mem::take(&mut stored.damaged_head);
                Ok((stored.into_partition(&mut shared.write())?, damaged_head))
            });
            let (partition, damaged_head) = match read {
                Err(error) if error.is_damage() && self.state.read().partitions.drops() == drops => {
                    return Err(self.quarantine_partition(key, &error));
                }
                // The partition was dropped meanwhile, with its files.
                Err(error) if error.is_damage() => continue,
                read => read?,
            };
            let mut state = self.state.write();
            let is_current = shared.read().generation() == partition.generation;
            if state.partitions.drops() == drops && is_current {
                damaged_head.iter().for_each(|(area, what)| state.quarantine_in_all_tiers(key, *area, what));
                let partition = state.partitions.keep(partition);
                state.partitions.evict(self.config.idle_dictionary_bytes_max());
                return Ok(Some(partition));
            }
        }
    }

    /// Returns an existing partition of minutes, hours or days for a caller that needs no dictionary. If it is not in
    /// memory, it is read without its dictionary, which is most of it, and not kept.
    pub(crate) fn outline(
        &self,
        key: PartitionKey,
        snapshot: &Snapshot<'_>,
    ) -> Result<Option<Arc<RwLock<Partition>>>, EngineError> {
        {
            let state = self.state.read();
            if let Some(partition) = state.partitions.loaded(&key) {
                return Ok(Some(Arc::clone(partition)));
            }
            if !state.partitions.exists(&key) {
                return Ok(None);
            }
            if state.damage.has_damaged_definitions(key) {
                return Err(EngineError::Quarantined { tier: key.tier, end_ns: key.end_ns() });
            }
        }
        match StoredPartition::outline(snapshot, key) {
            Ok(partition) => Ok(Some(Arc::new(RwLock::new(partition)))),
            // A snapshot does not keep the files of partitions that were dropped meanwhile.
            Err(error) if error.is_damage() && self.state.read().partitions.exists(&key) => {
                Err(self.quarantine_partition(key, &error))
            }
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Advances the clock for sealing to at least this time, in nanoseconds since 1970, so that windows also end in a
    /// shard without new entries. Changes no response.
    pub fn pass_time(&self, now_ns: i64) {
        self.state.write().clock.pass(now_ns);
    }

    /// Returns the largest `proposed_at_ns` of the applied entries, in nanoseconds since 1970; 0 before the first.
    pub fn clock_ns(&self) -> i64 {
        self.state.read().clock.entries_ns()
    }

    /// Returns the end of the newest window with samples in memory, in nanoseconds since 1970: about the newest time
    /// that was written recently.
    pub fn newest_unsealed_ns(&self) -> Option<i64> {
        let state = self.state.read();
        let newest = |(_, partition): (&PartitionKey, &SharedPartition)| {
            partition.read().head.arrivals().map(|(window, _)| window).max()
        };
        state.partitions.all_loaded().filter_map(newest).max().map(|window| Tier::Raw.window_end_ns(window))
    }

    /// Stops compactions, which may take long, so that the engine can be closed. Nothing may be written afterwards.
    pub fn stop_background_work(&self) {
        self.database.cancel_all_background_work(false);
    }

    /// Returns a tenant's dictionary.
    pub(crate) fn tenant_dictionary(&self, tenant: u32) -> Arc<RwLock<TenantDictionary>> {
        if let Some(shared) = self.state.read().partitions.loaded_dictionary(tenant) {
            return Arc::clone(shared);
        }
        self.state.write().partitions.dictionary(tenant)
    }

    /// Returns the approximate memory of dictionaries and series, in bytes.
    pub fn dictionary_bytes(&self) -> usize {
        self.definitions.bytes()
    }

    /// Returns the approximate memory of samples in no chunk yet, in bytes.
    pub fn head_bytes(&self) -> usize {
        self.state.read().partitions.head_size().bytes
    }

    /// Returns the end of the oldest partition of each tier and retention class, in nanoseconds since 1970. Expiring
    /// up to it frees space.
    pub fn oldest_ends_ns(&self) -> BTreeMap<(Tier, u8), i64> {
        let mut oldest = BTreeMap::new();
        for key in self.state.read().partitions.existing() {
            let end_ns = oldest.entry((key.tier, key.class)).or_insert(i64::MAX);
            *end_ns = key.end_ns().min(*end_ns);
        }
        oldest
    }
}

/// Opens the database after a repair of the table files that are listed as damaged, or that RocksDB finds damaged
/// now. Returns whether damaged files remain.
fn open_repaired(config: &Config) -> Result<(DB, bool), EngineError> {
    loop {
        let is_damaged = repair::repair(config)?;
        match database::open(config, is_damaged) {
            Err(EngineError::Database(error)) if is_corruption(&error) => {
                let number = repair::file_named(error.as_ref());
                let is_new = number.map(|number| repair::note_file(&config.directory, number)).transpose();
                if is_new.map_err(EngineError::Files)? != Some(true) {
                    return Err(error.into());
                }
            }
            opened => return Ok((opened?, is_damaged)),
        }
    }
}
