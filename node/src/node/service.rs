//! Requests of routers: append, query, delete.
//!
//! Every refusal is a gRPC status with the fault and the remedy.

mod batch_parts;
mod grpc;
mod read;
pub(super) mod refusal;
mod storing;

use std::sync::Arc;
use std::time::Duration;

use proto::placement::Placement;
use proto::{
    AdministrationTask, Answer, Appended, Batch, BatchId, Consistency, Deleted, Deletion, KnownLocations, LocationPage,
    ReadAt, ReadPoint, Selection, SeriesAnswer, SeriesQuery, Shards, TenantId,
};
use storage_engine::{Outcome, StripError, check_deletion};
use tokio::sync::SemaphorePermit;
use tokio::task::spawn_blocking;
use tonic::{Code, Status};

use crate::consensus::{ConsensusError, Proposal};
use crate::error::ReplicaError;
use crate::host::planted::is_planted;
use crate::metrics::Refusal;
use crate::node::hosted::{Hosted, State};
use crate::node::replica::Replica;
use crate::node::retention::expired_before_ns;
use crate::node::service::batch_parts::{SampleTooLarge, is_small, split, without_older};
use crate::node::service::refusal::unavailable;
use crate::node::service::storing::Storing;
use crate::node::shared::{APPENDS_IN_FLIGHT_BYTES_MAX, Shared};
use crate::node::{Node, administration};

/// Longest time that a request waits until this node knows its placement. Nodes learn of a placement within some
/// milliseconds.
const PLACEMENT_PATIENCE: Duration = Duration::from_secs(1);

/// A refusal: its reason in the metrics, and the response.
pub(super) struct Refused(Refusal, Status);

impl Refused {
    fn invalid(text: String) -> Self {
        Self(Refusal::Invalid, Status::invalid_argument(text))
    }

    /// Returns the error of a batch that cannot be read. A router made the batch, so INVALID_ARGUMENT would be wrong,
    /// because it blames the sender of the profiles. Senders retry after INTERNAL, and succeed once an upgrade has
    /// brought router and node to one version.
    pub(super) fn unreadable(error: &dyn std::fmt::Display) -> Self {
        tracing::error!(%error, "the batch of a router cannot be read");
        let text = format!("the router's batch cannot be read: {error}: run node and router of the same version");
        Self(Refusal::Invalid, Status::internal(text))
    }
}

#[tonic::async_trait]
impl Shards for Node {
    type Error = Status;

    async fn placement(&self) -> Result<Placement, Status> {
        Ok(Placement::clone(&*self.shared.cluster.placement()?))
    }

    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Status> {
        let shared = Arc::clone(&self.shared);
        // A separate task: an append whose caller goes away still counts against the budget until it is done.
        let append = tokio::spawn(async move { append(&shared, shard, placement_epoch, batch).await });
        let appended = append.await.map_err(|panic| Status::internal(panic.to_string()))?;
        appended.map_err(|refused| self.shared.count(refused))
    }

    async fn holds_batch(
        &self,
        shard: u32,
        placement_epoch: u64,
        tenant: TenantId,
        id: BatchId,
    ) -> Result<bool, Status> {
        self.shared.check_leader(&*self.shared.hosted(shard)?)?;
        self.shared.check_placement(shard, placement_epoch).await?;
        let holds = move |replica: &Replica, _: &(dyn Fn() -> bool + Sync)| {
            Ok(replica.shard().engine().holds_batch(&tenant, id)?)
        };
        self.shared.read(shard, ReadAt { placement_epoch, applied_index: None }, holds).await
    }

    async fn read_point(
        &self,
        shard: u32,
        placement_epoch: u64,
        consistency: Consistency,
    ) -> Result<ReadPoint, Status> {
        if consistency == Consistency::Linearizable {
            self.shared.check_leader(&*self.shared.hosted(shard)?)?;
        }
        self.shared.check_placement(shard, placement_epoch).await?;
        self.shared.read_point(shard, consistency).await
    }

    async fn select(&self, shard: u32, at: ReadAt, selection: Selection) -> Result<Answer, Status> {
        self.shared.check_placement(shard, at.placement_epoch).await?;
        let select = move |replica: &Replica, is_wanted: &(dyn Fn() -> bool + Sync)| {
            replica.shard().engine().select_while(&selection, is_wanted)
        };
        self.shared.read(shard, at, select).await
    }

    async fn locations(
        &self,
        shard: u32,
        at: ReadAt,
        tenant: TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, Status> {
        self.shared.check_placement(shard, at.placement_epoch).await?;
        self.shared.read(shard, at, move |replica, _| Ok(replica.shard().engine().locations(&tenant, known))).await
    }

    async fn series(&self, shard: u32, at: ReadAt, query: SeriesQuery) -> Result<SeriesAnswer, Status> {
        self.shared.check_placement(shard, at.placement_epoch).await?;
        let read = move |replica: &Replica, is_wanted: &(dyn Fn() -> bool + Sync)| {
            replica.shard().engine().series_while(&query, is_wanted)
        };
        self.shared.read(shard, at, read).await
    }

    async fn delete(&self, shard: u32, placement_epoch: u64, deletion: Deletion) -> Result<Deleted, Status> {
        self.shared.check_leader(&*self.shared.hosted(shard)?)?;
        self.shared.check_placement(shard, placement_epoch).await?;
        let shared = Arc::clone(&self.shared);
        let delete = tokio::spawn(async move { delete(&shared, shard, deletion).await });
        delete.await.map_err(|panic| Status::internal(panic.to_string()))?
    }

    async fn administer(&self, shard: u32, task: AdministrationTask) -> Result<String, Status> {
        // A separate task: the work is completed even if the caller goes away.
        let shared = Arc::clone(&self.shared);
        let administer = tokio::spawn(async move { administration::run(&shared, shard, task).await });
        administer.await.map_err(|panic| Status::internal(panic.to_string()))?
    }
}

impl Shared {
    pub(super) fn hosted(&self, shard: u32) -> Result<Arc<Hosted>, Status> {
        let missing = || Status::not_found(format!("shard {shard} is not on this node: read the placement again"));
        self.shard(shard).ok_or_else(missing)
    }

    /// Refuses a request that only the leader can process if another member leads the shard, or probably does because
    /// this leader is cut off. This comes before all other checks: an old placement or a full disk of this node does
    /// not matter to the leader.
    fn check_leader(&self, hosted: &Hosted) -> Result<(), Status> {
        match hosted.serving() {
            Some(replica) if replica.is_cut_off() || !(replica.is_leader() || replica.is_alone()) => {
                Err(unavailable(&ConsensusError::NotLeader { leader: replica.leader() }))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a request to a shard that is not on this node, or that was chosen by another placement. The router then
    /// reads the placement again. If this node does not know the router's placement yet, waits for it for a moment.
    async fn check_placement(&self, shard: u32, placement_epoch: u64) -> Result<Arc<Hosted>, Status> {
        let hosted = self.hosted(shard)?;
        let mut states = self.cluster.state.subscribe();
        let known = async {
            while self.cluster.placement()?.epoch() < placement_epoch && states.changed().await.is_ok() {}
            self.cluster.placement()
        };
        let epoch = match tokio::time::timeout(PLACEMENT_PATIENCE, known).await {
            Ok(placement) => placement?.epoch(),
            Err(_elapsed) => self.cluster.placement()?.epoch(),
        };
        if placement_epoch != epoch && !is_planted("skip-epoch-check") {
            let text = format!("placement {placement_epoch} is not this node's, {epoch}: read the placement again");
            let details = proto::refusal::Refusal::Misplaced { epoch }.encode().into();
            return Err(Status::with_details(Code::FailedPrecondition, text, details));
        }
        Ok(hosted)
    }

    /// Counts a refusal in the metrics, and returns its response.
    pub(super) fn count(&self, Refused(reason, status): Refused) -> Status {
        self.metrics.refused(reason);
        status
    }

    /// Reserves `bytes` of the budget for appends in flight, until the permit is dropped. An append that is larger than
    /// the whole budget is accepted if no other append is in flight.
    pub(super) fn take_in(&self, bytes: usize) -> Result<SemaphorePermit<'_>, Refused> {
        let permits = u32::try_from(bytes.min(APPENDS_IN_FLIGHT_BYTES_MAX)).unwrap_or(u32::MAX);
        self.appends.try_acquire_many(permits).map_err(|_none_left| {
            let text = format!("{APPENDS_IN_FLIGHT_BYTES_MAX} bytes of appends are in flight: try again in a moment");
            Refused(Refusal::Busy, Status::resource_exhausted(text))
        })
    }

    /// Waits for the end of a repair of the shard, and returns its replica if it accepts appends. `bytes` is the size
    /// of the request in memory.
    async fn appendable(&self, hosted: &Hosted, bytes: usize) -> Result<Arc<Replica>, Refused> {
        // Requests to a shard in repair must not take the whole budget of the node.
        let bytes_max = self.sharers.part(APPENDS_IN_FLIGHT_BYTES_MAX as u64);
        let waits = match hosted.state() {
            State::Repairing => Some(hosted.wait_for_repair(bytes, bytes_max).ok_or_else(|| {
                let text = format!("shard {} is being repaired, and many appends wait: try again", hosted.number());
                Refused(Refusal::Busy, Status::resource_exhausted(text))
            })?),
            _ => None,
        };
        let state = self.state_after_repair(hosted).await;
        drop(waits);
        let not_ready = |text: &str| Refused(Refusal::NotReady, Status::unavailable(text));
        let full = || {
            let text = full_text(self.is_over_cap(), self.is_unrepaired());
            Refused(Refusal::DiskFull, Status::resource_exhausted(text))
        };
        match state {
            _ if self.stopping.is_cancelled() => Err(not_ready("the node is stopping: try again in a moment")),
            State::Starting | State::Repairing => Err(not_ready("the node is not ready yet: try again in a moment")),
            State::Stopped => Err(not_ready("the node has stopped")),
            State::Damaged(error) | State::Failed(error) => Err(Refused(Refusal::NotReady, failed(&error))),
            State::ReadOnly(replica) => Err(match replica.is_alone() {
                true => full(),
                false => of_other_members(full()),
            }),
            State::Serving(_) if self.is_full() || self.is_over_cap() => Err(full()),
            State::Serving(replica) => Ok(replica),
        }
    }
}

/// Returns the reason and the remedy of a refusal for lack of space. `is_unrepaired` is true if the engine has damaged
/// files that cannot be repaired: dropping data of that shard then frees no space.
fn full_text(is_over_cap: bool, is_unrepaired: bool) -> &'static str {
    match (is_over_cap, is_unrepaired) {
        (true, true) => {
            "disk is full: the data has reached its cap, and damaged files that cannot be repaired keep space; the \
             node's log names the damage: raise the cap on disk use, or restore the data directory from a backup"
        }
        (true, false) => {
            "disk is full: the data has reached its cap, and the oldest partitions are being dropped; if this \
             persists, raise the cap on disk use"
        }
        (false, _) => {
            "disk is full: free some space, or lower the cap on disk use; queries are served, and appends resume when \
             there is space"
        }
    }
}

/// Adds to a refusal that another member may lead the shard, because consensus has stopped on this one.
fn of_other_members(Refused(reason, status): Refused) -> Refused {
    let details = proto::refusal::Refusal::NotLeader { leader: None }.encode().into();
    Refused(reason, Status::with_details(status.code(), status.message(), details))
}

fn failed(error: &ReplicaError) -> Status {
    Status::unavailable(format!("the replica has failed: {error}"))
}

async fn append(shared: &Shared, shard: u32, placement_epoch: u64, mut batch: Batch) -> Result<Appended, Refused> {
    if is_planted("double-apply") {
        batch.id = None;
    }
    let misplaced = |status| Refused(Refusal::Misplaced, status);
    shared.check_leader(&*shared.hosted(shard).map_err(misplaced)?).map_err(|s| Refused(Refusal::Uncommitted, s))?;
    // The batch counts from now on, because it is in memory while the append waits for a placement or a repair.
    let bytes = batch.memory_bytes();
    let _in_flight = shared.take_in(bytes)?;
    let hosted = shared.check_placement(shard, placement_epoch).await.map_err(misplaced)?;
    let replica = shared.appendable(&hosted, bytes).await?;
    // After the wait for a repair, so that the policy is the newest that this node knows.
    let storing =
        Storing::of(&shared.cluster.state(), &batch.tenant).map_err(|status| Refused(Refusal::NotReady, status))?;
    let split = if is_small(&batch) {
        Ok(vec![batch])
    } else {
        spawn_blocking(move || split(batch)).await.map_err(panicked)?
    };
    // No retry can help: this sample is too large for any entry.
    let parts = split.map_err(|error: SampleTooLarge| Refused::invalid(error.to_string()))?;
    let storing = Arc::new(storing);
    let retention = storing.retention();
    let mut answer = Appended { duplicate: true, samples_too_old: 0, retention };
    for part in parts {
        let (part, too_old) = without_older(part, expired_before_ns(shared.clock.now_ns(), retention));
        answer.samples_too_old += too_old;
        // A part that has lost all its samples needs no entry.
        if too_old == 0 || !part.series.is_empty() {
            let outcome = append_part(&replica, &storing, part).await?;
            answer.duplicate &= outcome == Outcome::Duplicate;
            if let Outcome::Partial { samples_too_old } = outcome {
                answer.samples_too_old += samples_too_old;
            }
        }
    }
    Ok(answer)
}

/// Proposes a batch that fits into an entry, as the policy of its tenant wants it stored, and without the definitions
/// that the shard already has.
async fn append_part(replica: &Arc<Replica>, storing: &Arc<Storing>, batch: Batch) -> Result<Outcome, Refused> {
    let of = Arc::clone(replica);
    let storing = Arc::clone(storing);
    let strip = move || {
        let mut batch = storing.apply(batch).ok_or(StripError::Dangling)?;
        let engine = of.shard().engine();
        let (names, revision) = engine.dropped_labels(&batch.tenant);
        let drops = storing.label_drops(&batch.tenant, (&names, revision));
        let removed = engine.strip(&mut batch, storing.series_max())?;
        let batch = Arc::new(batch);
        Ok((drops, Proposal::append(Arc::clone(&batch)), batch, removed))
    };
    let stripped = spawn_blocking(strip).await.map_err(panicked)?;
    let (drops, proposal, batch, removed) = stripped.map_err(|error| match error {
        StripError::Dangling => dangling(),
        StripError::TooManyPartitions { .. } => Refused(Refusal::Invalid, Status::invalid_argument(error.to_string())),
        StripError::DictionaryFull { .. } | StripError::TooManySeries { .. } => {
            Refused(Refusal::Busy, Status::resource_exhausted(error.to_string()))
        }
        // The damage is quarantined: the next try succeeds.
        StripError::Engine(error) if error.is_damage() => {
            tracing::error!(%error, "an append found damage");
            Refused(Refusal::Damage, Status::unavailable(format!("{error}: send it again")))
        }
        StripError::Engine(error) => refused(ConsensusError::Failed(replica.failure().report(error.into()))),
    })?;
    // Before the first samples that the change may hold for.
    if let Some(drops) = drops {
        replica.propose(Proposal::drop_labels(drops)).await.map_err(refused)?;
    }
    let mut outcome = replica.propose(proposal).await.map_err(refused)?;
    if let (Outcome::Dangling, Some(removed)) = (outcome, removed) {
        // The shard has dropped definitions after they were stripped from the batch. If the batch came with all
        // definitions, it is proposed again with all of them, and this attempt cannot lack any.
        let whole = move || {
            let mut whole = Arc::unwrap_or_clone(batch);
            whole.restore(removed);
            whole.is_whole().then(|| Proposal::append(Arc::new(whole)))
        };
        if let Some(whole) = spawn_blocking(whole).await.map_err(panicked)? {
            outcome = replica.propose(whole).await.map_err(refused)?;
        }
    }
    if outcome == Outcome::Dangling { Err(dangling()) } else { Ok(outcome) }
}

/// Returns the refusal of a batch that lacks definitions. Nothing of the batch was stored. [`tonic::Code::Aborted`]
/// makes the router send the batch with all definitions.
fn dangling() -> Refused {
    Refused(Refusal::Dangling, Status::aborted(StripError::Dangling.to_string()))
}

async fn delete(shared: &Shared, shard: u32, deletion: Deletion) -> Result<Deleted, Status> {
    let replica = shared.appendable(&*shared.hosted(shard)?, 0).await.map_err(|Refused(_, status)| status)?;
    check_deletion(&deletion).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let names: Vec<String> = deletion.matchers.iter().map(|matcher| matcher.name.clone()).collect();
    match replica.propose(Proposal::delete(deletion)).await.map_err(|error| unavailable(&error))? {
        Outcome::Deleted { samples, windows } => Ok(Deleted { samples, windows }),
        Outcome::Undecidable { tier, matcher } => {
            let name = names.get(matcher).map_or("", String::as_str);
            let text = format!(
                "nothing was deleted: tier {} does not keep {name:?}, or it is an attribute of samples, and a deletion \
                 selects whole series by their labels; omit it, or delete times that are kept in a finer tier",
                tier.name()
            );
            Err(Status::invalid_argument(text))
        }
        outcome => Err(Status::internal(format!("unexpected outcome of a deletion: {outcome:?}"))),
    }
}

fn refused(error: ConsensusError) -> Refused {
    match &error {
        ConsensusError::Failed(cause) if cause.is_disk_full() => {
            let text = "disk is full: the outcome is unknown; retry later with the same batch ID";
            Refused(Refusal::DiskFull, Status::resource_exhausted(text))
        }
        _ => Refused(Refusal::Uncommitted, unavailable(&error)),
    }
}

fn panicked(error: tokio::task::JoinError) -> Refused {
    Refused(Refusal::Uncommitted, Status::internal(error.to_string()))
}

#[cfg(test)]
mod tests;
