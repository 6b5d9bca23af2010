//! The adapter from openraft's state machine to a shard's engine.
//!
//! A "snapshot" here is only the position of the last flush, which lets openraft purge the log. This version has no
//! snapshots that could be sent to a replica.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};
use openraft::{EntryPayload, OptionalSend};
use storage_engine::{Flushed, Outcome, Position};

use crate::consensus::record;
use crate::consensus::types::{LogEntry, LogId, StoredMembership, Types};
use crate::error::{RecordError, ReplicaError};
use crate::failure::Failure;
use crate::shard::Shard;

/// Largest number of entries that one blocking task applies.
const APPLY_ENTRIES_MAX: usize = 256;

/// A shard's engine as a state machine. Clones share the shard.
#[derive(Clone, Debug)]
pub(super) struct StateMachine {
    shard: Arc<Shard>,
    failure: Failure,
}

impl StateMachine {
    /// Returns the state machine of a shard.
    ///
    /// # Errors
    /// [`ReplicaError::Record`]: the position or the membership in the state cannot be read.
    pub(super) fn new(shard: Arc<Shard>, failure: Failure) -> Result<Self, ReplicaError> {
        let machine = Self { shard, failure };
        decode(machine.shard.applied())?;
        decode(machine.shard.flushed())?;
        Ok(machine)
    }

    /// Returns the number of members that have a vote, by the membership at the last applied entry.
    pub(super) fn voters(&self) -> Result<usize, RecordError> {
        Ok(decode(self.shard.applied())?.membership.voter_ids().count())
    }

    /// Applies the next entry. Blocks.
    fn apply_entry(&self, entry: LogEntry) -> Result<Outcome, ReplicaError> {
        let log_id = record::encode_log_id(&entry.log_id).into();
        let position = Position { index: entry.log_id.index, log_id };
        match entry.payload {
            EntryPayload::Blank => self.shard.skip(position, None),
            EntryPayload::Membership(members) => {
                let stored = StoredMembership::new(Some(entry.log_id), members);
                self.shard.skip(position, Some(record::encode_membership(&stored).into()))
            }
            EntryPayload::Normal(payload) => {
                let entry_bytes = payload.bytes().len();
                self.shard.apply(position, &*payload.entry()?, entry_bytes)
            }
        }
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let Decoded { log_id, membership } =
            decode(self.shard.applied()).map_err(|error| self.failure.io_error(error))?;
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
            let applied = tokio::task::spawn_blocking(apply).await.map_err(io::Error::other)?;
            applied.map_err(|error: ReplicaError| self.failure.io_error(error))?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this version installs no snapshots"))
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        Ok(None)
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        let Decoded { log_id, membership } =
            decode(self.shard.flushed()).map_err(|error| self.failure.io_error(error))?;
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
