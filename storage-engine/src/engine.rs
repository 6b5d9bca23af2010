//! The engine: applies entries in log order, seals and flushes, selects.
//!
//! State = what is in the database (as of `flushed` or later) + heads, new definitions and new batch ids in memory. Sealing
//! moves all of the latter into the database in one atomic write together with the applied position, so the database always
//! holds the state as of one position exactly; what lies behind it is in the Raft log. The database has no WAL: a write is
//! durable when [`Engine::flush`] has flushed it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use proto::{Answer, Batch, Command, Entry, Importer, Selection, TenantId, Window, limits};
use rocksdb::{DB, WriteBatch, WriteOptions};

use crate::batch_ids::{self, BatchIds};
use crate::database;
use crate::error::{EngineError, SelectError, StripError};
use crate::key::{self, PartitionKey};
use crate::matcher::ReadyMatcher;
use crate::partition::{HEAD_SAMPLE_BYTES, Partition};
use crate::select::{Accumulator, Gathered, gather};
use crate::split;
use crate::strip::{defines_nothing, strip};
use crate::{Config, Outcome, Position};

/// Partitions that are kept in memory without new samples, for queries; older ones are read again when needed.
const IDLE_PARTITIONS_MAX: usize = 16;

/// The database as of one moment.
pub(crate) type Snapshot<'a> = rocksdb::SnapshotWithThreadMode<'a, DB>;

/// One shard's data. All methods take `&self`; apply, skip and flush are called by one thread at a time, the others by any.
pub struct Engine {
    config: Config,
    pub(crate) database: DB,
    state: RwLock<State>,
    /// Up to where the database is on disk; behind a lock of its own, since flushing takes long.
    flushed: Mutex<Option<Position>>,
    /// Partitions that are dropped from the state, whose files go when that is on disk.
    dropped: Mutex<Vec<PartitionKey>>,
}

struct State {
    applied: Option<Position>,
    membership: Option<Bytes>,
    /// The largest `proposed_at_ns` so far: the only clock here.
    clock_ns: i64,
    tenants: BTreeMap<TenantId, u32>,
    unsealed_tenants: Vec<(u32, TenantId)>,
    batch_ids: BatchIds,
    /// All partitions that exist, loaded or not.
    existing: BTreeSet<PartitionKey>,
    loaded: BTreeMap<PartitionKey, Arc<RwLock<Partition>>>,
    head_bytes: usize,
    /// How often memory was moved into the database: what was read of it before may lack what came since.
    sealings: u64,
}

impl State {
    /// Forgets partitions that nobody uses until few enough are left, oldest first: new samples and most queries go to the
    /// newest. One that a selection holds stays: a second copy of it would get what the first then lacks.
    fn let_go(&mut self, bytes_max: usize) {
        let mut bytes: usize = self.loaded.values().map(|partition| partition.read().dictionary_bytes()).sum();
        let mut count = self.loaded.len();
        self.loaded.retain(|_, partition| {
            let is_kept =
                (count <= IDLE_PARTITIONS_MAX && bytes <= bytes_max) || count == 1 || Arc::strong_count(partition) > 1;
            if !is_kept {
                count -= 1;
                bytes = bytes.saturating_sub(partition.read().dictionary_bytes());
            }
            is_kept
        });
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens or makes the state; what was applied and not flushed must be applied again.
    ///
    /// # Errors
    /// [`EngineError`]: another process has it open, the disk fails, or the state is corrupt or of another version.
    pub fn open(config: Config) -> Result<Self, EngineError> {
        let database = database::open(&config)?;
        let applied = database::read_position(&database)?;
        let tenants = database::read_tenants(&database)?;
        let state = State {
            applied: applied.clone(),
            membership: database.get(key::MEMBERSHIP)?.map(Bytes::from),
            clock_ns: database::read_clock(&database)?,
            tenants,
            unsealed_tenants: Vec::new(),
            batch_ids: BatchIds::default(),
            existing: database::read_partition_keys(&database)?,
            loaded: BTreeMap::new(),
            head_bytes: 0,
            sealings: 0,
        };
        Ok(Self {
            config,
            database,
            state: RwLock::new(state),
            flushed: Mutex::new(applied),
            dropped: Mutex::default(),
        })
    }

    /// The last entry in the state; after opening, the last flushed one.
    pub fn applied(&self) -> Option<Position> {
        self.state.read().applied.clone()
    }

    /// Up to where the state is durable: the log may be cut at or below it.
    pub fn flushed(&self) -> Option<Position> {
        self.flushed.lock().clone()
    }

    /// What the log last stored here with [`Engine::skip`].
    pub fn membership(&self) -> Option<Bytes> {
        self.state.read().membership.clone()
    }

    /// The batch without the definitions that the shard knows already: what is proposed holds only new ones.
    ///
    /// # Errors
    /// [`StripError`]: the batch cannot be taken, now or ever, or a partition cannot be read.
    pub fn strip(&self, batch: &Batch) -> Result<Batch, StripError> {
        let tenant = self.state.read().tenants.get(&batch.tenant).copied();
        let keys: Vec<_> = split::parts(tenant.unwrap_or_default(), batch).into_keys().collect();
        let (partitions, partitions_max) = (keys.len(), limits::BATCH_PARTITIONS_MAX);
        if partitions > partitions_max {
            return Err(StripError::TooManyPartitions { partitions, partitions_max });
        }
        let known = keys.iter().map(|&key| self.partition(key)).collect::<Result<Option<Vec<_>>, _>>()?;
        let known = known.filter(|_| tenant.is_some());
        let stripped = known.as_ref().map_or_else(|| batch.clone(), |partitions| strip(batch, partitions));
        let (bytes, bytes_max) = (self.dictionary_bytes(), self.config.dictionary_bytes_max);
        if bytes > bytes_max && !known.is_some_and(|partitions| defines_nothing(&stripped, &partitions)) {
            return Err(StripError::DictionaryFull { bytes, bytes_max });
        }
        Ok(stripped)
    }

    /// Applies the entry at the next position.
    ///
    /// # Errors
    /// [`EngineError`]: the state is unchanged or not to be trusted; the replica must stop.
    pub fn apply(&self, position: Position, entry: &Entry) -> Result<Outcome, EngineError> {
        self.check_order(&position)?;
        let outcome = match &entry.command {
            Command::Append(batch) => self.append(entry.proposed_at_ns, batch)?,
            Command::Expire { before_ns } => return self.expire(position, entry.proposed_at_ns, *before_ns),
        };
        let mut state = self.state.write();
        state.applied = Some(position);
        state.clock_ns = state.clock_ns.max(entry.proposed_at_ns);
        Ok(outcome)
    }

    /// Passes an entry that holds no command; a new membership, if any, is kept for the log.
    ///
    /// # Errors
    /// [`EngineError::OutOfOrder`].
    pub fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), EngineError> {
        self.check_order(&position)?;
        let mut state = self.state.write();
        state.applied = Some(position);
        if membership.is_some() {
            state.membership = membership;
        }
        Ok(())
    }

    fn check_order(&self, position: &Position) -> Result<(), EngineError> {
        let applied = self.state.read().applied.as_ref().map_or(0, |applied| applied.index);
        // A log begins at 0 or 1; behind that there are no gaps.
        if applied > 0 && position.index != applied + 1 {
            return Err(EngineError::OutOfOrder { index: position.index, applied });
        }
        Ok(())
    }

    fn append(&self, now_ns: i64, batch: &Batch) -> Result<Outcome, EngineError> {
        let (now_ns, is_unsealed, known_tenant, next_tenant) = {
            let state = self.state.read();
            let is_unsealed = batch.id.is_some_and(|id| state.batch_ids.is_unsealed(id));
            let next_tenant = u32::try_from(state.tenants.len()).unwrap_or(u32::MAX);
            (state.clock_ns.max(now_ns), is_unsealed, state.tenants.get(&batch.tenant).copied(), next_tenant)
        };
        // The disk is asked without the lock; nothing is sealed meanwhile, since apply and flush are of one thread.
        if let Some(id) = batch.id
            && (is_unsealed || batch_ids::is_sealed(&self.database, id, now_ns)?)
        {
            return Ok(Outcome::Duplicate);
        }
        let tenant = known_tenant.unwrap_or(next_tenant);
        let parts = split::parts(tenant, batch);
        let mut partitions = Vec::new();
        for (key, parts) in parts {
            let existing = self.partition(key)?;
            partitions.push((key, existing.unwrap_or_else(|| Arc::new(RwLock::new(Partition::new(key)))), parts));
        }
        if !partitions.iter().all(|(_, partition, _)| partition.read().knows_what_is_stripped(batch)) {
            return Ok(Outcome::Dangling);
        }
        // Definitions first, which nothing refers to yet, so that the state is held for the samples alone.
        let mut added = 0;
        let mut imported = Vec::new();
        for (key, partition, parts) in partitions {
            let mut importer = Importer::new(&batch.dictionary);
            let mut inner = partition.write();
            let samples: Vec<_> = parts.iter().map(|part| inner.import(&mut importer, part)).collect();
            drop(inner);
            added += samples.iter().map(|(_, samples)| samples.len()).sum::<usize>();
            imported.push((key, partition, samples));
        }
        let mut state = self.state.write();
        if known_tenant.is_none() {
            state.tenants.insert(batch.tenant.clone(), tenant);
            state.unsealed_tenants.push((tenant, batch.tenant.clone()));
        }
        for (key, partition, samples) in imported {
            let mut inner = partition.write();
            samples.into_iter().for_each(|(series, samples)| inner.add(series, samples));
            drop(inner);
            state.existing.insert(key);
            state.loaded.insert(key, partition);
        }
        state.head_bytes += added * HEAD_SAMPLE_BYTES;
        if let Some(id) = batch.id {
            state.batch_ids.insert(id, now_ns);
        }
        Ok(Outcome::Applied)
    }

    /// Drops partitions, and seals everything else in the same write, so that nothing of them can come back.
    fn expire(&self, position: Position, now_ns: i64, before_ns: i64) -> Result<Outcome, EngineError> {
        let expired: Vec<_> = {
            let state = self.state.read();
            state.existing.iter().copied().filter(|key| key.end_ns() <= before_ns).collect()
        };
        {
            let mut state = self.state.write();
            for key in &expired {
                state.existing.remove(key);
                state.loaded.remove(key);
            }
            state.applied = Some(position);
            state.clock_ns = state.clock_ns.max(now_ns);
        }
        let mut batch = WriteBatch::default();
        for key in &expired {
            batch.delete_range(key.prefix(), key.end());
        }
        self.seal(batch)?;
        self.dropped.lock().extend(expired);
        Ok(Outcome::Applied)
    }

    /// Whether the head is over its budget.
    pub fn wants_flush(&self) -> bool {
        self.state.read().head_bytes >= self.config.head_bytes_max
    }

    /// Makes everything applied so far durable; returns up to where.
    ///
    /// # Errors
    /// [`EngineError`]; where the disk is full nothing is lost, and flushing may be tried again when there is space.
    pub fn flush(&self) -> Result<Option<Position>, EngineError> {
        self.seal(WriteBatch::default())?;
        let applied = self.applied();
        self.database.flush()?;
        self.flushed.lock().clone_from(&applied);
        // Only now: files go at once and for good, and what was dropped must not be half there after a crash.
        let mut dropped = std::mem::take(&mut *self.dropped.lock());
        // Late data may have made it anew: its files are not told apart from the old ones, which go with the next compaction.
        dropped.retain(|key| !self.state.read().existing.contains(key));
        for key in dropped {
            // Frees whole files; the rest goes with the next compaction.
            self.database.delete_file_in_range(key.prefix(), key.end())?;
        }
        Ok(applied)
    }

    /// Moves everything from memory into the database, in one write behind what `batch` holds.
    fn seal(&self, mut batch: WriteBatch) -> Result<(), EngineError> {
        {
            // Shared: selections go on while the head is encoded.
            let state = self.state.read();
            let Some(applied) = &state.applied else { return Ok(()) };
            for partition in state.loaded.values() {
                partition.read().seal(applied.index, &mut batch)?;
            }
            state.batch_ids.seal(state.clock_ns, &mut batch);
            for (id, tenant) in &state.unsealed_tenants {
                batch.put(key::tenant(*id), tenant.as_str());
            }
            if let Some(membership) = &state.membership {
                batch.put(key::MEMBERSHIP, membership);
            }
            batch.put(key::CLOCK, state.clock_ns.to_be_bytes());
            batch.put(key::APPLIED, database::position_value(applied));
        }
        // Exclusive: no selection may see samples both in the database and in the head.
        let mut state = self.state.write();
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.database.write_opt(batch, &options)?;
        state.loaded.values().for_each(|partition| partition.write().sealed());
        state.batch_ids.sealed();
        state.unsealed_tenants.clear();
        state.head_bytes = 0;
        state.sealings += 1;
        state.let_go(self.config.dictionary_bytes_max / 2);
        Ok(())
    }

    /// A partition that exists, read from the database if it is not in memory.
    fn partition(&self, key: PartitionKey) -> Result<Option<Arc<RwLock<Partition>>>, EngineError> {
        loop {
            let sealings = {
                let state = self.state.read();
                if let Some(partition) = state.loaded.get(&key) {
                    return Ok(Some(Arc::clone(partition)));
                }
                if !state.existing.contains(&key) {
                    return Ok(None);
                }
                state.sealings
            };
            // Read without the lock: what is not loaded has no head, so the database holds all of it, unless it was loaded,
            // added to, sealed and let go meanwhile.
            let read = Arc::new(RwLock::new(Partition::load(&self.database, key)?));
            let mut state = self.state.write();
            if state.sealings == sealings && state.existing.contains(&key) {
                return Ok(Some(Arc::clone(state.loaded.entry(key).or_insert(read))));
            }
        }
    }

    /// Sums of samples; consistent: all of an entry or nothing of it.
    ///
    /// # Errors
    /// [`SelectError`]: the question is wrong, its answer too large, or the state cannot be read.
    pub fn select(&self, selection: &Selection) -> Result<Answer, SelectError> {
        let matchers = selection.matchers.iter().map(ReadyMatcher::new).collect::<Result<Vec<_>, _>>()?;
        self.read(&selection.tenant, &matchers, selection.fold.window(), |gathered, snapshot| {
            let mut accumulator = Accumulator::new(selection, &matchers);
            for gathered in gathered.iter().rev() {
                accumulator.add(snapshot, gathered)?;
            }
            Ok(accumulator.finish())
        })
    }

    /// What `work` makes of what matches in each partition of the window, oldest first, and of the database as of the same
    /// moment.
    pub(crate) fn read<T>(
        &self,
        tenant: &TenantId,
        matchers: &[ReadyMatcher],
        window: Window,
        work: impl Fn(&[Gathered], &Snapshot<'_>) -> Result<T, SelectError>,
    ) -> Result<T, SelectError> {
        loop {
            let (gathered, snapshot) = self.gather(tenant, matchers, window)?;
            let result = work(&gathered, &snapshot);
            let state = self.state.read();
            if gathered.iter().all(|gathered| state.existing.contains(&gathered.key)) {
                return result;
            }
            // One was dropped meanwhile, and its files, which no snapshot keeps, may have gone before all was read.
        }
    }

    fn gather(
        &self,
        tenant: &TenantId,
        matchers: &[ReadyMatcher],
        window: Window,
    ) -> Result<(Vec<Gathered>, Snapshot<'_>), SelectError> {
        let overlaps = |key: &PartitionKey| key.start_ns() <= window.end_ns && window.start_ns < key.end_ns();
        let keys: Vec<_> = {
            let state = self.state.read();
            let tenant = state.tenants.get(tenant).copied();
            state.existing.iter().copied().filter(|key| Some(key.tenant) == tenant && overlaps(key)).collect()
        };
        // Loading may read the disk, so it is done before the lock is taken for the moment of the answer.
        let mut partitions = Vec::new();
        for key in keys {
            partitions.extend(self.partition(key)?);
        }
        let state = self.state.read();
        let gathered = partitions.iter().map(|partition| gather(partition, matchers, window)).collect();
        let snapshot = self.database.snapshot();
        drop(state);
        Ok((gathered, snapshot))
    }

    /// The end of the oldest partition, nanoseconds since 1970: expiring before it frees space.
    pub fn oldest_end_ns(&self) -> Option<i64> {
        self.state.read().existing.first().map(|key| key.end_ns())
    }

    /// About how many bytes dictionaries and series take in memory.
    pub fn dictionary_bytes(&self) -> usize {
        self.state.read().loaded.values().map(|partition| partition.read().dictionary_bytes()).sum()
    }
}
