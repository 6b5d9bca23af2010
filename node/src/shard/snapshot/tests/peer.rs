//! A member of a group for tests: a shard with a real engine, and a server that sends its snapshots with faults.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::wire;
use proto::wire::snapshots_server::{Snapshots, SnapshotsServer};
use storage_engine::{BudgetSizes, Budgets, Flushed, LogBarrier, Position};
use testkit::batches::{batch_of, long_name, time_of};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::consensus::{GroupState as _, Proposal};
use crate::directory::DataDirectory;
use crate::directory::shard::ShardDirectory;
use crate::error::ReplicaError;
use crate::metrics::Metrics;
use crate::shard::Shard;
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::lease::Leases;
use crate::shard::snapshot::receiver::{Staged, receive};
use crate::shard::snapshot::sender::{SentShard, SnapshotService};

pub(super) const SHARD: u32 = 1;

/// A member with one shard.
pub(super) struct Peer {
    pub(super) shard: Arc<Shard>,
    pub(super) directory: Arc<DataDirectory>,
}

impl Peer {
    pub(super) fn open(folder: &Path) -> Self {
        let directory = Arc::new(DataDirectory::open(folder).unwrap());
        directory.make_shard(SHARD).unwrap();
        let state = directory.shard(SHARD).recover().unwrap();
        let shard = Arc::new(open_shard(&directory, &state).unwrap());
        Self { shard, directory }
    }

    pub(super) fn of_shard(&self) -> ShardDirectory {
        self.directory.shard(SHARD)
    }

    /// Applies entries, each with 50 kB of definitions that do not compress.
    pub(super) fn apply(&self, entries: u64) {
        let applied = self.index();
        for index in applied + 1..=applied + entries {
            let serial = index as i64;
            let proposal = Proposal::append(Arc::new(batch_of(None, [serial], long_name)));
            let position = Position { index, log_id: Bytes::copy_from_slice(&index.to_be_bytes()) };
            self.shard.apply(position, proposal.at(time_of(serial).unsigned_abs())).unwrap();
        }
    }

    pub(super) fn index(&self) -> u64 {
        self.shard.applied().position.map_or(0, |position| position.index)
    }

    /// Returns the position and the signature of the content.
    pub(super) fn content(&self) -> storage_engine::Content {
        self.shard.engine().content().unwrap()
    }

    /// Receives a snapshot.
    pub(super) async fn receive(&self, channel: &Channel) -> Result<Staged, SnapshotError> {
        receive(channel.clone(), SHARD, self.of_shard()).await
    }

    /// Installs a snapshot, and continues with its state.
    pub(super) fn install(&mut self, staged: Staged) -> Result<(), SnapshotError> {
        self.shard = Arc::new(staged.install(|state| open_shard(&self.directory, state))?);
        self.of_shard().remove_replaced()?;
        Ok(())
    }

    /// Closes the shard and opens it again, as after a crash.
    pub(super) fn reopen(self) -> Self {
        let path = self.directory.path().to_owned();
        let open = self.shard.while_open();
        drop(self);
        while open.strong_count() > 0 {
            std::thread::yield_now();
        }
        Self::open(&path)
    }
}

pub(super) fn open_shard(directory: &Arc<DataDirectory>, state: &Path) -> Result<Shard, ReplicaError> {
    open_with(directory, state, LogBarrier::default())
}

pub(super) fn open_with(
    directory: &Arc<DataDirectory>,
    state: &Path,
    barrier: LogBarrier,
) -> Result<Shard, ReplicaError> {
    let sizes =
        BudgetSizes { engines: 1, head_bytes_max: 64 << 20, dictionary_bytes_max: 1 << 30, cache_bytes: 1 << 20 };
    let metrics = Metrics::register(&mut Registry::default()).of_shard(SHARD);
    Shard::open(SHARD, directory, state.to_owned(), Budgets::new(sizes), barrier, metrics)
}

/// A fault of a transfer. It happens once the server has sent this many bytes of files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Nothing,
    /// The connection breaks.
    Break(u64),
    /// A bit of the next chunk changes.
    Flip(u64),
    /// The lease is idle for too long, and ends.
    EndLease(u64),
    /// The next chunk is sent twice.
    Repeat(u64),
}

/// A server of a member's snapshots.
pub(super) struct Faulty {
    service: SnapshotService,
    pub(super) leases: Arc<Leases>,
    fault: Arc<Mutex<Fault>>,
    /// Number of bytes of files that were sent.
    sent: Arc<AtomicU64>,
}

/// A running server.
pub(super) struct Served {
    pub(super) channel: Channel,
    pub(super) leases: Arc<Leases>,
    fault: Arc<Mutex<Fault>>,
    sent: Arc<AtomicU64>,
}

impl Served {
    /// Sends the snapshots of a member. The log of the member is purged up to `purged`.
    pub(super) async fn of(peer: &Peer, purged: Option<u64>) -> Self {
        let shard = Arc::clone(&peer.shard);
        let leases = Arc::new(Leases::default());
        let find = move |number| (number == SHARD).then(|| SentShard { shard: Arc::clone(&shard), purged });
        let service = SnapshotService::new(Arc::clone(&leases), CancellationToken::new(), find);
        let fault = Arc::new(Mutex::new(Fault::Nothing));
        let sent = Arc::<AtomicU64>::default();
        let faulty =
            Faulty { service, leases: Arc::clone(&leases), fault: Arc::clone(&fault), sent: Arc::clone(&sent) };
        Self { channel: serve(faulty).await, leases, fault, sent }
    }

    pub(super) fn set(&self, fault: Fault) {
        *self.fault.lock() = fault;
        self.sent.store(0, Ordering::Relaxed);
    }

    /// Returns the number of bytes of files that were sent since the last call of `set`.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Serves a service on a port of its own. Returns a connection.
pub(super) async fn serve(service: impl Snapshots) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().add_service(SnapshotsServer::new(service));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

#[tonic::async_trait]
impl Snapshots for Faulty {
    type ReadStream = <SnapshotService as Snapshots>::ReadStream;

    async fn manifest(
        &self,
        request: Request<wire::SnapshotRequest>,
    ) -> Result<Response<wire::SnapshotManifest>, Status> {
        self.service.manifest(request).await
    }

    async fn read(&self, request: Request<wire::SnapshotReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let lease = self.leases.held(SHARD, request.get_ref().lease);
        let chunks = self.service.read(request).await?.into_inner();
        let leases = Arc::clone(&self.leases);
        let fault = Arc::clone(&self.fault);
        let sent = Arc::clone(&self.sent);
        let with_faults = chunks.flat_map(move |chunk| {
            let mut chunk = chunk;
            let bytes = chunk.as_ref().map_or(0, |chunk| chunk.content.len() as u64);
            let before = sent.fetch_add(bytes, Ordering::Relaxed);
            let mut fault = fault.lock();
            let mut chunks = Vec::new();
            match *fault {
                Fault::Break(at) if at <= before => {
                    sent.fetch_sub(bytes, Ordering::Relaxed);
                    chunk = Err(Status::unavailable("the connection broke"));
                }
                Fault::Flip(at) if at < before + bytes => {
                    *fault = Fault::Nothing;
                    chunk = chunk.map(|chunk| {
                        let mut content = chunk.content.to_vec();
                        content[at.saturating_sub(before) as usize] ^= 1;
                        wire::SnapshotChunk { content: content.into() }
                    });
                }
                Fault::Repeat(at) if at <= before => {
                    *fault = Fault::Nothing;
                    chunks.push(chunk.clone());
                }
                Fault::EndLease(at) if at <= before => {
                    *fault = Fault::Nothing;
                    lease.as_ref().unwrap().make_idle();
                    leases.end_idle();
                }
                _ => {}
            }
            chunks.push(chunk);
            futures::stream::iter(chunks)
        });
        Ok(Response::new(with_faults.boxed()))
    }
}

/// A sender that sends this manifest, and this chunk for each file.
pub(super) struct Hostile {
    pub(super) manifest: Bytes,
    pub(super) chunk: Bytes,
}

#[tonic::async_trait]
impl Snapshots for Hostile {
    type ReadStream = <SnapshotService as Snapshots>::ReadStream;

    async fn manifest(
        &self,
        _request: Request<wire::SnapshotRequest>,
    ) -> Result<Response<wire::SnapshotManifest>, Status> {
        Ok(Response::new(wire::SnapshotManifest { lease: 1, manifest: self.manifest.clone() }))
    }

    async fn read(&self, _request: Request<wire::SnapshotReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let chunk = wire::SnapshotChunk { content: self.chunk.clone() };
        Ok(Response::new(futures::stream::iter([Ok(chunk)]).boxed()))
    }
}

/// Returns the index of a flushed position.
pub(super) fn index_of(flushed: &Flushed) -> u64 {
    flushed.position.as_ref().map_or(0, |position| position.index)
}
