//! A node of a simulation, from a start to a crash: its member of the meta group, its duties, and its replicas.
//!
//! Real are the groups, their messages, the state machine of the meta group, and the decisions about replicas and
//! members. The loops around them are short forms of those in `node/cluster` and `node/supervise`.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::meta::{ClusterId, Command, Retention, State};
use testkit::random::Random;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::consensus::simulated_log::{Disk, SimulatedLog};
use crate::consensus::simulated_network::Stream;
use crate::consensus::{
    Change, ConsensusError, DirectoryId, Group, GroupState, Member, Peers, Receiving, ReplicaRecord,
};
use crate::failure::Failure;
use crate::meta::{META_GROUP, MetaGroupState, ProposeError};
use crate::node::cluster::simulation::Sim;
use crate::node::cluster::simulation::oracle::Observed;
use crate::node::cluster::simulation::planted::Planted;
use crate::node::cluster::simulation::replica::{Hosted, supervise};
use crate::node::cluster::simulation::state::Saved;
use crate::node::cluster::simulation::wire::NodeWire;
use crate::node::cluster::{Cluster, duties, members, replicas};

/// Interval of looks at the state of the meta group, and at groups that change.
const INTERVAL: Duration = Duration::from_millis(50);
/// Interval of looks at groups that do not change.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of attempts to reach all initial nodes.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time that another node may take to respond to a forwarded command.
const PATIENCE: Duration = Duration::from_secs(12);

/// The parts of a node that are left after a crash.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) disk: Arc<Disk>,
    pub(super) saved: Mutex<BTreeMap<u32, Saved>>,
    /// Times of syncs in milliseconds: the shortest, and by how much a sync may take longer.
    pub(super) sync_ms: Mutex<(u64, u64)>,
}

impl Storage {
    pub(super) fn new(disk: Arc<Disk>) -> Arc<Self> {
        Arc::new(Self { disk, saved: Mutex::default(), sync_ms: Mutex::new((1, 10)) })
    }
}

/// The member of the meta group.
#[derive(Debug)]
struct MetaMember {
    group: Group,
    state: Arc<Observed<MetaGroupState>>,
    failure: Failure,
    _receiving: Receiving,
}

/// A running node.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) sim: Arc<Sim>,
    /// Cancelled by the crash.
    pub(super) down: CancellationToken,
    pub(super) start: u64,
    pub(super) storage: Arc<Storage>,
    pub(super) peers: Arc<Peers>,
    pub(super) cluster: Cluster,
    meta: Mutex<Option<Arc<MetaMember>>>,
    hosted: Mutex<BTreeMap<u32, Arc<Hosted>>>,
    streams: Mutex<BTreeMap<u64, Arc<Stream>>>,
    /// Positions after which logs are kept for members that install snapshots.
    pub(super) leases: Mutex<BTreeMap<u32, Vec<u64>>>,
}

/// Returns the address of a node.
pub(super) fn address(node: u64) -> String {
    format!("node-{node}:1")
}

impl Running {
    /// Starts a node.
    pub(super) fn start(sim: &Arc<Sim>, id: u64, storage: Arc<Storage>) -> Arc<Self> {
        let start = storage.disk.start();
        let down = CancellationToken::new();
        let directory = storage.disk.directory_id();
        let wire = Arc::new(NodeWire { sim: Arc::clone(sim), from: id, down: down.clone() });
        let node = Arc::new(Self {
            id,
            sim: Arc::clone(sim),
            down,
            start,
            peers: Peers::over(id, address(id), directory, wire),
            cluster: Cluster::new(id, directory),
            storage,
            meta: Mutex::default(),
            hosted: Mutex::default(),
            streams: Mutex::default(),
            leases: Mutex::default(),
        });
        sim.trace.event(format_args!("node {id} starts"));
        sim.nodes.lock().insert(id, Arc::clone(&node));
        let (storage, mut random) = (Arc::clone(&node.storage), Random::new(sim.seed ^ id << 8 ^ start << 32));
        let mut takes = {
            let storage = Arc::clone(&storage);
            move || {
                let (shortest, spread) = *storage.sync_ms.lock();
                Duration::from_millis(shortest + random.next_u64() % spread.max(1))
            }
        };
        node.spawn(async move { storage.disk.run(start, &mut takes).await });
        node.open_known();
        node.spawn(run(Arc::clone(&node)));
        node
    }

    /// Runs a task until the node crashes.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let down = self.down.clone();
        tokio::spawn(async move { down.run_until_cancelled(task).await });
    }

    /// Ends the node at once. Of the writes that are not synced, only the first `kept` are left.
    pub(super) fn crash(&self, kept: usize) {
        self.down.cancel();
        self.sim.nodes.lock().remove(&self.id);
        let lost = self.storage.disk.crash(kept);
        self.sim.trace.event(format_args!("node {} crashes and loses {lost} writes", self.id));
        self.sim.oracle.count(|counts| {
            counts.crashes += 1;
            counts.lost_writes += lost;
        });
        let meta = self.meta.lock().take();
        let hosted = std::mem::take(&mut *self.hosted.lock());
        tokio::spawn(async move {
            // Only so that the tasks of openraft end. Nothing that they do has an effect any more.
            if let Some(meta) = meta {
                meta.group.stop().await;
            }
            for hosted in hosted.values() {
                let replica = hosted.replica();
                if let Some(replica) = replica {
                    replica.group.stop().await;
                }
            }
        });
    }

    pub(super) fn hosted(&self, shard: u32) -> Option<Arc<Hosted>> {
        self.hosted.lock().get(&shard).map(Arc::clone)
    }

    pub(super) fn stream(&self, from: u64) -> Arc<Stream> {
        Arc::clone(self.streams.lock().entry(from).or_default())
    }

    pub(super) fn observed<S>(&self, shard: u32, inner: Arc<S>) -> Arc<Observed<S>> {
        let (sim, down) = (Arc::clone(&self.sim), self.down.clone());
        Arc::new(Observed { inner, sim, node: self.id, shard, down })
    }

    pub(super) fn log(&self, shard: u32) -> SimulatedLog {
        SimulatedLog::new(shard, self.start, Arc::clone(&self.storage.disk))
    }

    /// Notes the leaders of all groups, as far as this node is one.
    pub(super) fn note_leaders(&self) {
        let mut groups = Vec::new();
        if let Some(meta) = &*self.meta.lock() {
            groups.push((META_GROUP, meta.group.status()));
        }
        for hosted in self.hosted.lock().values() {
            groups.extend(hosted.replica().map(|replica| (hosted.shard, replica.group.status())));
        }
        for (shard, status) in &groups {
            let of_meta = self.meta.lock().as_ref().filter(|_| *shard == META_GROUP).map(|meta| meta.group.voters());
            let voters = of_meta.or_else(|| Some(self.hosted(*shard)?.replica()?.group.voters())).unwrap_or_default();
            let known = format!("{shard} has leader {} in term {} and voters {voters}", status.leader, status.term);
            if self.sim.oracle.knows(self.id, *shard, &known) {
                self.sim.trace.event(format_args!("node {} knows that {known}", self.id));
            }
        }
        for (shard, status) in groups.into_iter().filter(|(_, status)| status.leader == self.id) {
            self.sim.oracle.leads(self.id, shard, status.term);
        }
    }

    /// Returns the leader, the term and the applied index of each group, as this node knows them.
    pub(super) fn status(&self) -> String {
        let meta = self.meta.lock().as_ref().map(|meta| (META_GROUP, false, meta.group.status()));
        let hosted = self.hosted.lock().clone();
        let hosted = hosted.values().map(|hosted| {
            let status = hosted.replica().map(|replica| replica.group.status()).unwrap_or_default();
            (hosted.shard, hosted.serving().is_some(), status)
        });
        let of_group = |(shard, serves, status): (u32, bool, proto::wire::GroupStatus)| {
            let proto::wire::GroupStatus { leader, term, last_index, applied_index, .. } = status;
            format!("{shard} serves {serves} leader {leader} term {term} last {last_index} applied {applied_index}; ")
        };
        meta.into_iter().chain(hosted).map(of_group).collect()
    }

    /// Returns the members of the meta group, as this node knows them.
    pub(super) fn meta_members(&self) -> Option<BTreeMap<u64, Member>> {
        self.meta.lock().as_ref().map(|meta| meta.group.members())
    }

    /// Returns the identity of the directory, and whether the node belongs to a cluster.
    pub(super) async fn identify(&self) -> Option<(DirectoryId, bool)> {
        let meta = self.meta.lock().clone()?;
        let has_cluster = meta.group.is_created().await.ok()?;
        Some((self.storage.disk.directory_id(), has_cluster))
    }

    /// Opens the replicas of earlier starts.
    fn open_known(self: &Arc<Self>) {
        let known: Vec<u32> = self.storage.saved.lock().keys().copied().collect();
        for shard in known {
            match self.storage.disk.replica(shard).identity {
                Some(identity) => self.host(shard, identity),
                None => drop(self.storage.saved.lock().remove(&shard)),
            }
        }
    }

    fn host(self: &Arc<Self>, shard: u32, identity: DirectoryId) {
        if self.hosted.lock().contains_key(&shard) {
            return;
        }
        self.storage.saved.lock().entry(shard).or_default();
        let hosted = Arc::new(Hosted::new(shard, identity));
        self.hosted.lock().insert(shard, Arc::clone(&hosted));
        self.spawn(supervise(Arc::clone(self), hosted));
    }

    /// Makes the node hold the replicas of the state, and no others.
    async fn follow(self: &Arc<Self>, state: &State) {
        if !self.cluster.is_known(state) {
            return;
        }
        let own = self.cluster.own_replicas(state);
        for (&shard, of) in &state.shards {
            let wanted = own.get(&shard).copied();
            let held = self.storage.disk.replica(shard);
            let hosted = self.hosted(shard);
            match replicas::step(held, wanted, hosted.is_some(), of.is_wanted(self.id), state.revision) {
                replicas::Step::Nothing => {}
                replicas::Step::Host(identity) => self.host(shard, identity),
                replicas::Step::Replace => {
                    let renewed = self.replace(shard, hosted, wanted, state.revision).await;
                    // It fails only if the node has crashed.
                    drop(renewed);
                }
            }
        }
    }

    async fn replace(
        self: &Arc<Self>,
        shard: u32,
        hosted: Option<Arc<Hosted>>,
        wanted: Option<DirectoryId>,
        revision: u64,
    ) -> std::io::Result<()> {
        self.sim.trace.event(format_args!("node {} replaces its replica of shard {shard}", self.id));
        let disk = &self.storage.disk;
        if let Some(hosted) = hosted {
            hosted.closing.cancel();
            hosted.closed.cancelled().await;
            self.hosted.lock().remove(&shard);
            disk.renew_replica(self.start, shard, ReplicaRecord { identity: None, revision }).await?;
        }
        self.storage.saved.lock().remove(&shard);
        let Some(identity) = wanted else { return Ok(()) };
        disk.renew_replica(self.start, shard, ReplicaRecord { identity: Some(identity), revision }).await?;
        self.host(shard, identity);
        Ok(())
    }

    /// Proposes a command to the meta group without forwarding it. An error has the leader, if it is known.
    async fn propose_here(&self, command: &Command) -> Result<bool, (String, Option<u64>)> {
        let meta = self.meta.lock().clone().ok_or_else(|| ("not open".to_owned(), None))?;
        let MetaMember { group, state, failure, .. } = &*meta;
        match crate::meta::propose(group, &state.inner, failure, || self.sim.wall_ns(), command).await {
            Ok(changed) => Ok(changed),
            Err(ProposeError::Refused(text)) => Err((text, None)),
            Err(ProposeError::Consensus(ConsensusError::NotLeader { leader })) => {
                Err(("not the leader".to_owned(), leader.map(|leader| leader.node)))
            }
            Err(ProposeError::Consensus(error)) => Err((error.to_string(), None)),
        }
    }

    /// Notes an error, which is no violation if the node has crashed meanwhile.
    pub(super) fn has_failed(&self, shard: u32, error: &dyn std::fmt::Display) {
        if !self.down.is_cancelled() {
            self.sim.oracle.violated(format_args!("node {} of shard {shard} fails: {error}", self.id));
        }
    }

    /// Proposes a command to the meta group, or forwards it to the leader.
    pub(super) async fn propose(&self, command: &Command) -> Result<bool, String> {
        let (text, leader) = match self.propose_here(command).await {
            Ok(changed) => return Ok(changed),
            Err(refused) => refused,
        };
        let Some(leader) = leader else { return Err(text) };
        let forwarded = async {
            let lost = || "lost".to_owned();
            self.sim.network.carry(self.id, leader).await.ok_or_else(lost)?;
            let node = self.sim.running(leader).ok_or_else(lost)?;
            let proposed = node.down.run_until_cancelled(node.propose_here(command)).await.ok_or_else(lost)?;
            self.sim.network.carry(leader, self.id).await.ok_or_else(lost)?;
            proposed.map_err(|(text, _leader)| text)
        };
        timeout(PATIENCE, forwarded).await.unwrap_or_else(|_elapsed| Err("late".to_owned()))
    }
}

/// Runs the member of the meta group, and the duties that its state gives the node.
async fn run(node: Arc<Running>) {
    let failure = Failure::of_log().of_replica(META_GROUP);
    let state = node.observed(META_GROUP, Arc::new(MetaGroupState::new(node.cluster.state.clone())));
    let applied_to: Arc<dyn GroupState> = Arc::<Observed<MetaGroupState>>::clone(&state);
    let network = node.peers.network(META_GROUP);
    let opened = Group::open(node.id, node.log(META_GROUP), network, applied_to, failure.clone()).await;
    let group = match opened {
        Ok(group) => group,
        Err(error) => return node.has_failed(META_GROUP, &error),
    };
    let _receiving = node.peers.receive(META_GROUP, node.storage.disk.directory_id(), &group);
    let meta = Arc::new(MetaMember { group, state, failure, _receiving });
    *node.meta.lock() = Some(Arc::clone(&meta));
    if create_cluster(&node, &meta).await.is_none() {
        return;
    }
    meta.group.recovered().await;
    let mut looked_at = BTreeSet::new();
    loop {
        let state = node.cluster.state();
        if let Some(cluster) = state.cluster {
            node.peers.belong_to(cluster);
            for group in std::iter::once(META_GROUP).chain(state.shards.keys().copied()) {
                if looked_at.insert(group) {
                    node.spawn(change_members(Arc::clone(&node), Arc::clone(&meta), group));
                }
            }
        }
        node.follow(&state).await;
        for command in due(&node, &meta, &state) {
            // The next look proposes the command again, if it is still due.
            drop(node.propose(&command).await);
        }
        sleep(INTERVAL).await;
    }
}

fn due(node: &Running, meta: &MetaMember, state: &State) -> Vec<Command> {
    let is_leader = meta.group.is_leader();
    if state.cluster.is_none() {
        // Each creation gives another cluster.
        let directory = u128::from_be_bytes(node.storage.disk.directory_id());
        let cluster = ClusterId(u128::from(node.sim.seed) << 80 ^ directory);
        let first = || {
            duties::initialize_with(
                cluster,
                meta.group.members(),
                node.sim.shards,
                Retention::DEFAULT,
                &BTreeMap::new(),
            )
        };
        return is_leader.then(first).into_iter().collect();
    }
    let serves = |shard: u32| node.hosted(shard).is_some_and(|hosted| hosted.serving().is_some());
    duties::due_of_shards(state, node.id, is_leader, serves)
}

/// Creates the meta group by the rules of `bootstrap::create_cluster`. Returns when the node belongs to a group.
async fn create_cluster(node: &Running, meta: &MetaMember) -> Option<()> {
    let is_creator = node.sim.initial.first() == Some(&node.id);
    while !meta.group.is_created().await.ok()? {
        if is_creator && let Some(members) = all_empty(node).await {
            node.sim.trace.event(format_args!(
                "node {} creates the meta group with {} members",
                node.id,
                members.len()
            ));
            return meta.group.create(members).await.ok();
        }
        sleep(ATTEMPT_INTERVAL).await;
    }
    Some(())
}

/// Returns the members of a new meta group, if every initial node has an empty directory.
async fn all_empty(node: &Running) -> Option<BTreeMap<u64, Member>> {
    let is_planted = node.sim.is(Planted::InitializeOnEmpty);
    let mut empty = BTreeMap::new();
    for &id in &node.sim.initial {
        let identified = async {
            if id == node.id {
                return Some((node.storage.disk.directory_id(), false));
            }
            node.sim.network.carry(node.id, id).await?;
            let other = node.sim.running(id)?;
            let identity = other.identify().await?;
            node.sim.network.carry(id, node.id).await?;
            Some(identity)
        };
        match identified.await {
            Some((directory, false)) => drop(empty.insert(id, Member { address: address(id), directory })),
            _ if is_planted => {}
            _ => return None,
        }
    }
    Some(empty)
}

/// Changes the members of a group whenever that is due, if this node leads the group.
async fn change_members(node: Arc<Running>, meta: Arc<MetaMember>, group: u32) {
    loop {
        let state = node.cluster.state();
        let is_changing = match state.shards.get(&group) {
            None if meta.group.is_leader() => {
                let wanted = members::members_of_meta_group(&state);
                !matches!(meta.group.change_members(&wanted).await, Ok(Change::Complete))
            }
            None => false,
            Some(shard) => {
                let serving = node.hosted(group).and_then(|hosted| hosted.serving());
                let leading = serving.filter(|replica| shard.is_created && replica.group.is_leader());
                let wanted = members::members_of_shard(&state, shard);
                match leading.zip(wanted) {
                    None => false,
                    Some((replica, wanted)) => match replica.group.change_members(&wanted).await {
                        Ok(Change::Complete) => match members::to_report(shard) {
                            Some(command) => {
                                drop(node.propose(&command).await);
                                true
                            }
                            None => false,
                        },
                        _ => true,
                    },
                }
            }
        };
        sleep(if is_changing { INTERVAL } else { IDLE_INTERVAL }).await;
    }
}
