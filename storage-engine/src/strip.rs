//! Leaving out of a batch the definitions that a shard knows already.

use std::sync::Arc;

use parking_lot::RwLock;
use proto::{Batch, Dictionary, Importer, Samples, SeriesSamples};

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
    let mut dictionary = Dictionary::default();
    let mut importer = Importer::new(&batch.dictionary);
    for (id, _) in (0..).zip(&unknown_stacks).skip(1).filter(|(_, unknown)| !**unknown) {
        importer.stack_reference(&mut dictionary, id);
    }
    let strip_series = |(series, is_unknown): (&SeriesSamples, &bool)| {
        let from = &series.samples;
        let samples = Samples {
            times_ns: from.times_ns.clone(),
            pairs: from.pairs.iter().map(|&pair| importer.pair(&mut dictionary, pair)).collect(),
            values: from.values.clone(),
            attribute_sets: from.attribute_sets.iter().map(|&set| importer.attributes(&mut dictionary, set)).collect(),
        };
        let labels = series.labels.as_ref().filter(|_| *is_unknown).cloned();
        SeriesSamples { fingerprint: series.fingerprint, labels, samples }
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
