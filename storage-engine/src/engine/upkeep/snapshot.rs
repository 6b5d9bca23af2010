//! Snapshots: writes the state as of one position to a separate directory. Files are not copied if the directory is on
//! the same file system.

use std::path::Path;

use rocksdb::WriteBatch;

use crate::Flushed;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

/// Writes the state as of the last applied entry to `directory`, which must not exist yet, and returns that position.
/// [`Engine::open`](crate::Engine::open) can open `directory`. Files are hard links where possible.
pub(crate) fn snapshot(writing: &Writing<'_>, directory: &Path) -> Result<Flushed, EngineError> {
    write_all(writing, WriteBatch::default(), Sealing::Due)?;
    let flushed = writing.make_durable()?;
    writing.database().copy_to(directory)?;
    Ok(flushed)
}
