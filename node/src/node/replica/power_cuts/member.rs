//! The member under test, opened as a node opens its replicas, and a member that nothing happens to.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use storage_engine::{BudgetSizes, Budgets, Content, LogBarrier};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};

use proto::wire::snapshots_server::SnapshotsServer;

use crate::consensus::scripted::Leaders;
use crate::consensus::{DirectoryId, GroupState as _, Peers};
use crate::directory::DataDirectory;
use crate::metrics::Metrics;
use crate::node::hosted::Hosted;
use crate::node::replica::Replica;
use crate::node::shared::Shared;
use crate::shard::Shard;
use crate::shard::snapshot::lease::Leases;
use crate::shard::snapshot::receiver::Staged;
use crate::shard::snapshot::sender::{SentShard, SnapshotService};
use crate::{Config, Retention};

pub(super) const SHARD: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(20);

/// A node with one replica. The script sends the replica the messages of the other members.
pub(super) struct Member {
    pub(super) shared: Arc<Shared>,
    hosted: Hosted,
    replica: Option<Arc<Replica>>,
}

impl Member {
    /// Opens the log of a node in a folder, which may be absent.
    pub(super) async fn start(folder: &Path) -> Result<Self, String> {
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        // The log is purged up to each flush.
        let no_log = Config {
            log_keep_time: Duration::ZERO,
            log_keep_bytes: 0,
            cache_bytes: 1 << 20,
            ..Config::new(folder.to_owned(), retention, 1 << 30)
        };
        let shared = Shared::open(no_log, &mut Registry::default()).await.map_err(|error| error.to_string())?;
        let directory = shared.cluster.directory();
        let hosted = Hosted::new(SHARD, directory, shared.closing.child_token(), shared.metrics.clone());
        shared.directory.make_shard(SHARD).map_err(|error| error.to_string())?;
        Ok(Self { shared, hosted, replica: None })
    }

    /// Opens the replica, with a snapshot if there is one.
    pub(super) async fn open(&mut self, staged: Option<Staged>) -> Result<(), String> {
        if let Some(replica) = self.replica.take() {
            replica.close().await;
        }
        self.replica = Some(self.shared.open_with(&self.hosted, staged).await.map_err(|error| error.to_string())?);
        Ok(())
    }

    pub(super) fn replica(&self) -> &Arc<Replica> {
        self.replica.as_ref().unwrap()
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    pub(super) fn directory(&self) -> DirectoryId {
        self.shared.cluster.directory()
    }

    pub(super) fn applied(&self) -> Option<u64> {
        self.replica().shard().applied().position.map(|position| position.index)
    }

    /// Waits until an entry is applied.
    pub(super) async fn applies(&self, index: u64) -> Result<(), String> {
        let start = Instant::now();
        while self.applied() < Some(index) {
            if start.elapsed() > PATIENCE {
                return Err(format!("entry {index} is not applied, and the last one is {:?}", self.applied()));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    pub(super) async fn content(&self) -> Result<Content, String> {
        let shard = Arc::clone(self.replica().shard());
        let content = tokio::task::spawn_blocking(move || shard.engine().content());
        content.await.unwrap().map_err(|error| error.to_string())
    }

    pub(super) async fn close(self) {
        if let Some(replica) = self.replica {
            replica.close().await;
        }
        self.shared.raft_log.close().await;
    }
}

/// A member without a log of its own, which applies what is committed. It sends snapshots.
pub(super) struct Reference {
    shard: Arc<Shard>,
    _folder: tempfile::TempDir,
    /// Content at each index.
    pub(super) contents: Vec<Content>,
}

impl Reference {
    pub(super) fn open() -> Self {
        let folder = super::folder();
        let directory = Arc::new(DataDirectory::open(folder.path()).unwrap());
        directory.make_shard(SHARD).unwrap();
        let state = directory.shard(SHARD).recover().unwrap();
        let sizes =
            BudgetSizes { engines: 1, head_bytes_max: 64 << 20, dictionary_bytes_max: 1 << 30, cache_bytes: 1 << 20 };
        let metrics = Metrics::register(&mut Registry::default()).of_shard(SHARD);
        let barrier = LogBarrier::default();
        let shard = Shard::open(SHARD, &directory, state, Budgets::new(sizes), barrier, metrics).unwrap();
        Self { shard: Arc::new(shard), _folder: folder, contents: Vec::new() }
    }

    /// Applies the entries up to an index.
    pub(super) fn apply(&mut self, leaders: &Leaders, last: u64) {
        for index in self.contents.len() as u64..=last {
            leaders.apply_to(&self.shard, index);
            self.contents.push(self.shard.engine().content().unwrap());
        }
    }

    /// Serves a snapshot as of now. Returns a connection.
    pub(super) async fn serve(&self) -> Channel {
        let shard = Arc::clone(&self.shard);
        let find = move |number| (number == SHARD).then(|| SentShard { shard: Arc::clone(&shard), purged: None });
        let service = SnapshotService::new(Arc::new(Leases::default()), CancellationToken::new(), find);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().add_service(SnapshotsServer::new(service));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
    }
}
