//! The write path: a push in normal form becomes one batch for each shard, and is acknowledged when all have it.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use indexmap::map::Entry;
use proto::label::SERVICE_NAME_LABEL;
use proto::placement::{Placement, Slot};
use proto::{Batch, BatchId, Dictionary, Fingerprint, Importer, Profile, Push, SeriesSamples, TenantId};
use xxhash_rust::xxh3::Xxh3;

use crate::nodes::{Nodes, NodesError};

/// The client's key, or what stands for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PushKey<'a> {
    /// `Idempotency-Key`.
    Client(&'a [u8]),
    /// Everything that the push says, the body as it was before compression: used where it carries its own times.
    Content(&'a [&'a [u8]]),
}

impl PushKey<'_> {
    /// The id that each shard remembers.
    pub(crate) fn id(&self, tenant: &TenantId) -> BatchId {
        let mut hash = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(tenant.as_str().as_bytes());
        match self {
            Self::Client(key) => {
                part(b"client");
                part(key);
            }
            Self::Content(parts) => {
                part(b"content");
                parts.iter().for_each(|bytes| part(bytes));
            }
        }
        BatchId(hash.digest128())
    }
}

/// What became of a push that is stored.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Shards that have their part.
    shards: Vec<u32>,
    /// Left out, because they are older than the retention.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
    /// A shard had a batch with this id already, so it took no definition of this one.
    pub(crate) is_duplicate: bool,
}

/// Stores a push in the shards that do not have their part yet. When this returns, it is durable and every query sees it.
///
/// # Errors
/// [`NodesError`]: some shards may have their part, as `written` says; the same push with the same id may be sent again.
pub(crate) async fn write(
    nodes: &Nodes,
    tenant: &TenantId,
    push: Push,
    id: Option<BatchId>,
    written: &mut Written,
) -> Result<(), NodesError> {
    let batches = batches(nodes.placement(), tenant, push, id);
    for (shard, batch) in batches.into_iter().filter(|(shard, _)| !written.shards.contains(shard)).collect::<Vec<_>>() {
        let appended = nodes.append(shard, batch).await?;
        written.shards.push(shard);
        written.samples_too_old += appended.samples_too_old;
        written.retention = appended.retention;
        written.is_duplicate |= appended.duplicate;
    }
    Ok(())
}

/// One batch for each shard: each series once, and exactly the definitions that its samples refer to.
///
/// A decoder enters a stack in the dictionary before it knows whether any sample with it is kept: samples of value 0 are
/// dropped, profiles are refused. Such a stack may have no definition, and a shard refuses a batch that holds one.
fn batches(placement: &Placement, tenant: &TenantId, push: Push, id: Option<BatchId>) -> BTreeMap<u32, Batch> {
    let mut shards: BTreeMap<u32, Vec<Profile>> = BTreeMap::new();
    for profile in push.profiles {
        let shard = placement.shard(Slot::of(tenant, profile.labels.get(SERVICE_NAME_LABEL)));
        shards.entry(shard).or_default().push(profile);
    }
    let is_split = shards.len() > 1;
    let mut dictionary = push.dictionary;
    let mut batch = |mut profiles: Vec<Profile>| {
        let dictionary = if is_split || has_unused(&dictionary, &profiles) {
            part_of(&dictionary, &mut profiles)
        } else {
            std::mem::take(&mut dictionary)
        };
        let series = series_of(tenant, profiles);
        Batch { tenant: tenant.clone(), id, retention_class: 0, dictionary, series }
    };
    shards.into_iter().map(|(shard, profiles)| (shard, batch(profiles))).collect()
}

/// Whether there is a stack, a pair of stacks or an attribute set that no sample refers to.
fn has_unused(dictionary: &Dictionary, profiles: &[Profile]) -> bool {
    let samples = || profiles.iter().map(|profile| &profile.samples);
    is_any_unused(dictionary.pairs.len(), samples().flat_map(|samples| &samples.pairs).copied())
        || is_any_unused(
            dictionary.attribute_sets.len(),
            samples().flat_map(|samples| &samples.attribute_sets).copied(),
        )
        || is_any_unused(dictionary.stacks.len(), dictionary.pairs.iter().flat_map(|pair| [pair.user, pair.kernel]))
}

/// Whether an id below `length` is not among these. Entry 0 of a table is the empty one, which needs no reference.
fn is_any_unused(length: usize, used: impl Iterator<Item = u32>) -> bool {
    let mut is_used = vec![false; length];
    used.for_each(|id| is_used[id as usize] = true);
    is_used.iter().skip(1).any(|is_used| !is_used)
}

/// What of a dictionary these profiles need; their ids become those of it.
fn part_of(dictionary: &Dictionary, profiles: &mut [Profile]) -> Dictionary {
    let mut part = Dictionary::default();
    let mut importer = Importer::new(dictionary);
    for Profile { samples, .. } in profiles {
        samples.pairs.iter_mut().for_each(|pair| *pair = importer.pair(&mut part, *pair));
        samples.attribute_sets.iter_mut().for_each(|set| *set = importer.attributes(&mut part, *set));
    }
    part
}

fn series_of(tenant: &TenantId, profiles: Vec<Profile>) -> Vec<SeriesSamples> {
    let mut all: IndexMap<Fingerprint, SeriesSamples> = IndexMap::new();
    for Profile { labels, samples } in profiles {
        let fingerprint = labels.fingerprint(tenant);
        match all.entry(fingerprint) {
            Entry::Vacant(series) => {
                series.insert(SeriesSamples { fingerprint, labels: Some(labels), samples });
            }
            Entry::Occupied(series) => series.into_mut().samples.append(samples),
        }
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proto::attribute::{Attribute, AttributeValue};
    use proto::{Label, LabelSet, Samples, StackHash, StackPair};

    use super::*;

    /// Pairs and attribute sets 1 to 3, each pair of a stack that is defined unless its number is odd.
    fn dictionary() -> Dictionary {
        let mut dictionary = Dictionary::default();
        let key = dictionary.strings.intern("key");
        for number in 1_u32..4 {
            let stack = (number % 2 == 0).then_some(&[][..]);
            let user = dictionary.intern_stack(StackHash(number.into()), stack);
            dictionary.intern_pair(StackPair { user, kernel: 0 });
            let value = AttributeValue::Integer(number.into());
            dictionary.intern_attributes(vec![Attribute { key, unit: 0, value }]);
        }
        dictionary
    }

    /// The batch of samples (pair, attribute set).
    fn batch(samples: &[(u32, u32)]) -> Batch {
        let mut columns = Samples::default();
        samples.iter().for_each(|&(pair, set)| columns.push(1, pair, 1, set));
        let labels = LabelSet::new(vec![Label::new(SERVICE_NAME_LABEL, "s")]);
        let profiles = vec![Profile { labels, samples: columns }];
        let push = Push { dictionary: dictionary(), profiles, ..Push::default() };
        batches(&Placement::single_shard(), &TenantId::default_tenant(), push, None).into_values().next().unwrap()
    }

    #[test]
    fn a_batch_holds_what_its_samples_refer_to_and_nothing_else() {
        let whole = batch(&[(3, 1), (1, 3), (2, 2)]);
        assert_eq!(whole.series[0].samples.pairs, [3, 1, 2], "nothing is unused, so nothing is renumbered");
        for (samples, stacks, sets) in
            [(&[(2, 0)][..], &[2][..], 0), (&[(3, 2), (3, 2)], &[3], 1), (&[(1, 1), (2, 2), (3, 1)], &[1, 2, 3], 2)]
        {
            let Batch { dictionary, series, .. } = batch(samples);
            assert!(dictionary.stacks.keys().skip(1).map(|hash| hash.0).eq(stacks.iter().copied()), "{samples:?}");
            assert_eq!((dictionary.pairs.len(), dictionary.attribute_sets.len()), (stacks.len() + 1, sets + 1));
            for (&(pair, _), &id) in samples.iter().zip(&series[0].samples.pairs) {
                let user = dictionary.pairs[id as usize].user;
                assert_eq!(dictionary.stacks.hash(user), StackHash(pair.into()), "{samples:?}");
                assert_eq!(dictionary.stacks.get(user).is_some(), pair % 2 == 0, "{samples:?}");
            }
        }
    }
}
