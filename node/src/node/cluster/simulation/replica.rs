//! A replica of a shard on a node of a simulation: opened, flushed, replaced by a snapshot, and closed by the rules of
//! `node/supervise`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use storage_engine::Flushed;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::consensus::{DirectoryId, Group, GroupState, Install, Receiving};
use crate::failure::Failure;
use crate::node::cluster::simulation::node::Running;
use crate::node::cluster::simulation::oracle::Observed;
use crate::node::cluster::simulation::planted::Planted;
use crate::node::cluster::simulation::state::{Model, Saved};

/// Interval of flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(700);
/// Time to send a snapshot, and time for which its lease is held afterwards.
const TRANSFER: Duration = Duration::from_millis(1500);
const LEASE: Duration = Duration::from_secs(4);
/// Pause after a snapshot could not be received or installed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A shard of a node.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) shard: u32,
    pub(super) identity: DirectoryId,
    pub(super) closing: CancellationToken,
    pub(super) closed: CancellationToken,
    /// The open replica, and whether it serves.
    replica: Mutex<Option<(Arc<Replica>, bool)>>,
}

/// An open replica.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) group: Group,
    pub(super) model: Arc<Model>,
    _receiving: Receiving,
}

impl Hosted {
    pub(super) fn new(shard: u32, identity: DirectoryId) -> Self {
        Self {
            shard,
            identity,
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
            replica: Mutex::default(),
        }
    }

    pub(super) fn replica(&self) -> Option<Arc<Replica>> {
        self.replica.lock().as_ref().map(|(replica, _)| Arc::clone(replica))
    }

    pub(super) fn serving(&self) -> Option<Arc<Replica>> {
        self.replica.lock().as_ref().filter(|(_, serves)| *serves).map(|(replica, _)| Arc::clone(replica))
    }
}

enum End {
    Closed,
    Installs(Saved, Install),
}

/// Runs the replica until it is closed. Returns early only if the node has crashed.
pub(super) async fn supervise(node: Arc<Running>, hosted: Arc<Hosted>) {
    let mut installs = node.peers.installs(hosted.shard, hosted.identity);
    let mut requested: Option<Install> = None;
    loop {
        let Some(replica) = open(&node, &hosted).await else { return };
        *hosted.replica.lock() = Some((Arc::clone(&replica), false));
        if let Some(request) = requested.take() {
            request.done(replica.model.applied_index());
        }
        let end = tokio::select! {
            biased;
            () = hosted.closing.cancelled() => End::Closed,
            (saved, request) = receive(&node, &hosted, &replica, &mut installs) => End::Installs(saved, request),
            () = serve(&node, &hosted, &replica) => return,
        };
        *hosted.replica.lock() = None;
        replica.group.stop().await;
        drop(replica);
        // Tasks of openraft may use the log for a moment.
        sleep(Duration::from_millis(1)).await;
        match end {
            End::Closed => return hosted.closed.cancel(),
            End::Installs(saved, request) => {
                node.sim.oracle.count(|counts| counts.installed += 1);
                let (id, shard, index) = (node.id, hosted.shard, saved.index());
                node.sim.trace.event(format_args!("node {id} installs a snapshot of shard {shard} at {index}"));
                node.storage.saved.lock().insert(shard, saved);
                requested = Some(request);
            }
        }
    }
}

async fn open(node: &Running, hosted: &Hosted) -> Option<Arc<Replica>> {
    let shard = hosted.shard;
    let saved = node.storage.saved.lock().get(&shard).cloned().unwrap_or_default();
    let purged = node.storage.disk.align(node.start, shard, saved.at.position.as_ref()).await.ok()?;
    let flushed = saved.index();
    if purged.as_ref().is_some_and(|purged| purged.index > flushed) {
        node.sim.oracle.violated(format_args!("node {} of shard {shard} has a gap after entry {flushed}", node.id));
        return None;
    }
    let model =
        Arc::new(Model::open(saved, Flushed { position: purged, membership: None }, node.sim.is(Planted::DoubleApply)));
    let state: Arc<Observed<Model>> = node.observed(shard, Arc::clone(&model));
    let failure = Failure::of_log().of_replica(shard);
    let network = node.peers.network(shard);
    let opened = Group::open(node.id, node.log(shard), network, state as Arc<dyn GroupState>, failure).await;
    let group = opened.inspect_err(|error| node.has_failed(shard, error)).ok()?;
    let _receiving = node.peers.receive(shard, hosted.identity, &group);
    Some(Arc::new(Replica { group, model, _receiving }))
}

/// Serves, and flushes again and again.
async fn serve(node: &Running, hosted: &Hosted, replica: &Arc<Replica>) {
    if create_if_named(node, hosted, replica).await.is_none() {
        return;
    }
    replica.group.recovered().await;
    *hosted.replica.lock() = Some((Arc::clone(replica), true));
    loop {
        sleep(FLUSH_INTERVAL).await;
        flush(node, hosted, replica);
        let kept = node.leases.lock().get(&hosted.shard).and_then(|leases| leases.iter().min().copied());
        replica.model.release_log(kept.filter(|_| !node.sim.is(Planted::PurgeIgnoresLagging)));
        if replica.group.purge_released().await.is_err() {
            return;
        }
    }
}

/// Writes the state to disk. Nothing is written before the log has synced all applied entries.
fn flush(node: &Running, hosted: &Hosted, replica: &Replica) {
    if node.storage.disk.has_synced(hosted.shard, replica.model.applied_index()) {
        let saved = replica.model.flush();
        node.storage.saved.lock().insert(hosted.shard, saved);
    }
}

async fn create_if_named(node: &Running, hosted: &Hosted, replica: &Replica) -> Option<()> {
    while !replica.group.is_created().await.ok()? {
        if let Some(members) = node.cluster.to_create(hosted.shard) {
            return replica.group.create(members).await.ok();
        }
        let is_of_others = |known: &proto::meta::Shard| known.is_created || known.creator != node.id;
        if node.cluster.state().shards.get(&hosted.shard).is_some_and(is_of_others) {
            return Some(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Some(())
}

/// Replies to requests to install a snapshot, until one of them needs one and it is received.
async fn receive(
    node: &Running,
    hosted: &Hosted,
    replica: &Replica,
    installs: &mut mpsc::Receiver<Install>,
) -> (Saved, Install) {
    let has = |index| replica.model.applied_index() >= index && node.storage.disk.has_synced(hosted.shard, index);
    loop {
        let Some(request) = installs.recv().await else {
            std::future::pending::<()>().await;
            continue;
        };
        if request.is_abandoned() {
            continue;
        }
        let index = request.index;
        if has(index) {
            request.done(index);
            continue;
        }
        match fetch(node, hosted.shard, request.sender).await {
            Some(saved) if has(saved.index()) => request.done(index),
            Some(saved) if saved.index() >= index => return (saved, request),
            _ => {
                sleep(RETRY_INTERVAL).await;
                request.refuse(&"no snapshot was received");
            }
        }
    }
}

/// Receives a snapshot of a shard from another node. The sender keeps its log after the snapshot for a while.
async fn fetch(node: &Running, shard: u32, sender: u64) -> Option<Saved> {
    node.sim.network.carry(node.id, sender).await?;
    let other = node.sim.running(sender)?;
    let hosted = other.hosted(shard)?;
    flush(&other, &hosted, &*hosted.replica()?);
    let saved = other.storage.saved.lock().get(&shard).cloned()?;
    other.leases.lock().entry(shard).or_default().push(saved.index());
    other.spawn({
        let (other, index) = (Arc::clone(&other), saved.index());
        async move {
            sleep(TRANSFER + LEASE).await;
            if let Some(leases) = other.leases.lock().get_mut(&shard)
                && let Some(at) = leases.iter().position(|&leased| leased == index)
            {
                leases.swap_remove(at);
            }
        }
    });
    sleep(TRANSFER).await;
    node.sim.network.carry(sender, node.id).await?;
    if other.down.is_cancelled() {
        return None;
    }
    let (purged, index) = (other.storage.disk.purged_index(shard), saved.index());
    if purged > index {
        node.sim.oracle.violated(format_args!(
            "node {sender} has purged shard {shard} up to {purged}, and node {} installs its snapshot at {index}",
            node.id
        ));
    }
    Some(saved)
}
