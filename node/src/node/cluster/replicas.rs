//! The replicas that this node holds follow the state of the meta group.
//!
//! Invariant: a replica whose log and votes were deleted never takes part in a group again with its old identity.
//! Therefore, the log, the votes and the identity are deleted at once; the files of the state follow. An older state of
//! the meta group than the one that asked for this changes nothing. No replica is made for a member that is to leave:
//! its data is lost, and its identity may have voted.

use std::sync::Arc;

use proto::meta::State;
use tokio::task::spawn_blocking;

use crate::consensus::{DirectoryId, LogDatabase, ReplicaRecord};
use crate::error::{NodeError, ReplicaError};
use crate::node::shared::Shared;

/// Opens the replicas of earlier starts, without waiting for a leader of the meta group. Deletes the files of replicas
/// that this node has given up. After damage to the log, nothing is opened before the cluster has accepted the new log.
pub(in crate::node) async fn open_known(shared: &Arc<Shared>) -> Result<(), NodeError> {
    let log = shared.raft_log.opened().await?;
    if shared.directory.has_damaged_raft() {
        return Ok(());
    }
    let failed = |source| NodeError::Directory { directory: shared.directory.path().to_owned(), source };
    for shard in shared.directory.shards().map_err(failed)? {
        match log.replica(shard).identity {
            Some(identity) => shared.host(shard, identity).await.map_err(failed)?,
            None => {
                let directory = Arc::clone(&shared.directory);
                let removed = spawn_blocking(move || directory.remove_shard(shard)).await;
                removed.map_err(std::io::Error::other).and_then(|removed| removed).map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// Makes the node hold the replicas of the state, and no others. Returns false if some of this has to be done later.
pub(super) async fn follow(shared: &Arc<Shared>, state: &State) -> bool {
    if !shared.cluster.is_known(state) {
        // The state may be older than this data directory, or this is an old directory of the node.
        return true;
    }
    let Some(log) = shared.raft_log.current() else { return false };
    let own = shared.cluster.own_replicas(state);
    let mut is_done = true;
    for (&shard, members) in &state.shards {
        let wanted = own.get(&shard).copied();
        let may_make = members.is_wanted(shared.cluster.node_id);
        if let Err(error) = follow_shard(shared, &log, shard, wanted, may_make, state.revision).await {
            tracing::error!(shard, %error, "the replica of a shard cannot be made or deleted; will retry");
            is_done = false;
        }
    }
    is_done
}

async fn follow_shard(
    shared: &Arc<Shared>,
    log: &Arc<LogDatabase>,
    shard: u32,
    wanted: Option<DirectoryId>,
    may_make: bool,
    revision: u64,
) -> Result<(), Arc<ReplicaError>> {
    let held = log.replica(shard);
    let failed =
        |source| ReplicaError::Directory { directory: shared.directory.shard(shard).path().to_owned(), source };
    let is_hosted = shared.shard(shard).is_some();
    match step(held, wanted, is_hosted, may_make, revision) {
        Step::Nothing => return Ok(()),
        Step::Host(identity) => return shared.host(shard, identity).await.map_err(|error| Arc::new(failed(error))),
        Step::Replace => {}
    }
    if is_hosted {
        tracing::info!(shard, revision, "the node gives up its replica of the shard");
        shared.unhost(shard).await;
        log.renew_replica(shard, ReplicaRecord { identity: None, revision }).await?;
    }
    let directory = Arc::clone(&shared.directory);
    let removed = spawn_blocking(move || directory.remove_shard(shard)).await.map_err(std::io::Error::other);
    removed.and_then(|removed| removed).map_err(|error| Arc::new(failed(error)))?;
    let Some(identity) = wanted else { return Ok(()) };
    tracing::info!(shard, revision, "the node gets a replica of the shard");
    log.renew_replica(shard, ReplicaRecord { identity: Some(identity), revision }).await?;
    shared.host(shard, identity).await.map_err(|error| Arc::new(failed(error)))
}

/// The duty of a node towards its replica of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Run the replica that the node has.
    Host(DirectoryId),
    /// Delete the replica, and make the wanted one.
    Replace,
}

/// Returns the step towards the wanted replica. `held` is the last decision, and `may_make` is true if the node is a
/// wanted member in the state with this revision.
pub(super) fn step(
    held: ReplicaRecord,
    wanted: Option<DirectoryId>,
    is_hosted: bool,
    may_make: bool,
    revision: u64,
) -> Step {
    if held.identity == wanted {
        return wanted.map_or(Step::Nothing, Step::Host);
    }
    // A node that stopped after it had given up its replica for this very state makes the new one.
    let is_older = revision < held.revision || (revision == held.revision && held.identity.is_some());
    let is_due = !is_older && (wanted.is_some() || is_hosted) && (wanted.is_none() || may_make);
    if is_due { Step::Replace } else { Step::Nothing }
}
