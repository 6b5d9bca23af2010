//! Removes definitions that the shard already has from a batch.

use std::collections::{BTreeMap, BTreeSet};

use proto::{Batch, LabelSet, Stripped, limits};

use crate::engine::Engine;
use crate::engine::apply::append::partition_or_replacement;
use crate::engine::apply::split::{self, Part};
use crate::engine::state::partitions::SharedPartition;
use crate::error::StripError;
use crate::memory::tenant_dictionary::TenantDictionary;

/// Removes from the batch the definitions that the shard already has, so that only new ones are proposed. Returns the
/// data that restores the batch, or `None` if the batch is still complete.
pub(crate) fn strip(engine: &Engine, batch: &mut Batch, series_max: usize) -> Result<Option<Stripped>, StripError> {
    let tenant = engine.store.state().tenants.number(&batch.tenant);
    let keys: Vec<_> = split::parts(tenant.unwrap_or_default(), batch).into_keys().collect();
    let partitions = keys.len();
    let partitions_max = limits::BATCH_PARTITIONS_MAX;
    if partitions > partitions_max {
        return Err(StripError::TooManyPartitions { partitions, partitions_max });
    }
    let partition = |&key| if tenant.is_some() { partition_or_replacement(engine, key) } else { Ok(None) };
    let partitions = keys.iter().map(partition).collect::<Result<Vec<_>, _>>()?;
    let known: Vec<_> = partitions.iter().cloned().collect::<Option<_>>().unwrap_or_default();
    let shared = engine.store.tenant_dictionary(tenant.unwrap_or_default());
    let removed = if known.is_empty() {
        if !batch.is_whole() {
            return Err(StripError::Dangling);
        }
        None
    } else {
        // A partition that replaced a damaged one lacks stacks that other replicas have. A reference that is unique
        // here may not be unique there.
        let state = engine.store.state();
        let keeps_stacks = keys.iter().any(|&key| state.damage.newest_replaced_file(key).is_some());
        drop(state);
        Some(remove_known(batch, &known, &shared.read(), keeps_stacks).ok_or(StripError::Dangling)?)
    };
    if batch.series.iter().any(|series| series.labels.is_some()) {
        // The samples are still the same, so the parts are in the order of `partitions`.
        let parts = split::parts(tenant.unwrap_or_default(), batch);
        for (parts, partition) in parts.values().zip(&partitions) {
            check_series(parts, partition.as_ref(), series_max)?;
        }
    }
    let dictionaries = &engine.store.shares().dictionaries;
    let bytes_max = dictionaries.bytes_max();
    if dictionaries.reaches(bytes_max) && (removed.is_none() || !defines_nothing(batch, &shared.read())) {
        return Err(StripError::DictionaryFull { bytes: dictionaries.bytes_of_all(), bytes_max });
    }
    Ok(removed)
}

/// Removes the definitions that every partition of the batch's samples has, or only those of series if `keeps_stacks`.
/// Returns `None` if the batch omits a definition that must be in the entry.
fn remove_known(
    batch: &mut Batch,
    partitions: &[SharedPartition],
    shared: &TenantDictionary,
    keeps_stacks: bool,
) -> Option<Stripped> {
    let nodes: Vec<Option<u32>> = batch.dictionary.stacks.keys().map(|&hash| shared.find_stack(hash)).collect();
    // A definition stays if any partition lacks it. Partitions are locked one at a time, so that `apply` never waits
    // long.
    // The log refers to a stack by half of its hash.
    let is_unknown =
        |(node, &hash): (&Option<u32>, _)| keeps_stacks || node.is_none() || shared.shares_first_half(hash);
    let mut unknown_stacks: Vec<bool> = nodes.iter().zip(batch.dictionary.stacks.keys()).map(is_unknown).collect();
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

/// Returns whether a stripped batch contains no definition that is not in memory already.
fn defines_nothing(stripped: &Batch, shared: &TenantDictionary) -> bool {
    stripped.series.iter().all(|series| series.labels.is_none())
        && stripped.dictionary.stacks.iter().all(|(_, stack)| stack.is_none_or(<[u32]>::is_empty))
        && shared.dictionary.has_attributes_of(&stripped.dictionary)
}

/// Checks the number of series in one partition, because each series costs memory in every query. Series that are there
/// already pass, whatever their number.
fn check_series(parts: &[Part<'_>], partition: Option<&SharedPartition>, series_max: usize) -> Result<(), StripError> {
    let partition = partition.map(|partition| partition.read());
    let is_new = |part: &&Part<'_>| {
        partition.as_ref().is_none_or(|partition| !partition.series.contains_key(&part.series.fingerprint))
    };
    let new = parts.iter().filter(is_new).count();
    let series = partition.as_ref().map_or(0, |partition| partition.series.len()) + new;
    if new == 0 || series <= series_max {
        return Ok(());
    }
    let of_partition = partition.as_ref().and_then(|partition| partition.index.widest());
    let (label, values) =
        of_partition.into_iter().chain(widest(parts)).max_by_key(|(_, values)| *values).unwrap_or_default();
    Err(StripError::TooManySeries { series, series_max, label: label.to_owned(), values })
}

/// Returns the label with the most values in a batch, and the number of these values.
fn widest<'a>(parts: &[Part<'a>]) -> Option<(&'a str, usize)> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for label in parts.iter().filter_map(|part| part.series.labels.as_ref()).flat_map(LabelSet::iter) {
        values.entry(&label.name).or_default().insert(&label.value);
    }
    values.into_iter().map(|(name, values)| (name, values.len())).max_by_key(|(_, values)| *values)
}
