//! The faults of a simulation, and the administrator's commands during them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use proto::meta::{Command, DirectoryId, Member};
use testkit::random::Random;
use tokio::time::{Instant, sleep};

use crate::consensus::simulated_log::{Disk, DiskFaults};
use crate::meta::propose_epoch;
use crate::node::cluster::simulation::Sim;
use crate::node::cluster::simulation::node::{Running, Storage};
use crate::node::cluster::simulation::planted::Planted;

/// Number of the administrator in the network.
const ADMINISTRATOR: u64 = 90;
/// Numbers of the clients in the network.
const CLIENTS: RangeInclusive<u64> = 101..=103;
/// Least time from now to the begin of a new epoch, in nanoseconds.
const EPOCH_LEAD_NS: i64 = 16_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;

/// The source of faults, and the disks of all nodes.
pub(super) struct Faults {
    sim: Arc<Sim>,
    random: Random,
    storages: BTreeMap<u64, Arc<Storage>>,
    /// The node whose disk is replaced, and when; `None` if no disk is replaced, or if it is replaced already.
    to_replace: Option<(u64, Instant)>,
}

/// Returns the identity of the `number`-th disk of a node.
fn directory(node: u64, number: u64) -> [u8; 16] {
    (u128::from(node) << 64 | u128::from(number)).to_be_bytes()
}

impl Faults {
    /// Makes a disk for each node, and starts all nodes.
    pub(super) fn start(sim: &Arc<Sim>) -> Self {
        let mut random = Random::new(sim.seed ^ 0xFA17);
        let storages: BTreeMap<u64, Arc<Storage>> =
            sim.initial.iter().map(|&node| (node, Self::new_storage(sim, node, 1))).collect();
        for (&node, storage) in &storages {
            sim.set_disk(node, storage);
            drop(Running::start(sim, node, Arc::clone(storage)));
        }
        let is_replaced = random.chance(if sim.is(Planted::InitializeOnEmpty) { 90 } else { 40 });
        let node = sim.initial[random.below(sim.initial.len())];
        let at = Instant::now() + Duration::from_millis(6_000 + random.next_u64() % 10_000);
        Self { sim: Arc::clone(sim), random, storages, to_replace: is_replaced.then_some((node, at)) }
    }

    fn new_storage(sim: &Sim, node: u64, number: u64) -> Arc<Storage> {
        let faults = DiskFaults {
            forgets_votes: sim.is(Planted::VoteNotPersisted),
            skips_syncs: sim.is(Planted::AckBeforeSync),
        };
        Storage::new(Disk::new(directory(node, number), faults))
    }

    /// Makes faults until `end`.
    pub(super) async fn run(&mut self, end: Instant) {
        while Instant::now() < end {
            sleep(Duration::from_millis(100 + self.random.next_u64() % 1200)).await;
            if let Some((node, at)) = self.to_replace.filter(|(_, at)| *at <= Instant::now()) {
                self.to_replace = None;
                self.replace_disk(node);
                self.sim.trace.event(format_args!("the disk of node {node} is replaced, due {:?} ago", at.elapsed()));
                continue;
            }
            self.next_fault();
        }
    }

    /// Ends all faults: all nodes run, and messages and syncs are fast.
    pub(super) fn heal(&self) {
        self.sim.network.heal();
        for (&node, storage) in &self.storages {
            *storage.sync_ms.lock() = (1, 10);
            if self.sim.running(node).is_none() {
                drop(Running::start(&self.sim, node, Arc::clone(storage)));
            }
        }
    }

    fn node(&mut self) -> u64 {
        self.sim.initial[self.random.below(self.sim.initial.len())]
    }

    fn milliseconds(&mut self, least: u64, spread: u64) -> Duration {
        Duration::from_millis(least + self.random.next_u64() % spread)
    }

    fn next_fault(&mut self) {
        match self.random.below(20) {
            0..4 => {
                let node = self.node();
                let down = self.milliseconds(50, 4_000);
                self.crash(node, down);
            }
            // All nodes at once, as in a power cut.
            4 => {
                for node in self.sim.initial.clone() {
                    let down = self.milliseconds(50, 1_500);
                    self.crash(node, down);
                }
            }
            5..10 => self.partition(),
            10..12 => self.degrade(),
            12 => {
                let node = self.node();
                let storage = Arc::clone(&self.storages[&node]);
                let (shortest, lasts) = (self.milliseconds(20, 600), self.milliseconds(500, 4_000));
                self.sim.trace.event(format_args!("syncs of node {node} take {shortest:?} or more"));
                let shortest = u64::try_from(shortest.as_millis()).expect("a short time");
                *storage.sync_ms.lock() = (shortest, shortest);
                tokio::spawn(async move {
                    sleep(lasts).await;
                    *storage.sync_ms.lock() = (1, 10);
                });
            }
            13 => {
                let node = self.node();
                let jump_ns = (self.random.next_u64() % 20_000_000_000) as i64 - 10_000_000_000;
                self.sim.jump(node, jump_ns);
            }
            14..18 => self.move_member(),
            _ => self.add_epoch(),
        }
    }

    /// Crashes a node, and starts it again later.
    fn crash(&mut self, node: u64, down: Duration) {
        let Some(running) = self.sim.running(node) else { return };
        let storage = Arc::clone(&self.storages[&node]);
        // Half of the crashes lose all that is not synced.
        let kept = if self.random.chance(50) { 0 } else { self.random.below(storage.disk.unsynced() + 1) };
        running.crash(kept);
        let sim = Arc::clone(&self.sim);
        tokio::spawn(async move {
            sleep(down).await;
            // A later fault may have replaced the disk, and started the node.
            if sim.running(node).is_none() && !sim.is_healed() && sim.is_disk_of(node, &storage) {
                drop(Running::start(&sim, node, storage));
            }
        });
    }

    /// Cuts one node, or one direction between two nodes, for a while.
    fn partition(&mut self) {
        self.sim.oracle.count(|counts| counts.partitions += 1);
        let (one, kind) = (self.node(), self.random.below(4));
        let others: Vec<u64> = self.sim.initial.iter().copied().filter(|&node| node != one).collect();
        let other = others[self.random.below(others.len())];
        let lasts = self.milliseconds(300, 5_000);
        let mut pairs = Vec::new();
        for &node in self.sim.initial.iter().filter(|&&node| node != one) {
            match kind {
                0 => pairs.extend([(one, node), (node, one)]),
                1 => pairs.push((one, node)),
                2 => pairs.push((node, one)),
                _ if node == other => pairs.extend([(one, node), (node, one)]),
                _ => {}
            }
        }
        self.sim.trace.event(format_args!("cut {pairs:?} for {lasts:?}"));
        self.fault(pairs, lasts, |faults| faults.is_cut = true, |faults| faults.is_cut = false);
    }

    /// Makes the network slow and lossy for a while. Messages arrive twice.
    fn degrade(&mut self) {
        let (loss, slow_ms) = (self.random.below(30), 1 + self.random.next_u64() % 400);
        let lasts = self.milliseconds(500, 5_000);
        let mut pairs = Vec::new();
        for &from in &self.sim.initial {
            let outside = std::iter::once(ADMINISTRATOR).chain(CLIENTS);
            pairs.extend(outside.flat_map(|caller| [(caller, from), (from, caller)]));
            pairs.extend(self.sim.initial.iter().filter(|&&to| to != from).map(|&to| (from, to)));
        }
        self.sim.trace.event(format_args!("loss of {loss} % and delays of {slow_ms} ms for {lasts:?}"));
        let begin = move |faults: &mut super::network::LinkFaults| {
            (faults.loss, faults.slow_ms, faults.duplicates) = (loss, slow_ms, 10);
        };
        self.fault(pairs, lasts, begin, |faults| (faults.loss, faults.slow_ms, faults.duplicates) = (0, 0, 0));
    }

    fn fault(
        &self,
        pairs: Vec<(u64, u64)>,
        lasts: Duration,
        begin: impl Fn(&mut super::network::LinkFaults),
        end: impl Fn(&mut super::network::LinkFaults) + Send + 'static,
    ) {
        for &(from, to) in &pairs {
            self.sim.network.change(from, to, &begin);
        }
        let sim = Arc::clone(&self.sim);
        tokio::spawn(async move {
            sleep(lasts).await;
            for (from, to) in pairs {
                sim.network.change(from, to, &end);
            }
        });
    }

    /// Replaces the disk of a node by an empty one, which the administrator accepts.
    fn replace_disk(&mut self, node: u64) {
        self.sim.oracle.count(|counts| counts.replaced_disks += 1);
        if let Some(running) = self.sim.running(node) {
            running.crash(0);
        }
        let storage = Self::new_storage(&self.sim, node, 2);
        self.sim.set_disk(node, &storage);
        self.storages.insert(node, Arc::clone(&storage));
        let identity = DirectoryId(u128::from_be_bytes(storage.disk.directory_id()));
        let accept = Command::AcceptDirectory { node, directory: identity };
        let down = self.milliseconds(500, 2_000);
        let sim = Arc::clone(&self.sim);
        tokio::spawn(async move {
            sleep(down).await;
            if sim.running(node).is_none() && sim.is_disk_of(node, &storage) {
                drop(Running::start(&sim, node, storage));
            }
        });
        self.propose(accept, usize::MAX);
    }

    /// Moves a replica of a random shard to a node without one.
    fn move_member(&mut self) {
        let state = self.sim.newest_state();
        let shards: Vec<_> = state.shards.values().collect();
        if shards.is_empty() {
            return;
        }
        let shard = shards[self.random.below(shards.len())];
        let wanted = shard.wanted();
        let from = wanted[self.random.below(wanted.len())].node;
        let free: Vec<u64> = state.nodes.keys().copied().filter(|&node| !shard.is_wanted(node)).collect();
        if free.is_empty() {
            return;
        }
        let node = free[self.random.below(free.len())];
        let to = Member { node, directory: DirectoryId(self.random.next_u64().into()) };
        // A command that is sent again later could bring back a replica that has left meanwhile.
        self.propose(Command::MoveMember { shard: shard.number, from, to }, 1);
    }

    fn add_epoch(&mut self) {
        let state = self.sim.newest_state();
        let all: Vec<u32> = state.shards.keys().copied().collect();
        if all.is_empty() || state.epochs.is_empty() {
            return;
        }
        let mut shards: Vec<u32> = all.iter().copied().filter(|_| self.random.chance(60)).collect();
        if shards.is_empty() {
            shards = all;
        }
        let begins_ns = ((self.sim.wall_ns() + EPOCH_LEAD_NS) / MINUTE_NS + 1) * MINUTE_NS;
        if let Ok(epoch) = propose_epoch(&state, &shards, begins_ns, &Default::default()) {
            self.propose(Command::AddEpoch(epoch), 3);
        }
    }

    /// Proposes a command through random nodes, until one has an answer.
    fn propose(&mut self, command: Command, attempts: usize) {
        let sim = Arc::clone(&self.sim);
        let mut random = Random::new(self.random.next_u64());
        tokio::spawn(async move {
            for _ in 0..attempts {
                let node = sim.initial[random.below(sim.initial.len())];
                let proposed = async {
                    sim.network.carry(ADMINISTRATOR, node).await?;
                    let running = sim.running(node)?;
                    let proposed = running.down.run_until_cancelled(running.propose(&command)).await?;
                    sim.network.carry(node, ADMINISTRATOR).await?;
                    Some(proposed)
                };
                let proposed = proposed.await;
                sim.trace.event(format_args!("{command:?} through node {node}: {proposed:?}"));
                if let Some(Ok(is_changed)) = proposed {
                    sim.oracle.count(|counts| match command {
                        Command::AddEpoch(_) => counts.epochs += u64::from(is_changed),
                        Command::MoveMember { .. } => counts.moves += u64::from(is_changed),
                        _ => {}
                    });
                    return;
                }
                sleep(Duration::from_millis(700)).await;
            }
        });
    }
}
