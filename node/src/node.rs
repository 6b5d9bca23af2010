//! A node from opening to shutdown: what state its replica is in, and who may use it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::registry::Registry;
use proto::placement::{FIRST_DATA_SHARD, Placement};
use proto::wire::node_server::NodeServer;
use proto::{Tokens, limits};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};

use crate::clock::Clock;
use crate::config::Config;
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::metrics::{Metrics, StateLabels};
use crate::replica::Replica;
use crate::upkeep;

/// Appends in flight, bytes as they came: what is decoded, encoded and waiting for the disk takes some times this.
pub(crate) const APPENDS_IN_FLIGHT_BYTES_MAX: usize = 128 << 20;

/// Time that a request waits for a repair.
const REPAIR_PATIENCE: Duration = Duration::from_secs(20);

/// How long a shutdown waits for appends in flight...
const APPENDS_PATIENCE: Duration = Duration::from_secs(3);
/// ...and then for the last flush, and for all that uses the databases.
const CLOSE_PATIENCE: Duration = Duration::from_secs(7);
/// How often it tells what it waits for.
const CLOSE_REPORT: Duration = Duration::from_secs(1);

/// One data directory, open. Implements the gRPC service [`proto::wire::node_server::Node`], for remote routers by
/// [`Node::serve`] and for those in this process by itself.
#[derive(Debug)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What the service and the upkeep share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) directory: DataDirectory,
    pub(crate) placement: Placement,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Arc<Clock>,
    state: watch::Sender<State>,
    /// Appends are refused: the disk has no space...
    pub(crate) is_full: AtomicBool,
    /// ...or the data has all that it may take.
    pub(crate) is_over_cap: AtomicBool,
    pub(crate) appends: Arc<Semaphore>,
    pub(crate) queries: Arc<Semaphore>,
    /// Nothing new is taken...
    pub(crate) stopping: CancellationToken,
    /// ...and then, when what was in flight is done, the upkeep ends.
    pub(crate) closing: CancellationToken,
}

/// What the replica is doing.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// It replays its log, waits for an election, or is being opened again.
    Starting,
    Serving(Arc<Replica>),
    /// It is being opened again because stored values are damaged. Requests wait.
    Repairing,
    /// Its log or engine has met a full disk: reads go on, and it is opened again when there is space.
    ReadOnly(Arc<Replica>),
    Failed(Arc<ReplicaError>),
    Stopped,
}

impl State {
    const NAMES: [&str; 6] = ["starting", "serving", "repairing", "read_only", "failed", "stopped"];

    fn name(&self) -> &'static str {
        let [starting, serving, repairing, read_only, failed, stopped] = Self::NAMES;
        match self {
            Self::Starting => starting,
            Self::Serving(_) => serving,
            Self::Repairing => repairing,
            Self::ReadOnly(_) => read_only,
            Self::Failed(_) => failed,
            Self::Stopped => stopped,
        }
    }
}

impl Shared {
    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits for the end of a repair, at most [`REPAIR_PATIENCE`], and returns the state.
    pub(crate) async fn state_after_repair(&self) -> State {
        let mut states = self.state.subscribe();
        let repaired = states.wait_for(|state| !matches!(state, State::Repairing));
        // The sender lives in `self`.
        let repaired = tokio::time::timeout(REPAIR_PATIENCE, repaired).await;
        repaired.ok().and_then(Result::ok).map_or(State::Repairing, |state| state.clone())
    }

    pub(crate) fn set_state(&self, state: State) {
        for name in State::NAMES {
            let gauge = self.metrics.replica_state.get_or_create_owned(&StateLabels { state: name });
            gauge.set(i64::from(name == state.name()));
        }
        tracing::info!(state = state.name(), "replica");
        self.state.send_replace(state);
    }

    pub(crate) async fn open_replica(&self) -> Result<Arc<Replica>, NodeError> {
        let clock = Arc::clone(&self.clock);
        Replica::open(&self.config, &self.directory, FIRST_DATA_SHARD, &self.metrics, clock).await
    }

    pub(crate) fn is_refusing_for_space(&self) -> bool {
        self.is_full.load(Ordering::Relaxed) || self.is_over_cap.load(Ordering::Relaxed)
    }
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
#[error("serving the node's gRPC: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

impl Node {
    /// Opens the data directory and starts the replica; [`Node::ready`] returns when it serves. Registers the node's metrics.
    ///
    /// # Errors
    /// [`NodeError`]: the directory is held by another process, cannot be written, or has an unknown format; or log or
    /// state cannot be read.
    pub async fn open(config: Config, registry: &mut Registry) -> Result<Arc<Self>, NodeError> {
        config.check()?;
        let directory = DataDirectory::open(&config.data_dir)?;
        let metrics = Metrics::register(registry);
        let clock = Arc::new(Clock::new(config.retention, metrics.clone()));
        let shared = Arc::new(Shared {
            config,
            directory,
            placement: Placement::single_shard(),
            metrics,
            clock,
            state: watch::Sender::new(State::Starting),
            is_full: AtomicBool::new(false),
            is_over_cap: AtomicBool::new(false),
            appends: Arc::new(Semaphore::new(APPENDS_IN_FLIGHT_BYTES_MAX)),
            queries: Arc::new(Semaphore::new(limits::QUERIES_AT_ONCE_MAX)),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
        });
        upkeep::watch_space(&shared);
        let replica = shared.open_replica().await?;
        let tasks = TaskTracker::new();
        upkeep::start(&shared, &tasks, replica);
        Ok(Arc::new(Self { shared, tasks }))
    }

    /// Returns when the replica serves for the first time; never, if it fails before: see [`Node::failed`].
    pub async fn ready(&self) {
        self.reached(|state| matches!(state, State::Serving(_)).then_some(())).await;
    }

    /// Whether reads and appends are answered at this moment. A full disk does not make a node unready: it answers reads. Requests
    /// wait during a repair.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.shared.state(), State::Serving(_) | State::Repairing | State::ReadOnly(_))
    }

    /// Returns when the replica has failed for good, with the reason: the process should say it and exit with an error.
    pub async fn failed(&self) -> Arc<ReplicaError> {
        self.reached(|state| match state {
            State::Failed(error) => Some(Arc::clone(error)),
            _ => None,
        })
        .await
    }

    async fn reached<T>(&self, wanted: impl Fn(&State) -> Option<T>) -> T {
        let mut states = self.shared.state.subscribe();
        loop {
            let found = wanted(&states.borrow_and_update());
            if let Some(found) = found {
                return found;
            }
            // The sender lives in `self.shared`: this returns only when there is news.
            if states.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Serves remote routers until `shutdown`; what is being answered then is finished.
    ///
    /// # Errors
    /// [`ServeError`] where the listener fails.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tokens: Option<Tokens>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let service = NodeServer::from_arc(self)
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        let guarded = InterceptedService::new(service, move |request: Request<()>| {
            let authorization = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
            match tokens.as_ref().map(|tokens| tokens.check(authorization)) {
                Some(Err(no_token)) => Err(Status::unauthenticated(no_token.to_string())),
                _ => Ok(request),
            }
        });
        // Answers are small or large, never worth waiting for more.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(Server::builder().add_service(guarded).serve_with_incoming_shutdown(incoming, shutdown).await?)
    }

    /// Refuses what comes, finishes what is in flight, flushes, and closes the data directory's files.
    ///
    /// What is not flushed, should the disk fail now, is in the log: the next start applies it again.
    pub async fn shutdown(&self) {
        let shared = &self.shared;
        shared.stopping.cancel();
        let all = u32::try_from(APPENDS_IN_FLIGHT_BYTES_MAX).unwrap_or(u32::MAX);
        let in_flight = tokio::time::timeout(APPENDS_PATIENCE, shared.appends.acquire_many(all)).await;
        if in_flight.is_err() {
            tracing::warn!(
                "appends were still in flight at the shutdown: their senders do not know whether they count"
            );
        }
        // The upkeep flushes and closes.
        shared.closing.cancel();
        self.tasks.close();
        match tokio::time::timeout(CLOSE_PATIENCE, self.closed()).await {
            Ok(()) => shared.directory.release(),
            Err(_elapsed) => {
                tracing::warn!("the databases are still in use after {CLOSE_PATIENCE:?}: not closed in order")
            }
        }
    }
}

impl Node {
    /// Returns when the upkeep has closed the databases; tells meanwhile what it waits for.
    async fn closed(&self) {
        while tokio::time::timeout(CLOSE_REPORT, self.tasks.wait()).await.is_err() {
            let queries = limits::QUERIES_AT_ONCE_MAX.saturating_sub(self.shared.queries.available_permits());
            tracing::info!(
                queries,
                "waiting for queries, flushes, compactions and administration that use the databases"
            );
        }
    }
}

impl Drop for Node {
    // Without a shutdown the upkeep would go on for ever.
    fn drop(&mut self) {
        self.shared.stopping.cancel();
        self.shared.closing.cancel();
    }
}
