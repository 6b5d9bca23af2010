//! Installation of a received snapshot: its files become the next incarnation of the shard's state.
//!
//! 1. The state's position is compared with the manifest, without changing a file.
//! 2. The files move to the folder of the next incarnation, and its engine is opened.
//! 3. The pointer changes. Before that, a restart opens the old state; after it, the new one.

use std::path::Path;

use storage_engine::stored_position;

use crate::directory::shard::remove;
use crate::error::ReplicaError;
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::receiver::Staged;

impl Staged {
    /// Installs the snapshot. `open` opens the engine in the folder of the new state; the old engine may still be open.
    /// After this call, the new one serves, and the old one must be closed and its files deleted
    /// ([`crate::directory::shard::ShardDirectory::remove_replaced`]). Blocks.
    ///
    /// # Errors
    /// [`SnapshotError`]: the old state is still the current one. The snapshot must be received again.
    pub(crate) fn install<T>(self, open: impl FnOnce(&Path) -> Result<T, ReplicaError>) -> Result<T, SnapshotError> {
        let Self { manifest, staging } = &self;
        let files = staging.files();
        let found = match stored_position(&files) {
            Ok(found) => found,
            Err(error) => {
                staging.discard()?;
                return Err(error.into());
            }
        };
        if found != manifest.state() {
            staging.discard()?;
            let found = found.position.map_or(0, |position| position.index);
            return Err(SnapshotError::Position { found, expected: manifest.position.index });
        }
        let incarnation = staging.directory.adopt(&files)?;
        let opened = match open(incarnation.path()) {
            Ok(opened) => opened,
            Err(error) => {
                remove(incarnation.path()).map_err(SnapshotError::at(incarnation.path()))?;
                return Err(error.into());
            }
        };
        staging.directory.switch_to(&incarnation)?;
        // The snapshot is installed, whether or not the rest of the staging folder can be deleted.
        if let Err(error) = staging.discard() {
            tracing::error!(%error, "the staging folder cannot be deleted");
        }
        Ok(opened)
    }
}
