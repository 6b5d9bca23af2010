//! The rules of a simulation. A broken rule becomes a violation, with the facts that show it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::node::cluster::simulation::push::{Push, Sample};
use crate::node::cluster::simulation::state::Contents;

/// Number of violations after which further ones are dropped.
const VIOLATIONS_MAX: usize = 20;

/// Everything that a simulation has seen.
#[derive(Debug, Default)]
pub(super) struct Oracle(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Digest of the entry at each index of each group.
    entries: BTreeMap<(u32, u64), u64>,
    /// Leaders of each group, by term.
    leaders: BTreeSet<(u32, u64, u64)>,
    /// Acknowledged batches of each shard, with the time of the acknowledgement.
    acknowledged: BTreeMap<u32, Vec<(Instant, u64)>>,
    violations: Vec<String>,
    counts: Counts,
    /// Members of each group as each node last knew them, for the trace.
    members: BTreeMap<(u64, u32), String>,
}

/// Numbers that show that a simulation has exercised something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) applied: u64,
    pub(super) acknowledged: u64,
    pub(super) duplicates: u64,
    pub(super) unknown: u64,
    pub(super) misplaced: u64,
    pub(super) freshness_checks: u64,
    pub(super) installed: u64,
    pub(super) leaders: u64,
    pub(super) crashes: u64,
    pub(super) lost_writes: u64,
    pub(super) partitions: u64,
    pub(super) moves: u64,
    pub(super) replaced_disks: u64,
    pub(super) epochs: u64,
}

impl Oracle {
    pub(super) fn violated(&self, violation: fmt::Arguments<'_>) {
        let seen = &mut *self.0.lock();
        let violation = violation.to_string();
        if seen.violations.len() < VIOLATIONS_MAX && !seen.violations.contains(&violation) {
            seen.violations.push(violation);
        }
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.0.lock().violations.clone()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.0.lock().counts);
    }

    pub(super) fn counts(&self) -> Counts {
        let seen = self.0.lock();
        Counts { leaders: seen.leaders.len() as u64, ..seen.counts }
    }

    /// Two members never apply different entries at one index.
    pub(super) fn applied(&self, node: u64, shard: u32, index: u64, digest: u64) {
        let known = {
            let seen = &mut *self.0.lock();
            seen.counts.applied += 1;
            *seen.entries.entry((shard, index)).or_insert(digest)
        };
        if known != digest {
            self.violated(format_args!("node {node} applies another entry at index {index} of shard {shard}"));
        }
    }

    /// Returns true if a node did not know these members of a group before.
    pub(super) fn knows(&self, node: u64, shard: u32, members: &str) -> bool {
        let known = self.0.lock().members.insert((node, shard), members.to_owned());
        known.as_deref() != Some(members)
    }

    /// Counts a leader. With openraft, a term may have several leaders, one after another: a vote for a larger node id
    /// outbids one of the same term.
    pub(super) fn leads(&self, node: u64, shard: u32, term: u64) {
        self.0.lock().leaders.insert((shard, term, node));
    }

    pub(super) fn acknowledged(&self, shard: u32, push: &Push) {
        let seen = &mut *self.0.lock();
        seen.counts.acknowledged += 1;
        seen.acknowledged.entry(shard).or_default().push((Instant::now(), push.id));
    }

    /// A state that is complete as of a time has every batch that was acknowledged before.
    pub(super) fn complete_as_of(&self, node: u64, shard: u32, time: Instant, contents: &Contents) {
        let missing = {
            let seen = &mut *self.0.lock();
            seen.counts.freshness_checks += 1;
            let before = seen.acknowledged.get(&shard).into_iter().flatten().filter(|(at, _)| *at < time);
            before.map(|&(_, id)| id).find(|&id| !contents.has(id))
        };
        if let Some(id) = missing {
            self.violated(format_args!("node {node} of shard {shard} is not as fresh as it says: no batch {id:x}"));
        }
    }

    /// Every acknowledged batch is in the final state of its shard.
    pub(super) fn has_acknowledged(&self, node: u64, shard: u32, contents: &Contents) {
        let missing: Vec<u64> = {
            let seen = self.0.lock();
            let all = seen.acknowledged.get(&shard).into_iter().flatten();
            all.map(|&(_, id)| id).filter(|&id| !contents.has(id)).collect()
        };
        if let Some(id) = missing.first() {
            let count = missing.len();
            self.violated(format_args!("node {node} of shard {shard} has lost {count} acknowledged batches: {id:x}"));
        }
    }

    /// The members of a shard have equal states.
    pub(super) fn are_equal(&self, shard: u32, states: &[(u64, Contents)]) {
        for pair in states.windows(2) {
            let [(one, first), (other, second)] = pair else { continue };
            if first != second {
                self.violated(format_args!("nodes {one} and {other} have different states of shard {shard}"));
            }
        }
    }

    /// Every sample of an acknowledged push is once in the shards, and in the shard of its epoch.
    pub(super) fn are_placed(
        &self,
        pushed: &[Sample],
        shards: &BTreeMap<u32, Contents>,
        shard_of: impl Fn(&Sample) -> u32,
    ) {
        let mut found: BTreeMap<Sample, Vec<u32>> = BTreeMap::new();
        for (&shard, contents) in shards {
            for (sample, times) in contents.samples() {
                (0..times).for_each(|_| found.entry(sample).or_default().push(shard));
            }
        }
        for sample in pushed {
            let expected = vec![shard_of(sample)];
            let at = found.get(sample).cloned().unwrap_or_default();
            if at != expected {
                self.violated(format_args!("{sample:?} is in the shards {at:?}, and not in {expected:?}"));
            }
        }
        for sample in found.keys().filter(|sample| pushed.binary_search(sample).is_err()) {
            self.violated(format_args!("{sample:?} was never pushed"));
        }
    }
}

/// The state machine of a member, whose entries the rules and the trace of a simulation see.
#[derive(Debug)]
pub(super) struct Observed<S> {
    pub(super) inner: Arc<S>,
    pub(super) sim: Arc<super::Sim>,
    pub(super) node: u64,
    pub(super) shard: u32,
    /// Cancelled when the node crashes: what it does afterwards never happened.
    pub(super) down: tokio_util::sync::CancellationToken,
}
