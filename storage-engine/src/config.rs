//! Configuration of an engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::EngineError;
use crate::memory::budgets::Budgets;

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory that only this shard uses; created if it does not exist.
    pub directory: PathBuf,
    /// Budgets of memory, which may be shared with other engines.
    pub budgets: Budgets,
    /// Barrier before each write of the state.
    pub barrier: LogBarrier,
}

/// Error for which a log cannot sync an entry.
pub type LogError = Box<dyn std::error::Error + Send + Sync>;

/// Barrier that keeps the state on disk from being ahead of this replica's own log. A majority of other members may
/// have synced an entry that this replica has applied, but has not synced yet. If such an entry were in the state after
/// a power cut, the log would lack entries that the state has.
#[derive(Clone, Default)]
pub struct LogBarrier(Option<Arc<WaitForLog>>);

/// Function of a [`LogBarrier`].
type WaitForLog = dyn Fn(u64) -> Result<(), LogError> + Send + Sync;

impl LogBarrier {
    /// Creates a barrier from a function that blocks until the log has synced all entries up to an index. The function
    /// returns an error if that cannot happen any more. The default barrier never blocks: it is for logs whose entries
    /// are synced before they are applied.
    pub fn new(wait: impl Fn(u64) -> Result<(), LogError> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(wait)))
    }

    /// Blocks until the log has synced all entries up to an index.
    pub(crate) fn wait(&self, index: u64) -> Result<(), EngineError> {
        let Some(wait) = &self.0 else { return Ok(()) };
        wait(index).map_err(|source| EngineError::Unsynced { index, source })
    }
}

impl fmt::Debug for LogBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogBarrier").field(&self.0.is_some()).finish()
    }
}
