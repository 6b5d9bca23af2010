//! The state of a group: what a group's entries are applied to.
//!
//! A data shard and the meta group each have their own state. Consensus only knows positions in the log, encoded
//! memberships, and commands as bytes.

use std::fmt::Debug;

use bytes::Bytes;
use storage_engine::{Flushed, Position};

use crate::consensus::payload::Payload;
use crate::error::ReplicaError;

/// Result of applying an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The entry holds no command: consensus made it for itself.
    None,
    /// Result of a data shard's command.
    Shard(storage_engine::Outcome),
    /// Encoded result of a command of the meta group. Only the meta group reads it.
    Meta(Bytes),
}

/// The state to which a group's entries are applied, in the order of the log. Every method may block.
///
/// Consensus calls [`GroupState::apply`] and [`GroupState::skip`] from one thread at a time, with consecutive indexes.
/// The other methods are called at any time.
pub(crate) trait GroupState: Debug + Send + Sync + 'static {
    /// Returns the position of the last applied entry, with the membership at this position.
    fn applied(&self) -> Flushed;

    /// Returns the position of the last entry that is on disk in the state, with the membership at this position.
    fn flushed(&self) -> Flushed;

    /// Returns the position up to which the log may be purged, with the membership at this position. It is at most the
    /// flushed position, and smaller while entries are kept for members that lag.
    fn purgeable(&self) -> Flushed;

    /// Applies a command at the next position. An error means that this member may apply nothing any more.
    fn apply(&self, position: Position, command: Payload) -> Result<Outcome, ReplicaError>;

    /// Moves to the next position, which holds no command. `membership` is the new membership, if the entry sets one.
    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError>;
}
