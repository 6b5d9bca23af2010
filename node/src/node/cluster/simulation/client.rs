//! A client with its router. The search for leaders and the decisions about retries are the router's own code.
//!
//! A push whose outcome is unknown stays in the list of the client, which sends it again later with the same ID.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use proto::leader_search::{KnownLeaders, LeaderSearch, PROBE, Step};
use proto::meta::{Shard, State};
use proto::push_retries::{NextAttempt, PAUSES, PartFailure, PushRetries};
use testkit::random::Random;
use tokio::time::{Instant, sleep, timeout};

use crate::node::cluster::simulation::Sim;
use crate::node::cluster::simulation::planted::Planted;
use crate::node::cluster::simulation::push::{Push, Sample, shard_of};
use crate::node::cluster::simulation::service::Refused;

/// Longest time that one call waits for its response.
const CALL_PATIENCE: Duration = Duration::from_secs(12);
/// Interval at which the router asks a node for a newer state.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Number of pushes that each client makes after the faults.
const PUSHES_AFTER_FAULTS: u32 = 8;
/// Number of services.
const SERVICES: usize = 12;

/// A client and its router.
#[derive(Debug)]
pub(super) struct Client {
    sim: Arc<Sim>,
    id: u32,
    random: Mutex<Random>,
    view: Mutex<Arc<State>>,
    leaders: Mutex<KnownLeaders>,
    serial: Mutex<u32>,
    /// Pushes that are not acknowledged yet.
    pending: Mutex<Vec<(u64, Vec<Sample>)>>,
    pushed: Mutex<Vec<Sample>>,
}

impl Client {
    pub(super) fn new(sim: &Arc<Sim>, id: u32) -> Arc<Self> {
        Arc::new(Self {
            sim: Arc::clone(sim),
            id,
            random: Mutex::new(Random::new(sim.seed ^ u64::from(id) << 40)),
            view: Mutex::default(),
            leaders: Mutex::default(),
            serial: Mutex::new(0),
            pending: Mutex::default(),
            pushed: Mutex::default(),
        })
    }

    /// Number of the client in the network.
    fn address(&self) -> u64 {
        100 + u64::from(self.id)
    }

    /// Returns all samples that the client has pushed.
    pub(super) fn pushed(&self) -> Vec<Sample> {
        self.pushed.lock().clone()
    }

    /// Returns the number of pushes that are not acknowledged.
    pub(super) fn pending(&self) -> usize {
        self.pending.lock().len()
    }

    fn below(&self, end: usize) -> usize {
        self.random.lock().below(end)
    }

    /// Pushes until the faults end, then some more, and retries until everything is acknowledged.
    pub(super) async fn run(self: Arc<Self>) {
        let watched = tokio::spawn({
            let client = Arc::clone(&self);
            async move {
                loop {
                    // The watch of the first router hangs, so it learns of a new placement only by a refusal.
                    let is_new = client.view.lock().epochs.is_empty();
                    if client.id > 1 || is_new || client.sim.is_healed() {
                        client.refresh().await;
                    }
                    sleep(WATCH_INTERVAL).await;
                }
            }
        });
        let mut left = PUSHES_AFTER_FAULTS;
        while left > 0 || self.pending() > 0 {
            sleep(Duration::from_millis(10 + self.below(150) as u64)).await;
            let is_healed = self.sim.is_healed();
            if left > 0 && (!is_healed || self.below(2) == 0) {
                left -= u32::from(is_healed);
                self.make_push();
            }
            let pending = self.pending();
            if pending == 0 {
                continue;
            }
            // Usually the newest, and sometimes an old one.
            let chosen = if self.below(3) == 0 { self.below(pending) } else { pending - 1 };
            let (id, samples) = self.pending.lock()[chosen].clone();
            if self.push(id, &samples).await {
                self.pending.lock().retain(|(known, _)| *known != id);
            } else {
                self.sim.oracle.count(|counts| counts.unknown += 1);
            }
        }
        watched.abort();
    }

    fn make_push(&self) {
        let serial = {
            let mut serial = self.serial.lock();
            *serial += 1;
            *serial
        };
        let now_ns = self.sim.wall_ns();
        let samples: Vec<Sample> = (0..1 + self.below(3) as u32)
            .map(|number| Sample {
                client: self.id,
                serial,
                number,
                service: self.below(SERVICES) as u32,
                time_ns: now_ns + (self.below(6_000) as i64 - 4_000) * 1_000_000,
            })
            .collect();
        self.pushed.lock().extend(&samples);
        self.pending.lock().push((u64::from(self.id) << 32 | u64::from(serial), samples));
    }

    /// Asks a node for its state.
    async fn refresh(&self) {
        let nodes = self.sim.initial.len();
        let node = self.sim.initial[self.below(nodes)];
        let asked = async {
            self.sim.network.carry(self.address(), node).await?;
            let state = self.sim.running(node)?.cluster.state();
            self.sim.network.carry(node, self.address()).await?;
            Some(state)
        };
        if let Some(state) = asked.await
            && self.view.lock().revision < state.revision
        {
            *self.view.lock() = state;
        }
    }

    /// Sends a push to its shards. Returns true if all of them acknowledge it.
    async fn push(&self, id: u64, samples: &[Sample]) -> bool {
        let mut retries = PushRetries::new(PAUSES, now());
        let mut acknowledged = BTreeSet::new();
        loop {
            let view = Arc::clone(&self.view.lock());
            let Some(placement) = view.placement() else { return false };
            let epoch = placement.epoch();
            let mut parts: BTreeMap<u32, Push> = BTreeMap::new();
            for sample in samples {
                let part = parts.entry(shard_of(&placement, sample)).or_insert(Push { id, samples: Vec::new() });
                part.samples.push(*sample);
            }
            loop {
                let left = parts.iter().filter(|(shard, _)| !acknowledged.contains(*shard));
                let sent =
                    left.map(|(&shard, part)| async move { (shard, self.at_leader(shard, epoch, part.clone()).await) });
                let responses = join_all(sent.collect::<Vec<_>>()).await;
                let mut failures = Vec::new();
                for (shard, response) in responses {
                    match response {
                        Ok(()) => drop(acknowledged.insert(shard)),
                        Err(refused) => failures.push(refused.part_failure()),
                    }
                }
                if failures.is_empty() {
                    return true;
                }
                let is_misplaced = failures.contains(&PartFailure::Misplaced);
                self.sim.oracle.count(|counts| counts.misplaced += u64::from(is_misplaced));
                match retries.next(&failures, !acknowledged.is_empty(), now()) {
                    NextAttempt::SendAgain(pause) => sleep(pause).await,
                    NextAttempt::PlaceAgain => {
                        self.refresh().await;
                        break;
                    }
                    NextAttempt::Fail | NextAttempt::Inconsistent => return false,
                }
            }
        }
    }

    async fn call(&self, node: u64, shard: u32, epoch: u64, push: &Push) -> Result<(), Refused> {
        let called = async {
            let lost = Refused::Unavailable;
            self.sim.network.carry(self.address(), node).await.ok_or(lost)?;
            let running = self.sim.running(node).ok_or(lost)?;
            let appended = running.down.run_until_cancelled(running.append(shard, epoch, push)).await.ok_or(lost)?;
            self.sim.network.carry(node, self.address()).await.ok_or(lost)?;
            appended
        };
        timeout(CALL_PATIENCE, called).await.unwrap_or(Err(Refused::Unavailable))
    }

    /// Makes a call to the leader of a shard, as the router does.
    async fn at_leader(&self, shard: u32, epoch: u64, mut push: Push) -> Result<(), Refused> {
        let mut search = LeaderSearch::new(shard, true);
        // The outcome of an earlier attempt decides the result: the push may be stored.
        let mut may_be_stored = false;
        loop {
            let members = self.view.lock().shards.get(&shard).map(Shard::nodes).unwrap_or_default();
            let Some(node) = search.member(&members, &self.leaders.lock(), now()) else {
                return Err(Refused::Missing);
            };
            let began = now();
            let Err(refused) = self.call(node, shard, epoch, &push).await else {
                search.succeeded(node, &mut self.leaders.lock());
                return Ok(());
            };
            let failure = refused.call_failure();
            if LeaderSearch::may_be_silent(failure, now() - began) && !self.is_responding(node).await {
                self.leaders.lock().set_silent(node, now());
            }
            if failure.is_unknown() {
                may_be_stored = true;
                push.id += if self.sim.is(Planted::RetryWithoutId) { 1 << 56 } else { 0 };
            }
            let step = search.failed(node, failure, &mut self.leaders.lock(), now());
            match step {
                Step::CallNow => {}
                Step::CallAfter(pause) => sleep(pause).await,
                Step::Fail => return Err(if may_be_stored { Refused::Unknown } else { refused }),
            }
        }
    }

    /// Returns true if a node gives a sign of life in time.
    async fn is_responding(&self, node: u64) -> bool {
        let asked = async {
            self.sim.network.carry(self.address(), node).await?;
            self.sim.running(node)?;
            self.sim.network.carry(node, self.address()).await
        };
        timeout(PROBE, asked).await.is_ok_and(|sign| sign.is_some())
    }
}

/// Returns the time of the simulation.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
