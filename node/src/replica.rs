//! One shard's replica: its log, its engine, and the consensus between them. It is opened and closed as a whole.

use std::sync::Arc;
use std::time::Duration;

use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use storage_engine::Outcome;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{self, LogDatabase, Raft};
use crate::directory::DataDirectory;
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};
use crate::proposal::Proposal;
use crate::shard::Shard;

/// See the module.
#[derive(Debug)]
pub(crate) struct Replica {
    raft: Raft,
    shard: Arc<Shard>,
    log: Arc<LogDatabase>,
    failure: Failure,
    clock: Arc<Clock>,
    /// Held while a proposal gets its time and its place, so that times never go backwards in the log.
    proposing: Mutex<()>,
}

/// Why a proposal has no outcome, or a read may not be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsensusError {
    #[error("{0}")]
    Failed(Arc<ReplicaError>),
    #[error("the replica is stopping")]
    Stopped,
    #[error("this node is not the leader of the shard; the leader is {}", known(*leader))]
    NotLeader { leader: Option<u64> },
    #[error(
        "the leader of the shard changed meanwhile: whether the entry counts is not known; send it again with its id"
    )]
    Unknown,
    #[error("too few members of the shard answer: {0}")]
    NoQuorum(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn known(leader: Option<u64>) -> String {
    leader.map_or_else(|| "not known yet".to_owned(), |node| format!("node {node}"))
}

impl Replica {
    /// Opens log and engine and joins the group; [`Replica::recovered`] returns when it serves.
    pub(crate) async fn open(
        config: &Config,
        directory: &DataDirectory,
        shard: u32,
        metrics: &Metrics,
        clock: Arc<Clock>,
    ) -> Result<Arc<Self>, NodeError> {
        let failure = Failure::new();
        let (log, shard) = {
            let (raft_path, shard_path) = (directory.raft(), directory.shard(shard));
            let (failure, metrics, config) = (failure.clone(), metrics.clone(), config.clone());
            let open = move || {
                let log = LogDatabase::open(&raft_path, config.node_id, failure.clone(), metrics.clone())?;
                let Config { head_bytes_max, cache_bytes, .. } = config;
                let cut_off = log.cut_off(shard)?.map(|log_id| log_id.index);
                metrics.first_log_index.set(gauge(cut_off.map_or(0, |index| index + 1)));
                let opened = Shard::open(shard, shard_path, head_bytes_max, cache_bytes, failure, metrics)?;
                let flushed = opened.flushed().0.map(|log_id| log_id.index);
                // Consensus would wait for the missing entries for ever.
                if cut_off > flushed {
                    let (cut_off, flushed) = (cut_off.unwrap_or_default(), flushed.unwrap_or_default());
                    return Err(ReplicaError::Behind { shard, flushed, cut_off }.into());
                }
                Ok::<_, NodeError>((Arc::new(log), Arc::new(opened)))
            };
            spawn_blocking(open).await.map_err(panicked)??
        };
        let raft = consensus::start(config.node_id, &config.advertise_address, &log, &shard).await?;
        let replica = Arc::new(Self { raft, shard, log, failure, clock, proposing: Mutex::new(()) });
        tokio::spawn(report_when_stopped(replica.raft.clone(), replica.failure.clone()));
        Ok(replica)
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Returns when everything that was acknowledged before the start is applied, and the clock has the time of the last entry;
    /// never, if the replica fails before.
    pub(crate) async fn recovered(&self) {
        if self.raft.wait_for_recovery(None).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.clock.start(self.shard.engine().clock_ns());
    }

    /// Proposes, and returns what applying it came to: it is then on a majority's disk.
    pub(crate) async fn propose(&self, proposal: Proposal) -> Result<Outcome, ConsensusError> {
        let (responder, outcome) = ProgressResponder::complete_only();
        {
            let _proposing = self.proposing.lock().await;
            let payload = proposal.at(self.clock.log_ns().unsigned_abs());
            self.raft.client_write_ff(payload, Some(responder)).await.map_err(|fatal| self.stopped(&fatal))?;
        }
        match outcome.await {
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(ClientWriteError::ForwardToLeader(to))) => Err(ConsensusError::NotLeader { leader: to.leader_id }),
            Ok(Err(_discarded)) => Err(ConsensusError::Unknown),
            Err(_dropped) => Err(self.stopped(&Fatal::Stopped)),
        }
    }

    /// Returns when a read sees everything that was acknowledged before.
    pub(crate) async fn linearize(&self) -> Result<(), ConsensusError> {
        // A single member is its own quorum: this asks nobody, and waits only for what is committed and not yet applied.
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_read_log_id) => Ok(()),
            Err(RaftError::Fatal(fatal)) => Err(self.stopped(&fatal)),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(to))) => {
                Err(ConsensusError::NotLeader { leader: to.leader_id })
            }
            Err(RaftError::APIError(error)) => Err(ConsensusError::NoQuorum(error.into())),
        }
    }

    fn stopped(&self, fatal: &Fatal<consensus::types::Types>) -> ConsensusError {
        match (self.failure.get(), fatal) {
            (Some(error), _) => ConsensusError::Failed(error),
            (None, Fatal::Stopped) => ConsensusError::Stopped,
            (None, fatal) => {
                ConsensusError::Failed(self.failure.report(ReplicaError::Consensus(fatal.to_string().into())))
            }
        }
    }

    /// Whether no other node has a vote: then everything that was acknowledged is in this engine, consensus or not.
    pub(crate) fn is_alone(&self) -> bool {
        self.shard.applied().is_ok_and(|(_, membership)| membership.voter_ids().count() == 1)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.is_leader()
    }

    /// Whether the engine has something to seal.
    pub(crate) async fn wants_flush(&self) -> bool {
        let shard = Arc::clone(&self.shard);
        let log_ns = self.clock.log_ns();
        let wants = move || shard.wants_flush(log_ns);
        // The engine's lock may be held for as long as a large write takes.
        spawn_blocking(wants).await.unwrap_or(false)
    }

    /// Flushes the engine, then has the log cut behind it.
    pub(crate) async fn flush(&self) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        self.blocking(move || shard.flush()).await?;
        self.cut().await
    }

    /// Seals, rolls up and compacts everything, then has the log cut behind it.
    pub(crate) async fn settle(&self) -> Result<(), Arc<ReplicaError>> {
        let shard = Arc::clone(&self.shard);
        self.blocking(move || shard.settle()).await?;
        self.cut().await
    }

    /// The last entry that was cut off the log.
    pub(crate) async fn cut_off(&self) -> Result<Option<u64>, Arc<ReplicaError>> {
        let (log, shard) = (Arc::clone(&self.log), self.shard.id());
        let asked = spawn_blocking(move || log.cut_off(shard)).await.map_err(panicked).and_then(|asked| asked);
        asked.map(|log_id| log_id.map(|log_id| log_id.index)).map_err(|error| self.failure.report(error))
    }

    async fn cut(&self) -> Result<(), Arc<ReplicaError>> {
        // Openraft cuts what is in a "snapshot": ours says up to where the engine has flushed. Fails only when stopped.
        self.raft
            .trigger()
            .snapshot()
            .await
            .map_err(|fatal| self.failure.report(ReplicaError::Consensus(fatal.to_string().into())))
    }

    /// Whether space of the log could be given back.
    pub(crate) fn is_reclaimable(&self) -> bool {
        self.log.is_reclaimable()
    }

    /// Gives the space of what was cut from the log back; returns when that is done, whoever began it.
    pub(crate) async fn reclaim(&self) -> Result<(), Arc<ReplicaError>> {
        let log = Arc::clone(&self.log);
        self.blocking(move || log.reclaim()).await
    }

    async fn blocking(
        &self,
        work: impl FnOnce() -> Result<(), ReplicaError> + Send + 'static,
    ) -> Result<(), Arc<ReplicaError>> {
        let done = spawn_blocking(work).await.map_err(panicked).and_then(|done| done);
        done.map_err(|error| self.failure.report(error))
    }

    /// Stops consensus: nothing is proposed, acknowledged or applied any more. The engine still answers.
    pub(crate) async fn stop(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "consensus did not stop in order");
        }
    }

    /// Closes the files; returns when nobody uses them any more, so that they can be opened again.
    pub(crate) async fn close(self: Arc<Self>) {
        self.stop().await;
        let (shard, log) = (self.shard.while_open(), self.log.while_open());
        // Closing writes: not in an async task.
        let close = move || {
            // A compaction may take minutes, and its thread holds the engine.
            self.shard.engine().stop_background_work();
            drop(self);
        };
        if let Err(error) = spawn_blocking(close).await {
            tracing::error!(%error, "closing the replica panicked");
        }
        // Queries that are being answered, and tasks of openraft that end a moment later, hold them.
        while shard.strong_count() + log.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Openraft may also stop for a reason that is not ours, for example a panic in it.
async fn report_when_stopped(raft: Raft, failure: Failure) {
    let mut metrics = raft.metrics();
    drop(raft);
    loop {
        let state = metrics.borrow_watched().running_state.clone();
        match state {
            Err(Fatal::Stopped) => return,
            Err(fatal) => {
                failure.report(ReplicaError::Consensus(fatal.to_string().into()));
                return;
            }
            Ok(()) => {}
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

fn panicked(error: tokio::task::JoinError) -> ReplicaError {
    ReplicaError::Consensus(error.into())
}
