//! Snapshots of other members, for a replica that lags behind their logs.
//!
//! The files are received while the old replica runs: it lags, but serves nothing that is wrong. Then the replica is
//! closed, and opened again with the received state.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::consensus::Install;
use crate::node::hosted::{Hosted, State};
use crate::node::replica::Replica;
use crate::node::shared::Shared;
use crate::node::supervise::{QueriesHeld, close_and_install};
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::receiver::{Staged, discard_overtaken, receive};

/// Longest time to connect to the sender.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings, and the longest time until their response. They show that the sender is alive while the
/// files of its snapshot are hashed.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a snapshot could not be received or installed, because the sender repeats its request at once.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause before the replica is closed, and interval of checks for free space.
pub(super) const INSTALL_INTERVAL: Duration = Duration::from_millis(20);

/// A snapshot that is ready to be installed, and the request for it.
pub(super) struct Received {
    staged: Staged,
    request: Install,
}

/// Replies to requests to install a snapshot, until one of them needs one and it is received. If the future is dropped,
/// the received files stay for the next request.
pub(super) async fn receive_next(
    shared: &Shared,
    replica: &Replica,
    installs: &mut mpsc::Receiver<Install>,
) -> Received {
    loop {
        let Some(request) = installs.recv().await else {
            // The node holds the sender, so its requests never end.
            std::future::pending::<()>().await;
            continue;
        };
        if request.is_abandoned() {
            continue;
        }
        let shard = replica.shard().id();
        let Install { sender, index, .. } = request;
        match received(shared, replica, &request).await {
            Ok(Some(staged)) => return Received { staged, request },
            Ok(None) => request.done(index),
            Err(error) => {
                tracing::warn!(shard, sender, index, %error, "no snapshot was received");
                tokio::time::sleep(RETRY_INTERVAL).await;
                request.refuse(&error);
            }
        }
    }
}

/// Receives the snapshot for a request. Returns `None` if the state has the requested entry already.
async fn received(shared: &Shared, replica: &Replica, request: &Install) -> Result<Option<Staged>, SnapshotError> {
    let has = async |index| replica.has_synced(index).await.map_err(|error| SnapshotError::Log(error.to_string()));
    let Install { address, index, .. } = request;
    if has(*index).await? {
        return Ok(None);
    }
    let directory = replica.shard().directory();
    let staged = fetch(shared, replica.shard().id(), address).await?;
    let found = staged.manifest().position.index;
    if found < *index {
        return Err(SnapshotError::TooOld { found, requested: *index });
    }
    // Entries may have arrived meanwhile, for example from another leader that has them.
    if has(found).await? {
        drop(staged);
        tokio::task::spawn_blocking(move || discard_overtaken(&directory, Some(found))).await??;
        return Ok(None);
    }
    Ok(Some(staged))
}

/// Receives a snapshot of a shard from the node at `address`.
pub(super) async fn fetch(shared: &Shared, shard: u32, address: &str) -> Result<Staged, SnapshotError> {
    let dialer = &shared.config.dialer;
    let endpoint = dialer.endpoint(address).map_err(|error| SnapshotError::Address(error.to_string()))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_PATIENCE)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    receive(dialer.connect_lazy(&endpoint), shard, shared.directory.shard(shard)).await
}

/// Closes the replica, installs the snapshot, and opens the replica again. Returns the replica, and a guard that makes
/// queries wait until the replica serves. Returns `None` if the node stops, or if the replica failed for good and is
/// closed. If the snapshot cannot be installed, the old state is opened.
pub(super) async fn install(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
    Received { staged, request }: Received,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    // Queries and appends wait if they were served before.
    let state = if matches!(hosted.state(), State::Serving(_)) { State::Repairing } else { State::Starting };
    let (opened, held) = close_and_install(shared, hosted, replica, Some(staged), INSTALL_INTERVAL, &state).await?;
    // The state of a replica that was just opened is that on disk.
    let index = opened.shard().flushed_index().unwrap_or_default();
    if index < request.index {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    request.done(index);
    Some((opened, held))
}
