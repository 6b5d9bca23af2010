//! Leaving out of a batch the definitions that a shard knows already.

use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, SeriesSamples};

use crate::partition::Partition;
use crate::vocabulary::Vocabulary;

/// The batch without what all of these partitions, which its samples go to, know.
pub(crate) fn strip(batch: &Batch, partitions: &[Arc<RwLock<Partition>>], vocabulary: &Vocabulary) -> Batch {
    let nodes: Vec<Option<u32>> = batch.dictionary.stacks.keys().map(|&hash| vocabulary.find_stack(hash)).collect();
    // What one partition lacks is kept; each is asked by itself, so that `apply` waits for none of them long.
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
    // The empty stack is never a reference.
    let dictionary = batch.dictionary.without_known(|stack| stack > 0 && !unknown_stacks[stack]);
    let strip_series = |(series, is_unknown): (&SeriesSamples, &bool)| {
        let labels = series.labels.as_ref().filter(|_| *is_unknown).cloned();
        SeriesSamples { fingerprint: series.fingerprint, labels, samples: series.samples.clone() }
    };
    let series = batch.series.iter().zip(&unknown_series).map(strip_series).collect();
    let Batch { tenant, id, retention_class, .. } = batch;
    Batch { tenant: tenant.clone(), id: *id, retention_class: *retention_class, dictionary, series }
}

/// Whether a stripped batch defines nothing that is not in memory already.
pub(crate) fn defines_nothing(stripped: &Batch, vocabulary: &Vocabulary) -> bool {
    stripped.series.iter().all(|series| series.labels.is_none())
        && stripped.dictionary.locations.is_empty()
        && vocabulary.dictionary.has_attributes_of(&stripped.dictionary)
}
