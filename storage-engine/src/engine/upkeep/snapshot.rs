//! Snapshots: writes the state of one position to a separate directory, without a copy if it is on the same file
//! system.

use std::path::Path;

use rocksdb::WriteBatch;

use crate::Flushed;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

/// Writes everything applied so far to `directory`, which must not exist yet. [`Engine::open`](crate::Engine::open)
/// opens `directory` with the state of the returned position. Files are hard links where possible.
pub(crate) fn snapshot(writing: &Writing<'_>, directory: &Path) -> Result<Flushed, EngineError> {
    write_all(writing, WriteBatch::default(), Sealing::Due)?;
    let flushed = writing.make_durable()?;
    writing.database().copy_to(directory)?;
    Ok(flushed)
}
