//! Checkpoints: writes the state as of one position to a separate directory. Table files are hard links if the
//! directory is on the same file system, and table files never change.

use std::path::Path;

use rocksdb::WriteBatch;

use crate::Flushed;
use crate::database;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::write_all;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

/// Writes the state as of the last applied entry to `directory`, which must not exist yet, and returns that position.
/// [`Engine::open`](crate::Engine::open) can open `directory`.
pub(crate) fn checkpoint(writing: &Writing<'_>, directory: &Path) -> Result<Flushed, EngineError> {
    // A repair works on the list of damaged files, which the checkpoint would not have.
    if writing.database().has_damaged_files() {
        return Err(EngineError::Unrepaired);
    }
    write_all(writing, WriteBatch::default(), Sealing::Due)?;
    let flushed = writing.make_durable()?;
    writing.database().copy_to(directory)?;
    Ok(flushed)
}

/// Returns the position of the state in a directory, with the membership at this position. The state must not be open.
/// No file changes.
///
/// # Errors
/// [`EngineError`]: there is no state, or it is corrupt or of another version.
pub fn stored_position(directory: &Path) -> Result<Flushed, EngineError> {
    let database = database::open_for_reading(directory)?;
    let snapshot = database.snapshot();
    Ok(Flushed { position: database::read_position(&snapshot)?, membership: database::read_membership(&snapshot)? })
}
