//! The gRPC service that leases snapshots and sends their files. Receivers pull, so that each resumes where it stopped.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{BoxStream, try_unfold};
use proto::wire;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::shard::Shard;
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::lease::{Lease, Leases};
use crate::shard::snapshot::rate::RateLimit;

/// Rate at which a node sends all its snapshots together. It leaves half of a small cloud disk (125 MiB/s) to the syncs
/// of the log, and sends 10 GiB in less than three minutes.
const SENT_BYTES_PER_SECOND: u64 = 64 << 20;
/// Size of a chunk. At the rate above, other streams wait 4 ms for one.
const CHUNK_BYTES: u64 = 256 << 10;

/// A shard whose snapshot can be sent.
#[derive(Debug)]
pub(crate) struct SentShard {
    pub(crate) shard: Arc<Shard>,
    /// Index of the last entry that was purged from the log. An older lease would be of no use.
    pub(crate) purged: Option<u64>,
}

/// Function that returns an open shard of this node; `None` if there is no such shard, or if it is not open.
type FindShard = dyn Fn(u32) -> Option<SentShard> + Send + Sync;

/// The service `varve.v1.Snapshots`.
pub(crate) struct SnapshotService {
    leases: Arc<Leases>,
    closed: CancellationToken,
    find: Box<FindShard>,
    rate: Arc<RateLimit>,
}

impl fmt::Debug for SnapshotService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotService").field("leases", &self.leases).finish_non_exhaustive()
    }
}

impl SnapshotService {
    /// Creates the service of a node. A node has one, because the limit on the rate is a part of it. All requests end
    /// when `closed` is cancelled: a server that finishes its requests would wait for minutes.
    pub(crate) fn new(
        leases: Arc<Leases>,
        closed: CancellationToken,
        find: impl Fn(u32) -> Option<SentShard> + Send + Sync + 'static,
    ) -> Self {
        Self { leases, closed, find: Box::new(find), rate: Arc::new(RateLimit::new(SENT_BYTES_PER_SECOND)) }
    }
}

#[tonic::async_trait]
impl wire::snapshots_server::Snapshots for SnapshotService {
    type ReadStream = BoxStream<'static, Result<wire::SnapshotChunk, Status>>;

    async fn manifest(
        &self,
        request: Request<wire::SnapshotRequest>,
    ) -> Result<Response<wire::SnapshotManifest>, Status> {
        let number = request.into_inner().shard;
        let closed = || Status::unavailable(format!("shard {number} is not open on this node: ask its leader"));
        let SentShard { shard, purged } = (self.find)(number).ok_or_else(closed)?;
        let lease = self.closed.run_until_cancelled(self.leases.lease(shard, purged)).await;
        let lease = lease.ok_or_else(stopping)?.map_err(|error| {
            tracing::error!(shard = number, %error, "no snapshot can be sent");
            status_of(&error)
        })?;
        tracing::info!(
            shard = number,
            index = lease.manifest().position.index,
            bytes = lease.manifest().bytes(),
            "lease"
        );
        Ok(Response::new(wire::SnapshotManifest { lease: lease.id(), manifest: lease.encoded().clone() }))
    }

    async fn read(&self, request: Request<wire::SnapshotReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let wire::SnapshotReadRequest { shard, lease, file, offset } = request.into_inner();
        let lease = self.leases.held(shard, lease).ok_or_else(ended)?;
        let of_lease = lease.manifest().file(&file).cloned();
        let file = of_lease.ok_or_else(|| Status::invalid_argument("the snapshot has no file with this name"))?;
        if offset > file.bytes {
            return Err(Status::invalid_argument(format!("offset {offset} is beyond the {} bytes", file.bytes)));
        }
        let end = file.bytes;
        let opening = Arc::clone(&lease);
        let opened = spawn_blocking(move || opening.open(&file)).await.map_err(|panic| internal(&panic))?;
        // The files of a lease are deleted when the shard is opened again.
        let opened = opened
            .map_err(|error| if error.kind() == std::io::ErrorKind::NotFound { ended() } else { internal(&error) })?;
        let closed = self.closed.clone();
        let reading = Reading { lease, file: Arc::new(opened), rate: Arc::clone(&self.rate), closed };
        let chunks = try_unfold((reading, offset), move |(reading, at)| async move {
            if at >= end {
                return Ok(None);
            }
            let content = reading.chunk(at, (end - at).min(CHUNK_BYTES)).await?;
            let next = at + content.len() as u64;
            Ok(Some((wire::SnapshotChunk { content }, (reading, next))))
        });
        Ok(Response::new(chunks.boxed()))
    }
}

/// A file that one receiver reads.
struct Reading {
    lease: Arc<Lease>,
    file: Arc<File>,
    rate: Arc<RateLimit>,
    closed: CancellationToken,
}

impl Reading {
    async fn chunk(&self, at: u64, bytes: u64) -> Result<Bytes, Status> {
        let mut content = vec![0; usize::try_from(bytes).unwrap_or_default()];
        let wait = tokio::time::sleep(self.rate.take(content.len(), Instant::now()));
        self.closed.run_until_cancelled(wait).await.ok_or_else(stopping)?;
        if !self.lease.touch() {
            return Err(ended());
        }
        let file = Arc::clone(&self.file);
        let read = move || file.read_exact_at(&mut content, at).map(|()| Bytes::from(content));
        let read = spawn_blocking(read).await.map_err(|panic| internal(&panic))?;
        read.map_err(|error| internal(&error))
    }
}

fn ended() -> Status {
    Status::not_found("the lease has ended: request the manifest again")
}

fn stopping() -> Status {
    Status::unavailable("the node is stopping")
}

fn internal(error: &dyn fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn status_of(error: &SnapshotError) -> Status {
    match error {
        SnapshotError::Empty { .. } => Status::failed_precondition(error.to_string()),
        error => Status::unavailable(error.to_string()),
    }
}
