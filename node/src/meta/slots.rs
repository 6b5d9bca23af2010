//! Division of the slots among shards, for a new epoch.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proto::placement::{Epoch, SLOTS};

/// Divides the slots evenly among `shards`: the numbers of slots of two shards differ by at most one. Of all even
/// divisions, the result is one that moves the fewest slots from the shards that have them in `previous`.
///
/// Returns the shard of each slot; an empty list if there is no shard, or if there are more shards than slots.
#[must_use]
pub fn divide_slots(previous: Option<&Epoch>, shards: &[u32]) -> Vec<u32> {
    let slots = usize::from(SLOTS);
    let mut kept: BTreeMap<u32, usize> = shards.iter().map(|&shard| (shard, 0)).collect();
    if kept.is_empty() || kept.len() > slots {
        return Vec::new();
    }
    let before = previous.map(Epoch::shard_of_slot).unwrap_or_default();
    for shard in before {
        if let Some(count) = kept.get_mut(shard) {
            *count += 1;
        }
    }
    // If the division leaves a remainder, the shards with the most slots get one slot more, because they need not move
    // it.
    let (each, remainder) = (slots / kept.len(), slots % kept.len());
    let mut by_size: Vec<(Reverse<usize>, u32)> = kept.iter().map(|(&shard, &count)| (Reverse(count), shard)).collect();
    by_size.sort_unstable();
    let quota = by_size.iter().zip(0..).map(|(&(_, shard), rank)| (shard, each + usize::from(rank < remainder)));
    let mut free: BTreeMap<u32, usize> = quota.collect();
    let mut keeps = |shard: &u32| {
        let free = free.get_mut(shard).filter(|free| **free > 0);
        free.map(|free| *free -= 1).is_some()
    };
    let mut division: Vec<Option<u32>> = before.iter().map(|shard| keeps(shard).then_some(*shard)).collect();
    division.resize(slots, None);
    // The other slots go to the shards in turn, so that neighbours are not in one shard.
    let mut others = Vec::new();
    while free.values().any(|free| *free > 0) {
        for (&shard, free) in free.iter_mut().filter(|(_, free)| **free > 0) {
            *free -= 1;
            others.push(shard);
        }
    }
    let mut others = others.into_iter();
    division.into_iter().filter_map(|kept| kept.or_else(|| others.next())).collect()
}
