//! Reads of a shard: which state a read may see, and the work on a blocking thread.
//!
//! # Invariant
//! A read without an index is served only after the leader has confirmed, with a majority, that it still leads. A read
//! with an index is served by any member that has applied this index.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::{Consistency, ReadAt, ReadPoint};
use storage_engine::SelectError;
use tokio::sync::OwnedRwLockReadGuard;
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::consensus::ConsensusError;
use crate::node::hosted::State;
use crate::node::replica::Replica;
use crate::node::service::failed;
use crate::node::service::refusal::unavailable;
use crate::node::shared::{REPAIR_PATIENCE, Shared};

/// A replica whose engine is open for reads. The engine stays open while this value exists.
struct Readable {
    replica: Arc<Replica>,
    /// True if consensus has stopped, because the disk is full.
    is_read_only: bool,
    of_shard: OwnedRwLockReadGuard<()>,
}

impl Shared {
    /// Returns the state that the other reads of a query see at least.
    pub(super) async fn read_point(&self, shard: u32, consistency: Consistency) -> Result<ReadPoint, Status> {
        let readable = self.readable(shard).await?;
        match consistency {
            Consistency::Stale if readable.is_for_others() => {
                Err(Status::unavailable("this member has damaged data: query another member of the shard"))
            }
            Consistency::Stale => Ok(readable.replica.read_point()),
            Consistency::Linearizable => {
                let applied_index = readable.linearize().await?;
                Ok(ReadPoint { applied_index, staleness: Some(std::time::Duration::ZERO) })
            }
        }
    }

    /// Waits until the engine of a shard has the state that the read must see. Then runs the query `answer` on a
    /// blocking thread. The second argument of `answer` is a function that returns true while the caller still waits.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        shard: u32,
        at: ReadAt,
        answer: impl FnOnce(&Replica, &(dyn Fn() -> bool + Sync)) -> Result<T, SelectError> + Send + 'static,
    ) -> Result<T, Status> {
        let readable = self.readable(shard).await?;
        match at.applied_index {
            None => drop(readable.linearize().await?),
            Some(index) => readable.replica.reach(index).await.map_err(|error| unavailable(&error))?,
        }
        let Readable { replica, of_shard, .. } = readable;
        // The permit comes last, so that no query of another shard waits for this shard's replica.
        let permit = Arc::clone(&self.queries).acquire_owned().await;
        let permit = permit.map_err(|closed| Status::unavailable(closed.to_string()))?;
        let caller = Caller::default();
        let has_gone = Arc::clone(&caller.has_gone);
        let answered = spawn_blocking(move || {
            // Lock and permit are held until the work is done, even if the caller has gone.
            let _held = (of_shard, permit);
            // Queries ask for each series, so this must be fast.
            let is_wanted = || !has_gone.load(Ordering::Relaxed);
            answer(&replica, &is_wanted).map_err(|error| select_status(error, &replica))
        });
        tokio::select! {
            biased;
            answered = answered => answered.map_err(|panic| Status::internal(panic.to_string()))?,
            // The caller is dropped, and the query stops.
            () = self.closing.cancelled() => Err(Status::unavailable("the node is stopping")),
        }
    }

    async fn readable(&self, shard: u32) -> Result<Readable, Status> {
        let hosted = self.hosted(shard)?;
        // This wait comes first, because a repair holds the lock for longer than a query may wait.
        self.state_after_repair(&hosted).await;
        // The state is read after this wait, because the upkeep holds the lock while it closes the replica.
        let of_shard = tokio::time::timeout(REPAIR_PATIENCE, Arc::clone(&hosted.queries).read_owned()).await;
        let of_shard = of_shard.map_err(|_elapsed| {
            Status::unavailable(format!(
                "shard {shard} is being closed or opened for more than {REPAIR_PATIENCE:?}: try again"
            ))
        })?;
        let readable = |replica, is_read_only| Readable { replica, is_read_only, of_shard };
        match hosted.state() {
            _ if self.stopping.is_cancelled() => Err(Status::unavailable("the node is stopping")),
            State::Starting | State::Repairing => {
                Err(Status::unavailable("the node is not ready yet: try again in a moment"))
            }
            State::Stopped => Err(Status::unavailable("the node has stopped")),
            State::Damaged(error) | State::Failed(error) => Err(failed(&error)),
            State::Serving(replica) => Ok(readable(replica, false)),
            State::ReadOnly(replica) => Ok(readable(replica, true)),
        }
    }
}

impl Readable {
    /// Returns true if the read should rather go to another member: this one has damaged data, and another one leads.
    fn is_for_others(&self) -> bool {
        let replica = &self.replica;
        replica.shard().damage().is_some() && !replica.is_leader() && replica.can_commit()
    }

    /// Waits until the engine has everything that was acknowledged. Returns the index that any member must have applied
    /// for such a read.
    async fn linearize(&self) -> Result<u64, Status> {
        let replica = &self.replica;
        if !self.is_read_only {
            match replica.linearize().await {
                // The disk is full, and the replica is about to become read-only.
                Err(ConsensusError::Failed(cause)) if cause.is_disk_full() && replica.is_alone() => {}
                linearized => return linearized.map_err(|error| unavailable(&error)),
            }
        }
        // Consensus has stopped. The engine of the only member has everything that was acknowledged. With several
        // members, another one might have more.
        if !replica.is_alone() {
            return Err(Status::unavailable("disk is full: query another member of the shard"));
        }
        Ok(replica.read_point().applied_index)
    }
}

/// Marker of a waiting caller. It is dropped when the caller no longer waits for the response, and the query then
/// stops.
#[derive(Debug, Default)]
struct Caller {
    has_gone: Arc<AtomicBool>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.has_gone.store(true, Ordering::Relaxed);
    }
}

fn select_status(error: SelectError, replica: &Replica) -> Status {
    match error {
        SelectError::BadRegex { .. }
        | SelectError::TooManyRegexes { .. }
        | SelectError::DroppedName { .. }
        | SelectError::GaugeSummed { .. }
        | SelectError::SelectsEverything => Status::invalid_argument(error.to_string()),
        SelectError::TooLarge { .. } | SelectError::TooManyGroups { .. } | SelectError::TooManyNodes { .. } => {
            Status::resource_exhausted(error.to_string())
        }
        SelectError::Cancelled => Status::cancelled(error.to_string()),
        // The damage is quarantined: the next query is served without the damaged values.
        SelectError::Engine(error) if error.is_damage() => {
            tracing::error!(%error, "a query found damage");
            Status::unavailable(format!("{error}: try again"))
        }
        SelectError::Engine(error) => failed(&replica.failure().report(error.into())),
    }
}
