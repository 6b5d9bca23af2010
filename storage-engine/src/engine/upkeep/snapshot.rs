//! Snapshots: the state of one position in a separate directory, without a copy if that is on the same file system.

use std::path::Path;

use rocksdb::WriteBatch;
use rocksdb::checkpoint::Checkpoint;

use crate::Flushed;
use crate::engine::Engine;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

impl Engine {
    /// Writes everything applied so far to a directory that does not exist yet. [`Engine::open`] opens it with the
    /// state of the returned position. Files are hard links where possible.
    ///
    /// # Errors
    /// [`EngineError`]: the directory may be incomplete.
    pub fn snapshot(&self, directory: &Path) -> Result<Flushed, EngineError> {
        let writing = self.writing.lock();
        self.write_all(&writing, WriteBatch::default(), Sealing::Due)?;
        let flushed = self.make_durable(&writing)?;
        Checkpoint::new(&self.database)?.create_checkpoint(directory)?;
        Ok(flushed)
    }
}
