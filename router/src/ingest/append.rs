//! Append: the last step of a push. Sends each batch to its shard, which acknowledges the batch when it is durable.
//!
//! Batches are sent in rounds, and the batches of one round are sent at the same time. A small push has one round.

use std::fmt;
use std::time::Duration;

use proto::Batch;
use proto::placement::Placement;
use proto::push_retries::PartFailure;
use tokio::sync::OwnedSemaphorePermit;

use crate::ingest::admission::InFlight;
use crate::ingest::error::PushError;
use crate::ingest::place::Parts;
use crate::nodes::{Nodes, NodesError};

/// Largest size of all batches of one round, in bytes. It is a quarter of the budget that a node has for the appends of
/// all routers. The parts of one push would otherwise exhaust this budget, and refuse each other, also on every retry.
const ROUND_BYTES_MAX: usize = 32 << 20;

/// Batches that are sent at the same time. The first batch of a round may have any size.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) batches: Vec<(u32, Batch)>,
    bytes: usize,
    /// Permits for the bytes of all batches except the first.
    reserved: Vec<OwnedSemaphorePermit>,
}

/// Makes the rounds of one push.
#[derive(Debug)]
pub(crate) struct Rounds {
    parts: Parts,
    /// A batch that did not fit into the last round.
    held: Option<(u32, Batch)>,
}

impl Rounds {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts, held: None }
    }

    /// Makes the batches of the next round; none if all parts are sent. The first batch needs no budget: a push of one
    /// service has one batch, too. All others are counted as in flight, and wait for a later round if the budget has no
    /// free bytes.
    pub(crate) fn next_round(&mut self, in_flight: &InFlight) -> Round {
        let mut round = Round::default();
        while let Some((shard, batch)) = self.held.take().or_else(|| self.parts.next_batch()) {
            // The size of an only batch does not matter.
            let is_only = round.batches.is_empty() && self.parts.is_empty();
            let bytes = if is_only { 0 } else { batch.memory_bytes() };
            if !round.batches.is_empty() {
                let fits = round.bytes + bytes <= ROUND_BYTES_MAX;
                let Some(reserved) = fits.then(|| in_flight.reserve(bytes)).flatten() else {
                    self.held = Some((shard, batch));
                    break;
                };
                round.reserved.push(reserved);
            }
            round.bytes += bytes;
            round.batches.push((shard, batch));
        }
        round
    }

    pub(crate) fn is_done(&self) -> bool {
        self.held.is_none() && self.parts.is_empty()
    }
}

/// Responses of the shards that have appended their batches.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Numbers of the shards that acknowledged their batch.
    pub(crate) shards: Vec<u32>,
    /// Number of samples that shards skipped because the samples are older than `retention`.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
    /// True if a shard already had a batch with the same ID. That shard then stored no definition of this batch.
    pub(crate) is_duplicate: bool,
}

/// Errors of the shards that did not append their batches, in the order of the shards.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<NodesError>);

impl Failures {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the kinds of the errors, for the decision about retries.
    pub(crate) fn kinds(&self) -> Vec<PartFailure> {
        self.0.iter().map(NodesError::part_failure).collect()
    }
}

impl From<NodesError> for Failures {
    fn from(error: NodesError) -> Self {
        Self(vec![error])
    }
}

impl From<Failures> for PushError {
    /// Returns the first error; if a shard has another fault than missing definitions, the first of these faults.
    fn from(Failures(mut errors): Failures) -> Self {
        let first = errors.iter().position(|error| !error.is_dangling()).unwrap_or(0);
        // Without an error, nothing has failed.
        if errors.is_empty() { Self::Inconsistent } else { Self::Nodes(errors.swap_remove(first)) }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Appends the batches of one round. All shards have succeeded or failed when this function returns. The batches that
/// `acknowledged` lists are then durable, and every query sees them. The others may be sent again with the same ID.
pub(crate) async fn append(
    nodes: &Nodes,
    placement: &Placement,
    round: Round,
    acknowledged: &mut Acknowledged,
    failures: &mut Failures,
) {
    for (shard, appended) in nodes.append(placement, round.batches).await {
        match appended {
            Ok(appended) => {
                acknowledged.shards.push(shard);
                acknowledged.samples_too_old += appended.samples_too_old;
                acknowledged.retention = appended.retention;
                acknowledged.is_duplicate |= appended.duplicate;
            }
            Err(error) => failures.0.push(error),
        }
    }
    drop(round.reserved);
}
