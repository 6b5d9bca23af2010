//! Leaving out of a batch the definitions that a shard knows already.

use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, SeriesSamples};

use crate::partition::Partition;

/// The batch without what all of these partitions, which its samples go to, know.
pub(crate) fn strip(batch: &Batch, partitions: &[Arc<RwLock<Partition>>]) -> Batch {
    // What one partition lacks is kept; each is asked by itself, so that `apply` waits for none of them long.
    let mut unknown_stacks = vec![false; batch.dictionary.stacks.len()];
    let mut unknown_series = vec![false; batch.series.len()];
    for partition in partitions {
        let partition = partition.read();
        for (unknown, hash) in unknown_stacks.iter_mut().zip(batch.dictionary.stacks.keys()) {
            *unknown |= !partition.dictionary.stacks.contains_key(hash);
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
    Batch { tenant: batch.tenant.clone(), id: batch.id, dictionary, series }
}

/// Whether a stripped batch defines nothing that one of these partitions lacks.
pub(crate) fn defines_nothing(stripped: &Batch, partitions: &[Arc<RwLock<Partition>>]) -> bool {
    stripped.series.iter().all(|series| series.labels.is_none())
        && stripped.dictionary.locations.is_empty()
        && partitions.iter().all(|partition| partition.read().dictionary.has_attributes_of(&stripped.dictionary))
}
