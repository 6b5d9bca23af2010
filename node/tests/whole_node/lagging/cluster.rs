//! Three nodes or more with one shard, in one process, with gRPC between them. Each has its own runtime, so that it can
//! be killed.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use node::{Config, Node, NodeError, Site};
use prometheus_client::registry::Registry;
use proto::meta::{Command, DirectoryId, State};
use proto::wire::cluster_server::Cluster as _;
use proto::{Batch, wire};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Request;

use crate::support::{Opened, answer, config, count, times};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Number of attempts to make a member the leader. About every second attempt succeeds.
const ELECTIONS_MAX: usize = 30;

pub(crate) struct Cluster {
    members: Vec<Member>,
    /// Index of the last known leader.
    leader: AtomicUsize,
}

fn site(address: String) -> Site {
    Site { address, zone: String::new() }
}

struct Member {
    config: Config,
    folder: TempDir,
    running: Option<Running>,
}

struct Running {
    runtime: Runtime,
    opened: Arc<Opened>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Member {
    async fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let config = self.config.clone();
        let started = runtime.spawn(async move {
            // Threads of a killed node may still hold the directory and the port.
            let start = Instant::now();
            let mut registry = Registry::default();
            let node = loop {
                match Node::open(config.clone(), &mut registry).await {
                    Ok(node) => break node,
                    Err(NodeError::Held { .. }) => assert!(start.elapsed() < PATIENCE, "the directory is held"),
                    Err(error) => panic!("{error}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let opened = Arc::new(Opened { node, registry });
            let listener = loop {
                match tokio::net::TcpListener::bind(&config.site.address).await {
                    Ok(listener) => break listener,
                    Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let (stop, stopped) = oneshot::channel::<()>();
            let node = Arc::clone(&opened.node);
            let served = tokio::spawn(async move {
                node.serve(listener, None, None, async { drop(stopped.await) }).await.unwrap();
            });
            (opened, stop, served)
        });
        let (opened, stop, served) = started.await.unwrap();
        self.running = Some(Running { runtime, opened, stop, served });
    }

    async fn stop(&mut self) {
        let Running { runtime, opened, stop, served } = self.running.take().unwrap();
        stop.send(()).unwrap();
        served.await.unwrap();
        runtime.spawn(async move { opened.node.shutdown().await }).await.unwrap();
        runtime.shutdown_background();
    }
}

impl Drop for Member {
    // A runtime must not be dropped by the async code of a test.
    fn drop(&mut self) {
        if let Some(Running { runtime, .. }) = self.running.take() {
            runtime.shutdown_background();
        }
    }
}

impl Cluster {
    /// Starts the nodes, and waits until they serve. `change` changes the configuration of each node.
    pub(crate) async fn start(change: impl Fn(&mut Config)) -> Self {
        // All ports are reserved before one of them is used.
        let reserved: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> = reserved.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
        drop(reserved);
        let mut members = Vec::new();
        for (node_id, address) in (1..).zip(&addresses) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config {
                node_id,
                site: site(address.clone()),
                initial_nodes: (1..).zip(addresses.iter().cloned().map(site)).collect(),
                ..config(folder.path())
            };
            change(&mut config);
            let mut member = Member { config, folder, running: None };
            member.start().await;
            members.push(member);
        }
        for member in &members {
            member.running.as_ref().unwrap().opened.node.ready().await;
        }
        Self { members, leader: AtomicUsize::new(0) }
    }

    /// Returns a running member.
    fn member(&self, member: usize) -> &Opened {
        &self.members[member].running.as_ref().unwrap().opened
    }

    /// Returns the sum of a metric of a running member; 0 before its replica is opened.
    pub(crate) fn metric(&self, member: usize, name: &str) -> f64 {
        self.member(member).metrics(name).iter().sum()
    }

    /// Returns the address of a member's port.
    pub(crate) fn address(&self, member: usize) -> &str {
        &self.members[member].config.site.address
    }

    pub(crate) async fn stop(&mut self, member: usize) {
        self.members[member].stop().await;
    }

    pub(crate) async fn restart(&mut self, member: usize) {
        self.members[member].start().await;
    }

    /// Ends a node without a shutdown, as if its host lost power.
    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].running.take().unwrap().runtime.shutdown_background();
    }

    /// Starts another node, which joins the cluster. Returns its index.
    pub(crate) async fn join(&mut self) -> usize {
        let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = reserved.local_addr().unwrap().to_string();
        drop(reserved);
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            node_id: self.members.len() as u64 + 1,
            site: site(address),
            initial_nodes: BTreeMap::new(),
            join: self.members.iter().map(|member| member.config.site.address.clone()).collect(),
            data_dir: folder.path().to_owned(),
            ..self.members[0].config.clone()
        };
        let mut member = Member { config, folder, running: None };
        member.start().await;
        self.members.push(member);
        self.members.len() - 1
    }

    /// Kills a node, and starts it with an empty data directory. Returns the identity of that directory.
    pub(crate) async fn wipe(&mut self, member: usize) -> DirectoryId {
        self.kill(member);
        let folder = tempfile::tempdir().unwrap();
        self.members[member].config.data_dir = folder.path().to_owned();
        self.members[member].folder = folder;
        self.members[member].start().await;
        let start = Instant::now();
        loop {
            match self.member(member).node.identify(Request::new(wire::IdentifyRequest {})).await {
                Ok(identity) => {
                    let directory = identity.into_inner().directory;
                    return DirectoryId(u128::from_be_bytes(directory.as_ref().try_into().unwrap()));
                }
                Err(status) => assert!(start.elapsed() < PATIENCE, "{status}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Proposes a command to the meta group through any node, until it is applied.
    pub(crate) async fn propose(&self, command: &Command) {
        let start = Instant::now();
        loop {
            let mut refused = Vec::new();
            for member in self.running() {
                let request = wire::ProposeRequest { command: Some(command.to_wire()), ..Default::default() };
                match self.member(member).node.propose(Request::new(request)).await {
                    Ok(_applied) => return,
                    Err(status) => refused.push(status.message().to_owned()),
                }
            }
            assert!(start.elapsed() < PATIENCE, "{command:?} is refused: {refused:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the state of the meta group, as a node knows it.
    pub(crate) async fn state(&self, member: usize) -> State {
        let watched = self.member(member).node.watch(Request::new(wire::WatchRequest { revision: 0 })).await.unwrap();
        State::from_wire(watched.into_inner().state.unwrap()).unwrap()
    }

    /// Waits until a running node knows that the shard has exactly these members.
    pub(crate) async fn wait_for_members(&self, member: usize, expected: &[proto::meta::Member]) {
        let start = Instant::now();
        loop {
            let shard = self.state(member).await.shards[&1].clone();
            if shard.members == expected && shard.target.is_empty() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "the members are {shard:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn is_ready(&self, member: usize) -> bool {
        self.member(member).node.is_ready()
    }

    /// Returns what a node says about the damage of its replica.
    pub(crate) async fn damage(&self, member: usize) -> Option<String> {
        let status = self.member(member).node.status(Request::new(wire::StatusRequest {})).await.unwrap().into_inner();
        let damage = status.groups.into_iter().find(|group| group.number == 1)?.damage;
        (!damage.is_empty()).then_some(damage)
    }

    /// Verifies the state of a node's replica, as soon as the replica serves. Returns the number of faults.
    pub(crate) async fn verify(&self, member: usize) -> u64 {
        let node = &self.member(member).node;
        let start = Instant::now();
        let report = loop {
            match proto::Shards::administer(&**node, 1, proto::AdministrationTask::Verify).await {
                Ok(report) => break report,
                Err(status) if status.code() == tonic::Code::Unavailable && start.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(status) => panic!("{status}"),
            }
        };
        let faults = report.split("\"faults\":").nth(1).unwrap().split([',', '}']).next().unwrap();
        faults.parse().unwrap()
    }

    pub(crate) fn data_dir(&self, member: usize) -> &Path {
        &self.members[member].config.data_dir
    }

    pub(crate) fn config(&self, member: usize) -> &Config {
        &self.members[member].config
    }

    /// Replaces the state of a stopped member by that of another stopped member.
    pub(crate) fn replace_state(&self, member: usize, other: usize) {
        let [to, from] = [member, other].map(|member| &self.members[member].config.data_dir);
        std::fs::remove_dir_all(to.join("shard-0001")).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").arg(from.join("shard-0001")).arg(to).status().unwrap();
        assert!(copied.success());
    }

    /// Returns the running members, the last known leader first.
    fn running(&self) -> impl Iterator<Item = usize> {
        let first = self.leader.load(Ordering::Relaxed);
        let all = (0..self.members.len()).map(move |offset| (first + offset) % self.members.len());
        all.filter(|&member| self.members[member].running.is_some())
    }

    /// Appends a batch through the leader.
    pub(crate) async fn append(&self, serial: i64, batch: &Batch) {
        let start = Instant::now();
        loop {
            let mut refused = Vec::new();
            for member in self.running() {
                match answer(&self.member(member).node, batch).await {
                    Ok(_stored) => return self.leader.store(member, Ordering::Relaxed),
                    Err(status) => refused.push(status.message().to_owned()),
                }
            }
            assert!(start.elapsed() < PATIENCE, "sample {serial} is refused: {refused:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the leader, once there is one.
    pub(crate) async fn leader(&self) -> usize {
        let start = Instant::now();
        loop {
            for member in self.running() {
                // Only the leader serves reads.
                if count(&self.member(member).node).await.is_ok() {
                    self.leader.store(member, Ordering::Relaxed);
                    return member;
                }
            }
            assert!(start.elapsed() < PATIENCE, "there is no leader");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Restarts other leaders until `member` is the leader.
    pub(crate) async fn make_leader(&mut self, member: usize) {
        for _ in 0..ELECTIONS_MAX {
            let leader = self.leader().await;
            if leader == member {
                return;
            }
            self.stop(leader).await;
            if self.running().count() > 1 {
                self.leader().await;
            }
            self.restart(leader).await;
        }
        panic!("other members won {ELECTIONS_MAX} elections");
    }

    /// Returns the times of all samples, read from the leader.
    pub(crate) async fn times(&self, leader: usize) -> Vec<i64> {
        times(&self.member(leader).node).await.unwrap()
    }

    /// Returns the number of bytes of a snapshot that a member has received so far.
    pub(crate) fn staged_bytes(&self, member: usize) -> u64 {
        let files = self.members[member].config.data_dir.join("shard-0001/staging/files");
        let Ok(files) = std::fs::read_dir(files) else { return 0 };
        files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
    }
}
