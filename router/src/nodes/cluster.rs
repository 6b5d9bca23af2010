//! The nodes of a cluster on the network: the router's view of the cluster, and calls to the leaders of shards.
//!
//! The view is the state of the meta group as one of the nodes knows it. A task watches it, so a router learns of new
//! nodes and placements by itself. Only the leader of a shard accepts appends and gives linearizable read points. A
//! router remembers the leaders that it found, and follows the hints of other members. A member that does not respond
//! is left alone for a while, so that not every call waits for it.

mod reads;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use proto::Tokens;
use proto::meta::{ClusterId, Shard, State};
use proto::placement::Placement;
use proto::refusal::Refusal;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use transport::Dialer;

use crate::nodes::remote::{Patience, Remote};
use crate::nodes::silent_shards::SilentShards;

/// Longest time that a call looks for the leader of a shard. An election takes a second or two.
const LEADER_PATIENCE: Duration = Duration::from_secs(8);
/// Time in which most elections end.
const ELECTION: Duration = Duration::from_secs(2);
/// Pauses between calls to members of which none leads: they double from the shortest to the longest. During an
/// election they stay shorter, because each of them may delay the first call to the new leader. Later they are longer,
/// because each call sends the whole request.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_IN_ELECTION_MAX: Duration = Duration::from_millis(150);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Time of a failed call from which on the member may be silent. A process that was killed fails at once.
const SLOW: Duration = Duration::from_millis(500);
/// Time in which a member responds that is not silent. A call may also be slow because of its shard, for example while
/// most of the shard's members are down; the node is then still called for its other shards.
const PROBE: Duration = Duration::from_millis(500);
/// Time for which a silent member is not called if another one may respond. Each call to it would wait for long.
const SILENCE: Duration = Duration::from_secs(3);
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
    /// Node ids of the leaders, by shard, as far as they are known.
    leaders: Mutex<HashMap<u32, u64>>,
    silent_shards: SilentShards,
    /// Nodes that did not respond to a call lately, each with the time until which the others are called first.
    silent_nodes: Mutex<HashMap<u64, Instant>>,
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
            silent_nodes: Mutex::default(),
        });
        tokio::spawn(watch_cluster(Arc::downgrade(&cluster)));
        cluster
    }

    /// Returns true if a node has responded with a placement.
    pub(super) fn knows_placement(&self) -> bool {
        !self.state.borrow().epochs.is_empty()
    }

    /// Asks the nodes for the placement.
    ///
    /// # Errors
    /// Returns the status of the last node that was asked, if none knows a placement.
    pub(super) async fn placement(&self) -> Result<Placement, Status> {
        let placement = self.read_state().await?.placement();
        placement.ok_or_else(|| Status::unavailable("the cluster is being created: try again"))
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
        // The time begins with the first failure: a leader that has stopped responding is found out only by then.
        let mut deadline: Option<Instant> = None;
        let mut pause = PAUSE_MIN;
        let mut turn = 0;
        // An attempt with an unknown outcome decides the error, whatever later attempts return.
        let mut unknown: Option<Status> = None;
        // Members that could not be reached. Until an election, the others still name such a member as the leader.
        let mut unreached: HashSet<u64> = HashSet::new();
        // A hint is followed at once, but only one after each pause: two members may point at each other.
        let mut has_followed = false;
        loop {
            let state = self.state().await?;
            let members = state.shards.get(&shard).map(Shard::nodes).unwrap_or_default();
            let candidates = self.candidates(&members);
            let leader = self.leaders.lock().get(&shard).copied().filter(|leader| candidates.contains(leader));
            let Some(node) = leader.or_else(|| candidates.get(turn % candidates.len().max(1)).copied()) else {
                return Err(Status::not_found(format!("shard {shard} does not exist: read the placement again")));
            };
            let address = state.nodes.get(&node).map(|node| node.address.as_str()).unwrap_or_default();
            let began = Instant::now();
            let remote = self.connection(address)?;
            let status = match call(Arc::clone(&remote)).await {
                Ok(response) => {
                    self.silent_nodes.lock().remove(&node);
                    self.leaders.lock().insert(shard, node);
                    return Ok(response);
                }
                Err(status) => status,
            };
            if status.code() == Code::Unavailable && status.details().is_empty() && began.elapsed() >= SLOW {
                self.note_silence(node, &remote).await;
            }
            let is_first_round = turn < members.len();
            let Some(next) = next_step(&status, is_repeatable, members.len(), is_first_round) else {
                self.leaders.lock().remove(&shard);
                return Err(unknown.unwrap_or(status));
            };
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + LEADER_PATIENCE);
            // Without a refusal, the connection broke, or the member did not respond: the call may have had its effect.
            let refusal = Refusal::decode(status.details());
            let is_unreached = refusal.is_none() && status.code() == Code::Unavailable;
            if refusal == Some(Refusal::Unknown) || is_unreached {
                unknown = Some(status.clone());
            }
            let was_unreached = if is_unreached { !unreached.insert(node) } else { unreached.remove(&node) };
            turn += 1;
            let hint = match next {
                Next::Leader(hint) => Some(hint).filter(|hint| !unreached.contains(hint)),
                Next::Another => None,
            };
            match hint {
                Some(hint) => drop(self.leaders.lock().insert(shard, hint)),
                None => drop(self.leaders.lock().remove(&shard)),
            }
            if hint.is_some_and(|hint| hint != node) && !has_followed {
                has_followed = true;
                continue;
            }
            // A pause after a member that is still dead would only delay the call to the next one.
            let is_still_dead = was_unreached && is_unreached && unreached.len() < members.len();
            if is_still_dead || (turn < members.len() && leader.is_none()) {
                continue;
            }
            let now = Instant::now();
            if now + pause > deadline {
                return Err(unknown.unwrap_or(status));
            }
            sleep(pause).await;
            has_followed = false;
            let is_in_election = now + LEADER_PATIENCE < deadline + ELECTION;
            pause = (pause * 2).min(if is_in_election { PAUSE_IN_ELECTION_MAX } else { PAUSE_MAX });
        }
    }
}

impl Cluster {
    /// Returns the nodes without those that did not respond lately, or all if none responded.
    fn candidates(&self, nodes: &[u64]) -> Vec<u64> {
        let responding: Vec<u64> = nodes.iter().copied().filter(|&node| !self.is_silent(node)).collect();
        if responding.is_empty() { nodes.to_vec() } else { responding }
    }

    /// Returns true if a node did not respond lately.
    fn is_silent(&self, node: u64) -> bool {
        self.silent_nodes.lock().get(&node).is_some_and(|until| Instant::now() < *until)
    }

    /// Records that a node is silent, unless it responds to another call.
    async fn note_silence(&self, node: u64, remote: &Remote) {
        if !remote.is_responding(PROBE).await {
            self.silent_nodes.lock().insert(node, Instant::now() + SILENCE);
        }
    }
}

/// The node to which a call is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Leader(u64),
    Another,
}

/// Returns the node to which a call is made again after `status`; `None` if the status is the answer.
fn next_step(status: &Status, is_repeatable: bool, members: usize, is_first_round: bool) -> Option<Next> {
    match Refusal::decode(status.details()) {
        // The disk of this member is full, and perhaps those of all others.
        Some(Refusal::NotLeader { leader: None }) if status.code() == Code::ResourceExhausted => {
            (is_first_round && members > 1).then_some(Next::Another)
        }
        Some(Refusal::NotLeader { leader: Some(leader) }) => Some(Next::Leader(leader)),
        // The only member of a shard is not called again, because nothing else would take its place.
        Some(Refusal::NotLeader { leader: None }) => (members > 1).then_some(Next::Another),
        Some(Refusal::Unknown) => is_repeatable.then_some(Next::Another),
        // The member does not respond, is starting, or does not serve this shard.
        None if status.code() == Code::Unavailable && members > 1 => is_repeatable.then_some(Next::Another),
        // A member that lost its data does not have the shard. If no member has it, the placement has changed.
        None if status.code() == Code::NotFound && is_first_round && members > 1 => Some(Next::Another),
        None => None,
    }
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
