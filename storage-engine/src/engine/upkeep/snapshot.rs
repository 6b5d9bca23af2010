//! Snapshots: the state as of one position, in a directory of its own, without a copy where it is on the same file system.

use std::path::Path;

use rocksdb::WriteBatch;
use rocksdb::checkpoint::Checkpoint;

use crate::Flushed;
use crate::engine::Engine;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

impl Engine {
    /// Writes everything applied so far to a directory that does not exist yet: opened with [`Engine::open`], it is this engine
    /// as of the position that is returned. Files are shared by hard links where that is possible.
    ///
    /// # Errors
    /// [`EngineError`]; the directory may be there in part then.
    pub fn snapshot(&self, directory: &Path) -> Result<Flushed, EngineError> {
        let _writing = self.writing.lock();
        self.write_all(WriteBatch::default(), Sealing::Due)?;
        let flushed = self.make_durable()?;
        Checkpoint::new(&self.database)?.create_checkpoint(directory)?;
        Ok(flushed)
    }
}
