//! Store of a shard: its database, and its state in memory. Queries, entries and upkeep share it.

pub(crate) mod state_database;
pub(crate) mod write_lock;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use proto::TenantId;

use crate::Config;
use crate::database::key::PartitionKey;
use crate::engine::state::partitions::{SharedDictionary, SharedPartition};
use crate::engine::state::{Found, State};
use crate::engine::store::state_database::StateDatabase;
use crate::error::EngineError;
use crate::integrity::quarantine::found_damage::quarantine_partition;
use crate::memory::budgets::Shares;
use crate::memory::partition::stored_partition::StoredPartition;

/// Database and state of a shard.
///
/// Locks are taken in this order:
/// 1. [`WriteLock`](write_lock::WriteLock), which is not part of the store. A function that has only a store cannot
///    take it, and a function that writes to the database takes its guard, [`Writing`](write_lock::Writing).
/// 2. `loading`, which only [`Store::partition`] takes, or `outlining`, which only [`Store::outline`] takes.
/// 3. The state.
/// 4. A tenant's dictionary, then partitions in the order of their keys. The state hands out both.
/// 5. The list of engines that share a budget.
pub(crate) struct Store {
    config: Config,
    database: StateDatabase,
    state: RwLock<State>,
    /// This engine's shares of the budgets. They are read without the state's lock.
    shares: Shares,
    /// Lock that is held while a partition is read into memory, so that concurrent readers read it once.
    loading: Mutex<()>,
    /// The same for outlines. It is a lock of its own, because `apply` loads partitions.
    outlining: Mutex<()>,
}

impl Store {
    /// Opens or creates the database, and reads the state from it. No partition is in memory yet.
    pub(crate) fn open(config: Config) -> Result<Self, EngineError> {
        let database = StateDatabase::open(&config)?;
        let shares = config.budgets.join();
        let state = State::read(&database.snapshot(), &shares)?;
        Ok(Self {
            config,
            database,
            state: RwLock::new(state),
            shares,
            loading: Mutex::new(()),
            outlining: Mutex::new(()),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn database(&self) -> &StateDatabase {
        &self.database
    }

    /// Locks the state for reading.
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Locks the state for a change.
    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    /// Returns the shares of the budgets, without taking the state's lock.
    pub(crate) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Returns the size of this engine's dictionaries, in bytes, above which partitions that are not in use are
    /// evicted. A quarter of the budget is for partitions in use. If queries need more partitions than fit, each query
    /// loads them again, which takes seconds if there are many stacks.
    pub(crate) fn idle_dictionary_bytes_max(&self) -> usize {
        let dictionaries = &self.shares.dictionaries;
        dictionaries.kept_bytes(dictionaries.bytes_max() / 4 * 3)
    }

    /// Evicts partitions that are not in use, if the dictionaries of all engines come close to their budget.
    pub(crate) fn evict_idle(&self) {
        let bytes_max = self.idle_dictionary_bytes_max();
        if self.shares.dictionaries.total().bytes() > bytes_max {
            self.state_mut().partitions.evict(bytes_max);
        }
    }

    /// Returns a partition of minutes, hours or days, if it exists. Reads it from the database if it is not in memory.
    pub(crate) fn partition(&self, key: PartitionKey) -> Result<Option<SharedPartition>, EngineError> {
        if let Some(partition) = self.state.read().partitions.loaded(&key) {
            return Ok(Some(Arc::clone(partition)));
        }
        let _loading = self.loading.lock();
        loop {
            let mut state = self.state.write();
            match state.find(key)? {
                Found::Loaded(partition) => return Ok(Some(partition)),
                Found::Missing => return Ok(None),
                Found::Stored => {}
            }
            let shared = state.partitions.dictionary(key.tenant);
            let drops = state.partitions.drops();
            let now_ns = state.clock.entries_ns();
            drop(state);
            // The partition is read without the locks that `apply` takes. A partition that is not loaded has no head,
            // so the database holds all of it. No other thread loads it meanwhile, but it may be dropped, and a new one
            // created in its place.
            let read = StoredPartition::read(&self.database.snapshot(), key, now_ns).and_then(|mut stored| {
                let damaged_head = std::mem::take(&mut stored.damaged_head);
                Ok((stored.into_partition(&mut shared.write())?, damaged_head))
            });
            let (partition, damaged_head) = match read {
                Err(error) if error.is_damage() && self.state.read().partitions.drops() == drops => {
                    return Err(quarantine_partition(self, key, &error));
                }
                // This is no damage: the partition was dropped, with its files, while it was read.
                Err(error) if error.is_damage() => continue,
                read => read?,
            };
            let mut state = self.state.write();
            let is_current = shared.read().generation() == partition.generation;
            if state.partitions.drops() == drops && is_current {
                damaged_head.iter().for_each(|(area, what)| state.quarantine_in_all_tiers(key, *area, what));
                let partition = state.partitions.keep(partition);
                state.partitions.evict(self.idle_dictionary_bytes_max());
                return Ok(Some(partition));
            }
        }
    }

    /// Returns a partition of minutes, hours or days, if it exists, for a caller that needs no dictionary. If the
    /// partition is not in memory, it is read without its dictionary, which is most of its bytes.
    pub(crate) fn outline(&self, key: PartitionKey) -> Result<Option<SharedPartition>, EngineError> {
        let mut outlining = None;
        let changes = loop {
            let state = self.state.read();
            match state.find_outline(key)? {
                Found::Loaded(partition) => return Ok(Some(partition)),
                Found::Missing => return Ok(None),
                Found::Stored if outlining.is_some() => break state.partitions.changes(),
                Found::Stored => {}
            }
            drop(state);
            outlining = Some(self.outlining.lock());
        };
        match StoredPartition::outline(&self.database.snapshot(), key) {
            Ok(outline) => {
                let bytes_max = self.idle_dictionary_bytes_max();
                Ok(Some(self.state.write().partitions.keep_outline(outline, changes, bytes_max)))
            }
            // If the partition was dropped meanwhile, this is no damage, because a snapshot does not keep its files.
            Err(error) if error.is_damage() && self.state.read().partitions.exists(&key) => {
                drop(outlining);
                Err(quarantine_partition(self, key, &error))
            }
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a tenant's dictionary.
    pub(crate) fn tenant_dictionary(&self, tenant: u32) -> SharedDictionary {
        if let Some(shared) = self.state.read().partitions.loaded_dictionary(tenant) {
            return Arc::clone(shared);
        }
        self.state.write().partitions.dictionary(tenant)
    }

    /// Returns the name of the tenant with a number.
    pub(crate) fn tenant_name(&self, number: u32) -> TenantId {
        self.state.read().tenants.name(number).cloned().unwrap_or_else(TenantId::default_tenant)
    }
}
