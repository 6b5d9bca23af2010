//! One shard's engine, as openraft wants it.
//!
//! A "snapshot" here is only the statement up to where the engine has flushed: it lets openraft cut the log. One that can be
//! sent to a member that is behind comes with the cluster.

use std::io;
use std::sync::Arc;

use futures::{Stream, TryStreamExt as _};
use openraft::OptionalSend;
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine, Snapshot, SnapshotMeta};

use crate::consensus::types::{LogId, StoredMembership, Types};
use crate::shard::Shard;

/// Entries that one blocking task applies.
const APPLY_ENTRIES_MAX: usize = 256;

/// The adapter; all it does is done by [`Shard`].
#[derive(Clone, Debug)]
pub(crate) struct StateMachine {
    shard: Arc<Shard>,
}

impl StateMachine {
    pub(crate) fn new(shard: Arc<Shard>) -> Self {
        Self { shard }
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        self.shard.applied().map_err(|error| self.shard.failure().io_error(error))
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
            let shard = Arc::clone(&self.shard);
            let apply = move || {
                for (entry, responder) in group {
                    let outcome = shard.apply(entry)?;
                    if let Some(responder) = responder {
                        responder.send(outcome);
                    }
                }
                Ok(())
            };
            let applied = tokio::task::spawn_blocking(apply).await.map_err(io::Error::other)?;
            applied.map_err(|error: crate::ReplicaError| self.shard.failure().io_error(error))?;
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
        let (last_log_id, last_membership) = self.shard.flushed();
        Ok(Snapshot { meta: SnapshotMeta { last_log_id, last_membership }, snapshot: () })
    }
}
