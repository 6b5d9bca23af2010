//! Nodes with one member of a group each, in one process. Each has its own runtime, log database and gRPC server, so
//! that it can be killed. Between each ordered pair of nodes there is a proxy, which can be cut.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use storage_engine::{Flushed, Position};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::consensus::log::{LogDatabase, LogStore};
use crate::consensus::peers::Peers;
use crate::consensus::{ConsensusError, Group, GroupState, Member, Outcome, Payload};
use crate::directory::DataDirectory;
use crate::error::ReplicaError;
use crate::failure::Failure;
use crate::metrics::Metrics;

pub(super) const SHARD: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// A state in memory: all applied commands.
#[derive(Debug, Default)]
struct Commands(Mutex<(Flushed, Vec<Bytes>)>);

impl GroupState for Commands {
    fn applied(&self) -> Flushed {
        self.0.lock().0.clone()
    }

    fn flushed(&self) -> Flushed {
        Flushed::default()
    }

    fn purgeable(&self) -> Flushed {
        Flushed::default()
    }

    fn apply(&self, position: Position, command: Payload) -> Result<Outcome, ReplicaError> {
        let mut commands = self.0.lock();
        commands.0.position = Some(position);
        commands.1.push(command.bytes().clone());
        Ok(Outcome::Meta(command.bytes().clone()))
    }

    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError> {
        let mut commands = self.0.lock();
        commands.0.position = Some(position);
        commands.0.membership = membership.or(commands.0.membership.take());
        Ok(())
    }
}

/// A running node.
struct Running {
    runtime: Runtime,
    group: Arc<Group>,
    state: Arc<Commands>,
    log: Arc<LogDatabase>,
}

pub(super) struct Node {
    id: u64,
    pub(super) folder: TempDir,
    address: SocketAddr,
    /// Proxies to the other nodes, by the address of the node.
    proxies: BTreeMap<String, Proxy>,
    running: Option<Running>,
}

/// A proxy to a node. Its connections end when it is cut.
struct Proxy {
    address: SocketAddr,
    is_cut: watch::Sender<bool>,
}

impl Proxy {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_cut = watch::Sender::new(false);
        let cut = is_cut.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut cut = cut.subscribe();
                if *cut.borrow_and_update() {
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(to).await else { return };
                    server.set_nodelay(true).and(client.set_nodelay(true)).unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.wait_for(|&is_cut| is_cut) => {}
                    }
                });
            }
        });
        Self { address, is_cut }
    }
}

impl Node {
    pub(super) fn member(&self) -> Member {
        let running = self.running();
        Member { address: self.address.to_string(), directory: running.log.directory_id() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the node is killed")
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.running().group
    }

    pub(super) fn log(&self) -> &LogDatabase {
        &self.running().log
    }

    pub(super) fn commands(&self) -> Vec<Bytes> {
        self.running().state.0.lock().1.clone()
    }

    /// Starts the node, or starts it again.
    pub(super) async fn start(&mut self) {
        let folder = self.folder.path().to_owned();
        let log = tokio::task::spawn_blocking(move || open(&folder, Instant::now())).await.unwrap();
        self.start_with(Arc::new(log(self.id))).await;
    }

    async fn start_with(&mut self, log: Arc<LogDatabase>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let proxies = self.proxies.iter().map(|(address, proxy)| (address.clone(), proxy.address.to_string()));
        let proxies = proxies.collect();
        let state = Arc::<Commands>::default();
        let started = {
            let id = self.id;
            let address = self.address;
            let directory = log.directory_id();
            let store = LogStore::new(SHARD, Arc::clone(&log));
            let state = Arc::clone(&state) as Arc<dyn GroupState>;
            async move {
                let peers = Peers::through(id, directory, proxies);
                let incoming = TcpIncoming::from(TcpListener::bind(address).await.unwrap()).with_nodelay(Some(true));
                let service = peers.service();
                tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
                let group = Group::open(id, store, peers.network(SHARD), state, Failure::of_log()).await.unwrap();
                // The runtime ends with the process of a real node. The member receives messages until then.
                std::mem::forget(peers.receive(SHARD, directory, &group));
                group
            }
        };
        let group = Arc::new(runtime.spawn(started).await.unwrap());
        self.running = Some(Running { runtime, group, state, log });
    }

    /// Ends all threads and connections of the node at once.
    pub(super) fn kill(&mut self) {
        let Running { runtime, group, state, log } = self.running.take().expect("the node is killed already");
        runtime.shutdown_background();
        drop((group, state, log));
    }

    /// Proposes a command. Returns true if it was acknowledged.
    pub(super) async fn propose(&self, command: &str) -> Result<(), ConsensusError> {
        let bytes = Bytes::from(command.to_owned());
        let outcome = self.group().propose(|| Payload::plain(bytes.clone())).await?;
        assert_eq!(outcome, Outcome::Meta(bytes));
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
    }
}

/// Locks the directory, and waits for threads of a killed node. Returns a function that opens the log.
fn open(folder: &std::path::Path, start: Instant) -> impl FnOnce(u64) -> LogDatabase + use<> {
    let directory = loop {
        match DataDirectory::open(folder) {
            Ok(directory) => break Arc::new(directory),
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    move |id| {
        let metrics = Metrics::register(&mut Registry::default());
        LogDatabase::open(&directory, id, None, Failure::of_log(), metrics).unwrap()
    }
}

/// The nodes 1, 2 and 3.
pub(super) struct Nodes(pub(super) Vec<Node>);

impl Nodes {
    /// Starts three nodes, and creates their group on the first one.
    pub(super) async fn start() -> Self {
        let mut addresses = Vec::new();
        for _ in 0..3 {
            // The port stays free after the listener is dropped: the system chooses other ports for a while.
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            addresses.push(listener.local_addr().unwrap());
        }
        let mut nodes = Vec::new();
        for (id, &address) in (1..).zip(&addresses) {
            let mut proxies = BTreeMap::new();
            for &to in addresses.iter().filter(|&&to| to != address) {
                proxies.insert(to.to_string(), Proxy::start(to).await);
            }
            let folder = tempfile::tempdir().unwrap();
            let mut node = Node { id, folder, address, proxies, running: None };
            node.start().await;
            nodes.push(node);
        }
        let members = nodes.iter().map(|node| (node.id, node.member())).collect();
        nodes[0].group().create(members).await.unwrap();
        Self(nodes)
    }

    /// Cuts or restores all connections between a node and the others. After a cut, no connection passes anything on.
    pub(super) async fn cut(&self, isolated: usize, is_cut: bool) {
        let address = self.0[isolated].address.to_string();
        for (index, node) in self.0.iter().enumerate() {
            for (to, proxy) in &node.proxies {
                if index == isolated || *to == address {
                    proxy.is_cut.send_replace(is_cut);
                    if is_cut {
                        // Each connection has a receiver until it ends.
                        proxy.is_cut.closed().await;
                    }
                }
            }
        }
    }

    /// Proposes a command until a node acknowledges it. Returns the index of that node.
    pub(super) async fn acknowledged(&self, command: &str, among: &[usize]) -> usize {
        let start = Instant::now();
        loop {
            for &index in among {
                // A follower refuses at once.
                if self.0[index].propose(command).await.is_ok() {
                    return index;
                }
            }
            assert!(start.elapsed() < PATIENCE, "no node acknowledges {command}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the nodes have applied the same commands, and returns these.
    pub(super) async fn equal(&self, among: &[usize], at_least: usize) -> Vec<Bytes> {
        let start = Instant::now();
        loop {
            let all: Vec<_> = among.iter().map(|&index| self.0[index].commands()).collect();
            if all[0].len() >= at_least && all.iter().all(|commands| *commands == all[0]) {
                return all.into_iter().next().unwrap();
            }
            let lengths: Vec<_> = all.iter().map(Vec::len).collect();
            assert!(start.elapsed() < PATIENCE, "the nodes have {lengths:?} commands, not {at_least}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
