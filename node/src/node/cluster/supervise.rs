//! Supervision of the meta group's member: opening, the first creation of the cluster, and opening again after a full
//! disk.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::{NodeError, ReplicaError};
use crate::meta::MetaReplica;
use crate::node::cluster::{bootstrap, duties, members};
use crate::node::shared::Shared;

/// Pause before the member is opened again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the member of the meta group and runs it, until the node stops or the member has failed for good.
pub(in crate::node) async fn supervise(shared: Arc<Shared>) {
    let mut pause = Duration::ZERO;
    loop {
        let opened = async {
            sleep(pause).await;
            // Only after a failure: a node that starts on a full disk still serves queries.
            while !pause.is_zero() && shared.is_full() {
                sleep(REOPEN_INTERVAL).await;
            }
            open(&shared).await
        };
        let replica = match shared.closing.run_until_cancelled(opened).await {
            None => return,
            Some(Ok(replica)) => Arc::new(replica),
            Some(Err(error)) => {
                if let Some(error) = end_after(&shared, error) {
                    shared.cluster.failure.send_replace(Some(error));
                    return;
                }
                pause = REOPEN_INTERVAL;
                continue;
            }
        };
        shared.cluster.replica.send_replace(Some(Arc::clone(&replica)));
        let error = tokio::select! {
            biased;
            error = replica.failure().wait() => Some(error),
            () = shared.closing.cancelled() => None,
            error = run(&shared, &replica) => Some(error),
        };
        shared.cluster.replica.send_replace(None);
        replica.close().await;
        match error {
            None => return,
            Some(error) if error.is_final() => {
                shared.cluster.failure.send_replace(Some(error));
                return;
            }
            Some(_disk_is_full) => pause = REOPEN_INTERVAL,
        }
    }
}

async fn open(shared: &Shared) -> Result<MetaReplica, NodeError> {
    let log = shared.raft_log.opened().await?;
    let clock = Arc::clone(&shared.clock);
    MetaReplica::open(shared.config.node_id, log, &shared.peers, clock, shared.cluster.state.clone()).await
}

/// Creates or joins the cluster if this is the first start, and then does what the state of the meta group asks.
/// Returns only an error.
async fn run(shared: &Arc<Shared>, replica: &Arc<MetaReplica>) -> Arc<ReplicaError> {
    let began = if shared.directory.has_damaged_raft() {
        bootstrap::rejoin_cluster(shared, replica).await
    } else if shared.config.join.is_empty() {
        bootstrap::create_cluster(shared, replica).await
    } else {
        bootstrap::join_cluster(shared, replica).await
    };
    if let Err(error) = began {
        return replica.failure().report(error);
    }
    replica.recovered().await;
    tokio::select! {
        error = duties::run(shared, replica) => replica.failure().report(error),
        never = members::run(shared, replica) => match never {},
    }
}

/// Returns the error after which the member is not opened again; `None` if the disk is full.
fn end_after(shared: &Shared, error: NodeError) -> Option<Arc<ReplicaError>> {
    let error = match error {
        NodeError::Replica(error) => error,
        other => ReplicaError::Consensus(other.into()),
    };
    match shared.raft_log.failure().get() {
        Some(error) if error.is_final() => Some(error),
        None if !error.is_disk_full() => Some(Arc::new(error)),
        _ => {
            tracing::warn!(%error, "the member of the meta group does not open yet");
            None
        }
    }
}
