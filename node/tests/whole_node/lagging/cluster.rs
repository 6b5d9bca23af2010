//! Three nodes with one shard, in one process, with gRPC between them. Each has its own runtime, so that it can be
//! killed.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use node::Config;
use proto::Batch;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{Opened, answer, config, count, open_with, times};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Number of attempts to make a member the leader. About every second attempt succeeds.
const ELECTIONS_MAX: usize = 30;

pub(super) struct Cluster {
    members: Vec<Member>,
    /// Index of the last known leader.
    leader: AtomicUsize,
}

struct Member {
    config: Config,
    _folder: TempDir,
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
            let opened = Arc::new(open_with(config.clone()).await);
            let listener = tokio::net::TcpListener::bind(&config.advertise_address).await.unwrap();
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
    pub(super) async fn start(change: impl Fn(&mut Config)) -> Self {
        // All ports are reserved before one of them is used.
        let reserved: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> = reserved.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
        drop(reserved);
        let mut members = Vec::new();
        for (node_id, address) in (1..).zip(&addresses) {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config {
                node_id,
                advertise_address: address.clone(),
                initial_nodes: (1..).zip(addresses.clone()).collect(),
                ..config(folder.path())
            };
            change(&mut config);
            let mut member = Member { config, _folder: folder, running: None };
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
    pub(super) fn metric(&self, member: usize, name: &str) -> f64 {
        self.member(member).metrics(name).iter().sum()
    }

    pub(super) async fn stop(&mut self, member: usize) {
        self.members[member].stop().await;
    }

    pub(super) async fn restart(&mut self, member: usize) {
        self.members[member].start().await;
    }

    /// Ends a node without a shutdown, as if its host lost power.
    pub(super) fn kill(&mut self, member: usize) {
        self.members[member].running.take().unwrap().runtime.shutdown_background();
    }

    /// Replaces the state of a stopped member by that of another stopped member.
    pub(super) fn replace_state(&self, member: usize, other: usize) {
        let [to, from] = [member, other].map(|member| &self.members[member].config.data_dir);
        std::fs::remove_dir_all(to.join("shard-0001")).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").arg(from.join("shard-0001")).arg(to).status().unwrap();
        assert!(copied.success());
    }

    /// Returns the running members, the last known leader first.
    fn running(&self) -> impl Iterator<Item = usize> {
        let first = self.leader.load(Ordering::Relaxed);
        let all = (0..self.members.len()).map(move |offset| (first + offset) % 3);
        all.filter(|&member| self.members[member].running.is_some())
    }

    /// Appends a batch through the leader.
    pub(super) async fn append(&self, serial: i64, batch: &Batch) {
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
    pub(super) async fn leader(&self) -> usize {
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
    pub(super) async fn make_leader(&mut self, member: usize) {
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
    pub(super) async fn times(&self, leader: usize) -> Vec<i64> {
        times(&self.member(leader).node).await.unwrap()
    }

    /// Returns the number of bytes of a snapshot that a member has received so far.
    pub(super) fn staged_bytes(&self, member: usize) -> u64 {
        let files = self.members[member].config.data_dir.join("shard-0001/staging/files");
        let Ok(files) = std::fs::read_dir(files) else { return 0 };
        files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
    }
}
