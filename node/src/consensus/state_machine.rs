//! The adapter from openraft's state machine to the state of a group.
//!
//! A "snapshot" here is only the position up to which the log may be purged. With this position, openraft purges the
//! log, and finds that a follower needs the state itself. The follower then fetches the state from this node and
//! installs the state while its own member is closed, so openraft never installs anything.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{EntryPayload, OptionalSend};
use storage_engine::{Flushed, Position};

use crate::consensus::record;
use crate::consensus::state::{GroupState, Outcome};
use crate::consensus::types::{LogEntry, LogId, StoredMembership, Types};
use crate::error::{RecordError, ReplicaError};
use crate::failure::Failure;
use crate::host::simulated::blocking;

/// Largest number of entries that one blocking task applies.
const APPLY_ENTRIES_MAX: usize = 256;

/// The state of a group as a state machine. Clones share the state.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    state: Arc<dyn GroupState>,
    failure: Failure,
}

impl StateMachine {
    /// Returns the state machine of a group.
    ///
    /// # Errors
    /// [`ReplicaError::Record`]: the position or the membership in the state cannot be read.
    pub(super) fn new(state: Arc<dyn GroupState>, failure: Failure) -> Result<Self, ReplicaError> {
        let machine = Self { state, failure };
        decode(machine.state.applied())?;
        decode(machine.state.flushed())?;
        Ok(machine)
    }

    /// Returns the number of members that have a vote, by the membership at the last applied entry.
    pub(super) fn voters(&self) -> Result<BTreeSet<u64>, RecordError> {
        Ok(decode(self.state.applied())?.membership.voter_ids().collect())
    }

    /// Returns the index of the last applied entry; 0 if there is none.
    pub(super) fn applied_index(&self) -> u64 {
        self.state.applied().position.map_or(0, |position| position.index)
    }

    /// Applies the next entry. Blocks.
    pub(super) fn apply_entry(&self, entry: LogEntry) -> Result<Outcome, ReplicaError> {
        let log_id = record::encode_log_id(&entry.log_id).into();
        let position = Position { index: entry.log_id.index, log_id };
        match entry.payload {
            EntryPayload::Blank => self.state.skip(position, None).map(|()| Outcome::None),
            EntryPayload::Membership(members) => {
                let stored = StoredMembership::new(Some(entry.log_id), members);
                let membership = record::encode_membership(&stored).into();
                self.state.skip(position, Some(membership)).map(|()| Outcome::None)
            }
            EntryPayload::Normal(command) => self.state.apply(position, command),
        }
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let Decoded { log_id, membership } =
            decode(self.state.applied()).map_err(|error| self.failure.io_error(error))?;
        Ok((log_id, membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let mut more = true;
        while more {
            let mut group = Vec::new();
            while group.len() < APPLY_ENTRIES_MAX && more {
                match entries.try_next().await? {
                    Some(entry) => group.push(entry),
                    None => more = false,
                }
            }
            let machine = self.clone();
            let apply = move || {
                for (entry, responder) in group {
                    let outcome = machine.apply_entry(entry)?;
                    if let Some(responder) = responder {
                        responder.send(outcome);
                    }
                }
                Ok(())
            };
            let applied = blocking(apply).await?;
            applied.map_err(|error: ReplicaError| self.failure.io_error(error))?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a snapshot is installed while the member is closed"))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        let snapshot = self.build_snapshot().await?;
        Ok(snapshot.meta.last_log_id.is_some().then_some(snapshot))
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        let Decoded { log_id, membership } =
            decode(self.state.purgeable()).map_err(|error| self.failure.io_error(error))?;
        Ok(Snapshot { meta: SnapshotMeta { last_log_id: log_id, last_membership: membership }, snapshot: () })
    }
}

/// A decoded position in the log, and the decoded membership at this position.
struct Decoded {
    log_id: Option<LogId>,
    membership: StoredMembership,
}

fn decode(Flushed { position, membership }: Flushed) -> Result<Decoded, RecordError> {
    let log_id = position.map(|position| record::decode_log_id(&position.log_id)).transpose()?;
    let stored = |bytes: Bytes| record::decode_membership(&bytes);
    Ok(Decoded { log_id, membership: membership.map(stored).transpose()?.unwrap_or_default() })
}
