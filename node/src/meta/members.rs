//! Proposal of new shards: the members of each, and the member that creates its Raft group.

use std::collections::BTreeMap;

use proto::meta::{Member, Node, Shard, State};
use proto::placement::FIRST_DATA_SHARD;

/// Number of members of a shard, if there are enough nodes.
pub const REPLICAS: usize = 3;

/// Proposes `count` new shards, with the next numbers. Equal states give equal proposals.
///
/// A shard has [`REPLICAS`] members, or one on each node if there are fewer nodes. Its members are in different zones
/// as far as possible. Among the nodes of the best zones, those with the fewest replicas are chosen, of old and new
/// shards together. The creator is the member that created the fewest shards, because it usually stays the leader.
#[must_use]
pub fn propose_shards(state: &State, count: u32) -> Vec<Shard> {
    let mut loads = Loads::of(state);
    let first = state.shards.keys().next_back().map_or(FIRST_DATA_SHARD, |last| last + 1);
    (first..).take(count as usize).filter_map(|number| loads.next_shard(state, number)).collect()
}

/// Numbers of replicas and of created shards of each node.
#[derive(Default)]
struct Loads {
    replicas: BTreeMap<u64, usize>,
    created: BTreeMap<u64, usize>,
}

impl Loads {
    fn of(state: &State) -> Self {
        let mut loads = Self::default();
        state.shards.values().for_each(|shard| loads.add(shard));
        loads
    }

    fn add(&mut self, shard: &Shard) {
        // A replica that is moving counts at both nodes.
        for member in shard.nodes() {
            *self.replicas.entry(member).or_default() += 1;
        }
        *self.created.entry(shard.creator).or_default() += 1;
    }

    /// Proposes one shard, and counts it; `None` if there is no node.
    fn next_shard(&mut self, state: &State, number: u32) -> Option<Shard> {
        let load = |of: &BTreeMap<u64, usize>, node: u64| of.get(&node).copied().unwrap_or_default();
        let mut chosen: Vec<&Node> = Vec::new();
        while chosen.len() < REPLICAS {
            let free = state.nodes.values().filter(|node| chosen.iter().all(|chosen| chosen.id != node.id));
            let in_zone = |node: &Node| chosen.iter().filter(|chosen| chosen.zone == node.zone).count();
            let cost = |node: &&Node| (in_zone(node), load(&self.replicas, node.id), node.id);
            let Some(best) = free.min_by_key(cost) else { break };
            chosen.push(best);
        }
        let creator = chosen.iter().min_by_key(|node| (load(&self.created, node.id), node.id))?.id;
        let mut members: Vec<Member> =
            chosen.iter().map(|node| Member { node: node.id, directory: node.directory }).collect();
        members.sort_unstable();
        let shard = Shard { number, members, target: Vec::new(), leaving: Vec::new(), creator, is_created: false };
        self.add(&shard);
        Some(shard)
    }
}
