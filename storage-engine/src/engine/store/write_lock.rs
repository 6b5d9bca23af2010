//! Lock for sequences of writes to the database.

use std::ops::Deref;

use parking_lot::{Mutex, MutexGuard};
use rocksdb::WriteBatch;

use crate::database;
use crate::engine::store::Store;
use crate::error::EngineError;
use crate::{Flushed, Position};

/// Lock that admits one sequence of writes at a time, and records up to which position the writes are durable.
#[derive(Debug)]
pub(crate) struct WriteLock {
    lock: Mutex<()>,
    durable: Mutex<Option<Position>>,
}

/// Guard of the write lock, with the store that only its holder writes to. Functions that are part of a sequence of
/// writes require it.
pub(crate) struct Writing<'a> {
    store: &'a Store,
    durable: &'a Mutex<Option<Position>>,
    _guard: MutexGuard<'a, ()>,
}

impl WriteLock {
    /// Creates the lock of a store whose database is durable up to a position.
    pub(crate) fn new(durable: Option<Position>) -> Self {
        Self { lock: Mutex::new(()), durable: Mutex::new(durable) }
    }

    /// Takes the lock: waits until no other thread writes to the store.
    pub(crate) fn lock<'a>(&'a self, store: &'a Store) -> Writing<'a> {
        Writing { store, durable: &self.durable, _guard: self.lock.lock() }
    }

    /// Returns the last position up to which the database is durable.
    pub(crate) fn durable(&self) -> Option<Position> {
        self.durable.lock().clone()
    }
}

impl Deref for Writing<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store
    }
}

impl Writing<'_> {
    /// Writes a batch to the database. The batch is durable after [`Writing::make_durable`].
    pub(crate) fn write(&self, batch: WriteBatch) -> Result<(), EngineError> {
        self.store.database.write(batch)
    }

    /// Flushes the database. Returns the position up to which the state is durable afterwards.
    pub(crate) fn make_durable(&self) -> Result<Flushed, EngineError> {
        // The position and the membership were written in the same batch.
        let snapshot = self.store.database.snapshot();
        let position = database::read_position(&snapshot)?;
        let written = Flushed { position, membership: database::read_membership(&snapshot)? };
        drop(snapshot);
        self.store.database.flush()?;
        self.durable.lock().clone_from(&written.position);
        Ok(written)
    }
}
