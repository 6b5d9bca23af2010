//! Removal of definitions from a batch that the shard already has.

use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, Stripped};

use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;

/// Removes definitions from the batch that all partitions of its samples have. Returns `None` if a definition that was
/// removed before is missing in a partition.
pub(crate) fn strip(
    batch: &mut Batch,
    partitions: &[Arc<RwLock<Partition>>],
    shared: &TenantDictionary,
) -> Option<Stripped> {
    let nodes: Vec<Option<u32>> = batch.dictionary.stacks.keys().map(|&hash| shared.find_stack(hash)).collect();
    // A definition stays if any partition misses it. Partitions are locked one at a time, so that `apply` never waits
    // long.
    let mut unknown_stacks: Vec<bool> = nodes.iter().map(Option::is_none).collect();
    let mut unknown_series = vec![false; batch.series.len()];
    for partition in partitions {
        let partition = partition.read();
        for (unknown, node) in unknown_stacks.iter_mut().zip(&nodes) {
            *unknown |= node.is_some_and(|node| !partition.knows_stack(node));
        }
        for (unknown, series) in unknown_series.iter_mut().zip(&batch.series) {
            *unknown |= !partition.series.contains_key(&series.fingerprint);
        }
    }
    let dangles =
        batch.dictionary.stacks.iter().zip(&unknown_stacks).any(|((_, stack), unknown)| *unknown && stack.is_none())
            || batch.series.iter().zip(&unknown_series).any(|(series, unknown)| *unknown && series.labels.is_none());
    (!dangles).then(|| batch.strip(|stack| !unknown_stacks[stack], |series| !unknown_series[series]))
}

/// Returns whether a stripped batch defines only entries that are in memory already.
pub(crate) fn defines_nothing(stripped: &Batch, shared: &TenantDictionary) -> bool {
    stripped.series.iter().all(|series| series.labels.is_none())
        && stripped.dictionary.stacks.iter().all(|(_, stack)| stack.is_none_or(<[u32]>::is_empty))
        && shared.dictionary.has_attributes_of(&stripped.dictionary)
}
