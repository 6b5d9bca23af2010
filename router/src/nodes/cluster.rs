//! The nodes of a cluster on the network: the router's view of the cluster, and calls to the leaders of shards.
//!
//! The view is the state of the meta group as one of the nodes knows it. A task watches it, so a router learns of new
//! nodes and placements by itself.

mod reads;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use proto::Tokens;
use proto::leader_search::{CallFailure, KnownLeaders, LeaderSearch, PROBE, Step};
use proto::meta::{ClusterId, Shard, State};
use proto::placement::Placement;
use proto::refusal::Refusal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use transport::Dialer;

use crate::nodes::remote::{Lost, Patience, Remote};
use crate::nodes::silent_shards::SilentShards;

/// Longest time to wait for an epoch that a node knows already.
const EPOCH_PATIENCE: Duration = Duration::from_secs(1);
const EPOCH_PAUSE: Duration = Duration::from_millis(50);
/// Pause of the watching task after no node has responded.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// The cluster, as this router knows it.
#[derive(Debug)]
pub(super) struct Cluster {
    dialer: Dialer,
    tokens: Option<Tokens>,
    patience: Patience,
    /// Endpoints of some nodes of the cluster, for the first call and for a time when no known node responds.
    seeds: Vec<Endpoint>,
    /// Connections by address.
    connections: Mutex<HashMap<String, Arc<Remote>>>,
    /// ID of the cluster, as soon as a node has named it. Nodes of another cluster refuse the router's requests.
    id: Arc<OnceLock<ClusterId>>,
    /// Newest known state of the meta group; the empty state if none is known yet.
    state: watch::Sender<Arc<State>>,
    leaders: Mutex<KnownLeaders>,
    silent_shards: SilentShards,
}

impl Cluster {
    /// Makes a view of the cluster of these nodes, and starts the task that watches it. Connections are made on the
    /// first calls.
    pub(super) fn new(dialer: &Dialer, seeds: Vec<Endpoint>, tokens: Option<&Tokens>, patience: Patience) -> Arc<Self> {
        let cluster = Arc::new(Self {
            dialer: dialer.clone(),
            tokens: tokens.cloned(),
            patience,
            seeds,
            connections: Mutex::default(),
            id: Arc::default(),
            state: watch::Sender::new(Arc::default()),
            leaders: Mutex::default(),
            silent_shards: SilentShards::default(),
        });
        tokio::spawn(watch_cluster(Arc::downgrade(&cluster)));
        cluster
    }

    /// Returns true if a node has responded with a placement.
    pub(super) fn knows_placement(&self) -> bool {
        !self.state.borrow().epochs.is_empty()
    }

    /// Asks the nodes for the placement of at least this epoch. Waits for it for a moment: some nodes learn of an epoch
    /// later than others.
    ///
    /// # Errors
    /// Returns the status of the last node that was asked, if none knows a placement.
    pub(super) async fn placement(&self, epoch: u64) -> Result<Placement, Status> {
        let deadline = Instant::now() + EPOCH_PATIENCE;
        loop {
            let placement = self.read_state().await?.placement();
            let placement = placement.ok_or_else(|| Status::unavailable("the cluster is being created: try again"))?;
            if placement.epoch() >= epoch || Instant::now() > deadline {
                return Ok(placement);
            }
            sleep(EPOCH_PAUSE).await;
        }
    }

    /// Returns the newest known state of the meta group. Asks the nodes for it if none is known.
    ///
    /// # Errors
    /// Returns the status of the last node that was asked, if none responds.
    pub(super) async fn state(&self) -> Result<Arc<State>, Status> {
        let known = Arc::clone(&self.state.borrow());
        if known.epochs.is_empty() { self.read_state().await } else { Ok(known) }
    }

    /// Returns a watcher of the newest known state of the meta group.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.state.subscribe()
    }

    /// Asks the nodes for the state of the meta group, until one responds.
    ///
    /// # Errors
    /// Returns the status of the last node that was asked, if none responds.
    pub(super) async fn read_state(&self) -> Result<Arc<State>, Status> {
        let mut last = Status::unavailable("no node of the cluster is known: set --node-endpoint");
        for node in self.nodes() {
            match node.watch(0).await {
                Ok(Some(state)) => match self.learn(state) {
                    Ok(newest) => return Ok(newest),
                    Err(status) => last = status,
                },
                Ok(None) => last = Status::unavailable("the cluster is being created: try again"),
                Err(status) => last = status,
            }
        }
        Err(last)
    }

    /// Keeps a state if it is newer than the known one. Returns the newest.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: the state is that of another cluster. A node that lost its data may have made a cluster of
    /// its own, which must not replace the known one.
    fn learn(&self, state: State) -> Result<Arc<State>, Status> {
        let mut is_same = true;
        self.state.send_if_modified(|known| {
            is_same = known.cluster.is_none() || known.cluster == state.cluster;
            let is_newer = is_same && known.revision < state.revision;
            if is_newer {
                *known = Arc::new(state);
            }
            is_newer
        });
        if !is_same {
            let text = "a node belongs to another cluster than the others: correct --node-endpoint, or stop this node";
            return Err(Status::failed_precondition(text));
        }
        let newest = Arc::clone(&self.state.borrow());
        if let Some(id) = newest.cluster {
            // The first ID stays.
            let _is_known = self.id.set(id).is_err();
        }
        let addresses: Vec<&str> = newest.nodes.values().map(|node| node.address.as_str()).collect();
        let is_seed = |address: &str| self.seeds.iter().any(|seed| address == authority(seed));
        self.connections.lock().retain(|address, _| addresses.contains(&address.as_str()) || is_seed(address));
        Ok(newest)
    }

    /// Returns the connections to all known nodes, and then to the seeds.
    fn nodes(&self) -> Vec<Arc<Remote>> {
        let state = Arc::clone(&self.state.borrow());
        let known = state.nodes.values().filter_map(|node| self.connection(&node.address).ok());
        let seeds = self.seeds.iter().map(|seed| self.connection_of(authority(seed), seed));
        known.chain(seeds).collect()
    }

    /// Returns the connection to the node at an address, `host:port`.
    fn connection(&self, address: &str) -> Result<Arc<Remote>, Status> {
        if let Some(known) = self.connections.lock().get(address) {
            return Ok(Arc::clone(known));
        }
        let endpoint = self.dialer.endpoint(address);
        let endpoint = endpoint.map_err(|error| Status::internal(format!("the node address {address}: {error}")))?;
        Ok(self.connection_of(address, &endpoint))
    }

    fn connection_of(&self, address: &str, endpoint: &Endpoint) -> Arc<Remote> {
        let mut connections = self.connections.lock();
        let connection = connections.entry(address.to_owned()).or_insert_with(|| {
            let cluster = Arc::clone(&self.id);
            Arc::new(Remote::new(&self.dialer, endpoint.clone(), self.tokens.as_ref(), cluster, self.patience))
        });
        Arc::clone(connection)
    }

    /// Makes a call to the leader of a shard. While the leader is unknown, calls one member after another.
    ///
    /// `is_repeatable` is true if the call may be made again after a call with an unknown outcome. A call that
    /// certainly had no effect, because the member is not the leader or cannot be reached, is always made again at
    /// another one.
    ///
    /// # Errors
    /// Returns the status of the last call, or that of the last call whose outcome is unknown, or NOT_FOUND if the
    /// shard does not exist.
    pub(super) async fn at_leader<T, F: Future<Output = Result<T, Status>>>(
        &self,
        shard: u32,
        is_repeatable: bool,
        call: impl Fn(Arc<Remote>) -> F,
    ) -> Result<T, Status> {
        let mut search = LeaderSearch::new(shard, is_repeatable);
        // An attempt with an unknown outcome decides the error, whatever later attempts return.
        let mut unknown: Option<Status> = None;
        loop {
            let state = self.state().await?;
            let members = state.shards.get(&shard).map(Shard::nodes).unwrap_or_default();
            let Some(node) = search.member(&members, &self.leaders.lock(), now()) else {
                return Err(Status::not_found(format!("shard {shard} does not exist: read the placement again")));
            };
            let address = state.nodes.get(&node).map(|node| node.address.as_str()).unwrap_or_default();
            let began = now();
            let remote = self.connection(address)?;
            let status = match call(Arc::clone(&remote)).await {
                Ok(response) => {
                    search.succeeded(node, &mut self.leaders.lock());
                    return Ok(response);
                }
                Err(status) => status,
            };
            let failure = failure_of(&status);
            self.note_failure(node, &remote, failure, began).await;
            if failure.is_unknown() {
                unknown = Some(status.clone());
            }
            let step = search.failed(node, failure, &mut self.leaders.lock(), now());
            match step {
                Step::CallNow => {}
                Step::CallAfter(pause) => sleep(pause).await,
                Step::Fail => return Err(unknown.unwrap_or(status)),
            }
        }
    }

    /// Records that a node is silent, if its failure took long and it does not respond to another call.
    async fn note_failure(&self, node: u64, remote: &Remote, failure: CallFailure, began: std::time::Instant) {
        if LeaderSearch::may_be_silent(failure, now() - began) && !remote.is_responding(PROBE).await {
            self.leaders.lock().set_silent(node, now());
        }
    }
}

/// Returns the kind of a failure, for the search of a leader.
fn failure_of(status: &Status) -> CallFailure {
    match Refusal::decode(status.details()) {
        Some(Refusal::NotLeader { leader: None }) if status.code() == Code::ResourceExhausted => CallFailure::Full,
        Some(Refusal::NotLeader { leader }) => CallFailure::NotLeader { leader },
        Some(Refusal::Unknown) => CallFailure::Unknown,
        Some(Refusal::Misplaced { .. }) => CallFailure::Final,
        None if Lost::of(status) == Some(Lost::Request) => CallFailure::NotSent,
        None if Lost::of(status) == Some(Lost::Response) => CallFailure::Unreached,
        None if status.code() == Code::Unavailable => CallFailure::Unready,
        None if status.code() == Code::NotFound => CallFailure::Missing,
        None => CallFailure::Final,
    }
}

/// Returns the time of tokio's clock, which tests can set.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn authority(endpoint: &Endpoint) -> &str {
    endpoint.uri().authority().map_or("", |authority| authority.as_str())
}

/// Watches the state of the meta group, until the cluster is dropped.
async fn watch_cluster(cluster: Weak<Cluster>) {
    let mut turn = 0_usize;
    loop {
        let Some(known) = cluster.upgrade() else { return };
        let nodes = known.nodes();
        let Some(node) = nodes.get(turn % nodes.len().max(1)).map(Arc::clone) else { return };
        let revision = known.state.borrow().revision;
        // Not held during the call, so that the cluster can be dropped.
        drop(known);
        match node.watch(revision).await {
            Ok(Some(state)) => {
                let Some(known) = cluster.upgrade() else { return };
                if let Err(other_cluster) = known.learn(state) {
                    tracing::error!(%other_cluster, "the state of a node is ignored");
                    turn = turn.wrapping_add(1);
                    sleep(WATCH_PAUSE).await;
                }
            }
            // This node may be cut off from the others, so the next call goes to another one.
            Ok(None) => turn = turn.wrapping_add(1),
            Err(_not_reached) => {
                turn = turn.wrapping_add(1);
                sleep(WATCH_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
