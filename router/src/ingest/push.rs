//! A push, from the body of the request to the acknowledgement. [`Pusher`] runs the steps one after the other.

mod earlier_epochs;
mod refusal_log;

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use proto::placement::Placement;
use proto::push_retries::{Definitions, NextAttempt, PAUSES, PushRetries};
use proto::{BatchId, Push, TenantId};

use self::earlier_epochs::Part;
use self::refusal_log::RefusalLog;
use crate::auth::tenants::Tenants;
use crate::connection::unread;
use crate::ingest::admission::{Admission, InFlight};
use crate::ingest::append::{Acknowledged, Failures, Round, Rounds, append};
use crate::ingest::decode::{decode, recognized};
use crate::ingest::error::{BodyError, PushError, days};
use crate::ingest::known_stacks::{KnownStacks, StackKey};
use crate::ingest::normalize::{Destination, normalize, now_ns};
use crate::ingest::place::{batch_id, place, random_id};
use crate::ingest::receive::{Arriving, Received, receive};
use crate::ingest::request::Head;
use crate::ingest::unpack::unpack;
use crate::nodes::Nodes;
use crate::planted::is_planted;

/// Number of bytes of a push over the tenant's rate that are read and dropped. A usual push is smaller, and its sender
/// keeps the connection.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

/// Longest time for which such a push is read.
const DISCARD_PATIENCE: Duration = Duration::from_secs(30);

/// Result of a push that is stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accepted {
    /// Number of samples that were stored.
    pub(crate) samples: u64,
    /// Number of profiles that were refused, while other profiles of the push were stored.
    pub(crate) rejected_profiles: u64,
    pub(crate) warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormatLabel {
    format: &'static str,
}

#[derive(Clone, Debug, Default)]
struct Metrics {
    pushes: Family<FormatLabel, Counter<u64, AtomicU64>>,
    refused: Family<FormatLabel, Counter<u64, AtomicU64>>,
    samples: Family<FormatLabel, Counter<u64, AtomicU64>>,
    rejected_profiles: Family<FormatLabel, Counter<u64, AtomicU64>>,
    inconsistent: Family<FormatLabel, Counter<u64, AtomicU64>>,
}

/// Runs the steps of every push. Cheap to clone; all clones share the limits and metrics.
#[derive(Clone, Debug)]
pub struct Pusher {
    nodes: Nodes,
    tenants: Tenants,
    admission: Admission,
    known_stacks: Arc<KnownStacks>,
    metrics: Arc<Metrics>,
    refusal_log: Arc<RefusalLog>,
    retry_pauses: &'static [Duration],
}

/// One run of the steps of a push. Several runs are needed if shards refuse their parts.
struct Attempt {
    /// Time at which the push arrived, in nanoseconds since 1970.
    arrived_ns: i64,
    /// ID of the push if the sender's retries cannot be recognized.
    own_id: BatchId,
    definitions: Definitions,
    /// Shards that have acknowledged their parts.
    acknowledged: Vec<u32>,
    /// Parts that were stored in other epochs; `None` if no shard was asked yet.
    stored: Option<BTreeSet<Part>>,
    /// True if the push counts against the limits of its tenant: in the first run.
    is_charged: bool,
}

/// A push that is ready to be appended.
struct Placed {
    first: Round,
    rounds: Rounds,
    accepted: Accepted,
    /// Stacks that the batches define.
    defined: Vec<StackKey>,
    /// ID of the push, and the parts of other epochs for which shards must be asked before anything is sent.
    unasked: Option<(BatchId, BTreeSet<Part>)>,
}

impl Pusher {
    /// Makes a pusher to these nodes. Adds its metrics to `registry`, with the prefix `varve_router`.
    #[must_use]
    pub fn new(nodes: Nodes, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        let registry = registry.sub_registry_with_prefix("varve_router");
        registry.register("pushes", "Pushes acknowledged", metrics.pushes.clone());
        registry.register("pushes_refused", "Pushes refused as a whole", metrics.refused.clone());
        registry.register("pushed_samples", "Samples acknowledged", metrics.samples.clone());
        registry.register(
            "rejected_profiles",
            "Profiles refused out of pushes that were accepted",
            metrics.rejected_profiles.clone(),
        );
        registry.register(
            "inconsistent_pushes",
            "Valid pushes that were not stored because of a fault of varve, which the log describes",
            metrics.inconsistent.clone(),
        );
        Self {
            nodes,
            tenants: Tenants::default(),
            admission: Admission::default(),
            known_stacks: Arc::default(),
            metrics: Arc::new(metrics),
            refusal_log: Arc::default(),
            retry_pauses: PAUSES,
        }
    }

    /// Keeps the limits of these tenants.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        Self { tenants, ..self }
    }

    /// Receives and stores a push. When this function returns `Ok`, the samples are durable and every query sees them.
    pub(crate) async fn push(&self, tenant: &TenantId, arriving: Arriving) -> Result<Accepted, PushError> {
        let Ok(head) = &arriving.head else { return self.steps(tenant, arriving).await };
        let format = head.format.name();
        let label = FormatLabel { format };
        let pushed = self.steps(tenant, arriving).await;
        match &pushed {
            Ok(accepted) => {
                self.metrics.pushes.get_or_create(&label).inc();
                self.metrics.samples.get_or_create(&label).inc_by(accepted.samples);
                self.metrics.rejected_profiles.get_or_create(&label).inc_by(accepted.rejected_profiles);
            }
            // The client went away, so nothing was refused.
            Err(PushError::Body(BodyError::Unreadable(_))) => {}
            Err(error) => {
                self.metrics.refused.get_or_create(&label).inc();
                // The function `inconsistent` has logged this error already, with more details.
                if !matches!(error, PushError::Inconsistent)
                    && let Some(suppressed) = self.refusal_log.admit(Instant::now())
                {
                    tracing::warn!(tenant = tenant.as_str(), format, %error, suppressed, "push refused");
                }
            }
        }
        pushed
    }

    /// Runs the steps of a push. Runs all steps but the first again, for the shards that refused their parts:
    ///
    /// - with all definitions, if a shard does not hold a stack that the cache lists. This happens if the shard dropped
    ///   the stack, or if another machine now has the shard.
    /// - with the node's placement, if that is another one and no shard can have stored its part.
    /// - after a pause, if the refusal is temporary.
    async fn steps(&self, tenant: &TenantId, mut arriving: Arriving) -> Result<Accepted, PushError> {
        // Checked before the push takes anything of the shared budgets.
        if let Err(exceeded) = self.tenants.admit_push(tenant) {
            unread::discard(&mut arriving.body, DISCARDED_BYTES_MAX, DISCARD_PATIENCE).await;
            return Err(exceeded.into());
        }
        let Received { head, body, mut in_flight } = receive(arriving, &self.admission).await?;
        let format = head.format.name();
        let request = Arc::new((head, body));
        let arrived_ns = now_ns();
        let own_id = random_id();
        let mut acknowledged = Acknowledged::default();
        let mut retries = PushRetries::new(self.retry_pauses, Instant::now());
        let (mut is_charged, mut stored) = (true, None);
        // All runs use the same placement, until the push is placed again.
        let mut placement = self.nodes.placement().await;
        loop {
            let this = self.clone();
            let tenant_id = tenant.clone();
            let request = Arc::clone(&request);
            let attempt = Attempt {
                arrived_ns,
                own_id,
                definitions: retries.definitions(),
                acknowledged: acknowledged.shards.clone(),
                stored: stored.clone(),
                is_charged,
            };
            is_charged = false;
            // Without a node, any placement is enough to refuse a faulty request.
            let assumed = placement.as_ref().map_or_else(|_| Arc::new(Placement::uniform(NonZeroU16::MIN)), Arc::clone);
            let placed;
            (in_flight, placed) = in_flight
                .run_blocking(move |in_flight| {
                    let (head, body) = &*request;
                    let destination = Destination { tenant: &tenant_id, placement: &assumed };
                    this.prepare(destination, head, body, &attempt, in_flight)
                })
                .await?;
            let Placed { first, rounds, accepted, defined, unasked } = placed?;
            let pinned = placement?;
            let failures;
            match earlier_epochs::stored(&self.nodes, &pinned, tenant, unasked).await {
                Ok(found) if !found.is_empty() => {
                    acknowledged.is_duplicate = true;
                    (stored, placement) = (Some(found), Ok(pinned));
                    continue;
                }
                Ok(none) => {
                    stored = stored.or(Some(none));
                    (in_flight, failures) = self.send(&pinned, first, rounds, in_flight, &mut acknowledged).await?;
                }
                Err(error) => failures = error.into(),
            }
            if failures.is_empty() {
                return self.finish(accepted, &defined, &acknowledged);
            }
            match retries.next(&failures.kinds(), !acknowledged.shards.is_empty(), Instant::now()) {
                NextAttempt::SendAgain(pause) => {
                    tokio::time::sleep(pause).await;
                    placement = Ok(pinned);
                }
                NextAttempt::PlaceAgain => {
                    placement = self.nodes.placement().await;
                    stored = None;
                }
                NextAttempt::Fail => return Err(failures.into()),
                NextAttempt::Inconsistent => {
                    return Err(self.inconsistent(tenant, format, &accepted, defined.len(), &failures));
                }
            }
        }
    }

    /// Runs the steps between the first and the last: unpack, decode, normalize, place. Also makes the first round of
    /// batches.
    fn prepare(
        &self,
        destination: Destination<'_>,
        head: &Head,
        body: &[u8],
        attempt: &Attempt,
        in_flight: &mut InFlight,
    ) -> Result<Placed, PushError> {
        let known = (attempt.definitions == Definitions::OfUnknownStacks).then_some(&*self.known_stacks);
        let message = unpack(body, head, in_flight)?;
        // Also a push that turns out to be invalid has its cost.
        if attempt.is_charged {
            self.tenants.charge_push(destination.tenant, message.len() as u64)?;
        }
        let normalized = decode(&message, &head.format)
            .and_then(|decoded| normalize(&decoded, message.len(), attempt.arrived_ns, destination, known))
            .map_err(|error| recognized(error, &message, &head.format))?;
        let mut push = normalized.push;
        let accepted = Accepted {
            samples: push.profiles.iter().map(|profile| profile.samples.len() as u64).sum(),
            rejected_profiles: push.rejected,
            warnings: push.warnings.clone(),
        };
        if attempt.is_charged {
            self.tenants.charge_samples(destination.tenant, accepted.samples);
        }
        let id = batch_id(destination.tenant, head, &message, push.has_own_times).unwrap_or(attempt.own_id);
        let (id, unasked) = if head.key.is_some() && !push.has_own_times {
            Self::in_epoch(&mut push, id, attempt, destination)
        } else {
            (id, None)
        };
        let id = if is_planted("new-ids") { random_id() } else { id };
        let mut parts = place(push, id, destination);
        parts.remove(&attempt.acknowledged);
        let mut rounds = Rounds::new(parts);
        let first = rounds.next_round(in_flight);
        Ok(Placed { first, rounds, accepted, defined: normalized.defined, unasked })
    }

    /// Prepares a push with a key and without times. Returns its ID in the epoch in which it arrives, and the parts of
    /// other epochs for which shards must be asked. If they were asked, removes what they have stored.
    fn in_epoch(
        push: &mut Push,
        id: BatchId,
        attempt: &Attempt,
        Destination { tenant, placement }: Destination<'_>,
    ) -> (BatchId, Option<(BatchId, BTreeSet<Part>)>) {
        let arrived_ns = attempt.arrived_ns;
        let unasked = match &attempt.stored {
            Some(stored) => {
                earlier_epochs::remove_stored(&mut push.profiles, stored, tenant, placement, arrived_ns);
                None
            }
            None => Some((id, earlier_epochs::parts(&push.profiles, tenant, placement, arrived_ns))),
        };
        let unasked = unasked.filter(|(_, parts)| !parts.is_empty());
        (earlier_epochs::id_in_epoch(id, earlier_epochs::epoch_at(placement, arrived_ns)), unasked)
    }

    /// Runs the last step: appends all parts, one round after the other. Returns the errors of all rounds.
    async fn send(
        &self,
        placement: &Placement,
        mut round: Round,
        mut rounds: Rounds,
        mut in_flight: InFlight,
        acknowledged: &mut Acknowledged,
    ) -> Result<(InFlight, Failures), PushError> {
        let mut failures = Failures::default();
        loop {
            append(&self.nodes, placement, round, acknowledged, &mut failures).await;
            if rounds.is_done() {
                return Ok((in_flight, failures));
            }
            let make = move |in_flight: &mut InFlight| {
                let round = rounds.next_round(in_flight);
                (rounds, round)
            };
            (in_flight, (rounds, round)) = in_flight.run_blocking(make).await?;
        }
    }

    /// Adds the stacks that the push defined to the cache, and logs samples that shards skipped as too old. If all
    /// samples were skipped, returns [`PushError::TooOld`].
    fn finish(
        &self,
        mut accepted: Accepted,
        defined: &[StackKey],
        acknowledged: &Acknowledged,
    ) -> Result<Accepted, PushError> {
        let &Acknowledged { samples_too_old, retention, is_duplicate, .. } = acknowledged;
        // A shard that already has a batch with this ID stores nothing of the new batch. The earlier batch may have had
        // other stacks.
        if samples_too_old == 0 && !is_duplicate {
            self.known_stacks.add(defined);
        }
        if samples_too_old > 0 {
            if samples_too_old == accepted.samples {
                return Err(PushError::TooOld { samples: samples_too_old, retention });
            }
            accepted.samples = accepted.samples.saturating_sub(samples_too_old);
            let kept = days(retention);
            accepted
                .warnings
                .push(format!("{samples_too_old} samples were skipped: they are older than the retention, {kept}"));
        }
        Ok(accepted)
    }

    /// Records that a shard is missing definitions although it received all of them. Logs it at the limited rate of
    /// refused pushes.
    fn inconsistent(
        &self,
        tenant: &TenantId,
        format: &'static str,
        accepted: &Accepted,
        stacks: usize,
        error: &Failures,
    ) -> PushError {
        self.metrics.inconsistent.get_or_create(&FormatLabel { format }).inc();
        let &Accepted { samples, rejected_profiles, .. } = accepted;
        if let Some(suppressed) = self.refusal_log.admit(Instant::now()) {
            tracing::error!(
                tenant = tenant.as_str(),
                format,
                samples,
                rejected_profiles,
                stacks,
                %error,
                suppressed,
                "a push that defines all its stacks was refused for missing definitions: this is a fault of varve"
            );
        }
        PushError::Inconsistent
    }
}

#[cfg(test)]
mod tests;
