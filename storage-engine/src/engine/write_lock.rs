//! Lock for sequences of writes to the database.

use parking_lot::{Mutex, MutexGuard};

/// Admits one sequence of writes at a time. It is taken before every other lock of the engine.
#[derive(Debug, Default)]
pub(crate) struct WriteLock(Mutex<()>);

/// Proof that the caller may write. Functions that are part of a sequence of writes require it.
pub(crate) struct Writing<'a> {
    _guard: MutexGuard<'a, ()>,
}

impl WriteLock {
    /// Waits until no other thread writes.
    pub(crate) fn lock(&self) -> Writing<'_> {
        Writing { _guard: self.0.lock() }
    }
}
