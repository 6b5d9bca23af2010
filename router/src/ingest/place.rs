//! Place: the fifth step of a push. Distributes the samples among the shards: the hash of tenant and service gives a
//! slot, and each slot belongs to one shard in each epoch of the placement. The epoch follows from the sample's time.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use indexmap::IndexMap;
use indexmap::map::Entry;
use proto::label::SERVICE_NAME_LABEL;
use proto::placement::Route;
use proto::{Batch, BatchId, Dictionary, Fingerprint, Importer, Profile, Push, Samples, SeriesSamples, TenantId};
use xxhash_rust::xxh3::Xxh3;

use crate::ingest::normalize::Destination;
use crate::ingest::request::{Format, Head};

/// The parts of a push that are not sent yet, one for each shard that gets samples.
///
/// A part becomes a batch only when it is about to be sent. Each batch has its own copy of the definitions that several
/// parts share, so all batches together may take many times as much memory as the push.
#[derive(Debug)]
pub(crate) struct Parts {
    tenant: TenantId,
    id: BatchId,
    dictionary: Dictionary,
    profiles: BTreeMap<u32, Vec<Profile>>,
    /// True if the push has several parts.
    is_split: bool,
}

/// Divides a push into one part for each shard that gets samples. Every batch gets the ID `id`.
pub(crate) fn place(push: Push, id: BatchId, destination: Destination<'_>) -> Parts {
    let Destination { tenant, placement } = destination;
    let mut profiles: BTreeMap<u32, Vec<Profile>> = BTreeMap::new();
    for profile in push.profiles {
        let fingerprint = || profile.labels.fingerprint(tenant);
        let route = placement.route(tenant, profile.labels.get(SERVICE_NAME_LABEL), fingerprint);
        match only_shard(&route, &profile.samples) {
            Some(only) => profiles.entry(only).or_default().push(profile),
            None => {
                for (shard, samples) in divided(&route, &profile.samples) {
                    profiles.entry(shard).or_default().push(Profile { labels: profile.labels.clone(), samples });
                }
            }
        }
    }
    let is_split = profiles.len() > 1;
    Parts { tenant: tenant.clone(), id, dictionary: push.dictionary, profiles, is_split }
}

impl Parts {
    /// Removes the parts of some shards.
    pub(crate) fn remove(&mut self, shards: &[u32]) {
        self.profiles.retain(|shard, _| !shards.contains(shard));
    }

    /// Returns whether all parts have become batches.
    pub(crate) fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Makes the batch of the next part, and returns the number of its shard. A batch holds each series once, and
    /// exactly the definitions that its samples refer to.
    ///
    /// [`normalize`](super::normalize) adds a stack to the dictionary before it knows whether the stack's samples are
    /// kept. Samples of value 0 are dropped, and profiles are refused. A stack of dropped samples may have no
    /// definition, and a shard would refuse a batch that contains such a stack.
    pub(crate) fn next_batch(&mut self) -> Option<(u32, Batch)> {
        let (shard, mut profiles) = self.profiles.pop_first()?;
        let dictionary = if self.is_split || has_unused(&self.dictionary, &profiles) {
            part_of(&self.dictionary, &mut profiles)
        } else {
            std::mem::take(&mut self.dictionary)
        };
        let series = series_of(&self.tenant, profiles);
        Some((shard, Batch { tenant: self.tenant.clone(), id: Some(self.id), retention_class: 0, dictionary, series }))
    }
}

/// Returns the shard of all samples; `None` if they can be in several shards.
fn only_shard(route: &Route, samples: &Samples) -> Option<u32> {
    route.only().or_else(|| {
        let (first, leg) = route.leg_at(*samples.times_ns.first()?);
        let is_there = |&time_ns: &i64| leg.start_ns < time_ns && time_ns <= leg.end_ns;
        samples.times_ns.iter().all(is_there).then_some(first)
    })
}

/// Divides the samples of a series among shards, by their times. The samples of a shard keep their order.
fn divided(route: &Route, samples: &Samples) -> BTreeMap<u32, Samples> {
    let Samples { times_ns, pairs, values, attribute_sets } = samples;
    let mut shards: BTreeMap<u32, Samples> = BTreeMap::new();
    let columns = times_ns.iter().zip(pairs).zip(values).zip(attribute_sets);
    for (((&time_ns, &pair), &value), &attribute_set) in columns {
        shards.entry(route.shard_at(time_ns)).or_default().push(time_ns, pair, value, attribute_set);
    }
    shards
}

/// Returns the ID of a push, by which a shard recognizes a retry of the sender. It is a hash of the idempotency key, if
/// the client sent one. Otherwise, if the push contains all times, it is a hash of the content. Any other push has no
/// such ID.
///
/// The content is the uncompressed message and the parameters of the request.
pub(crate) fn batch_id(tenant: &TenantId, head: &Head, message: &[u8], has_own_times: bool) -> Option<BatchId> {
    match &head.key {
        Some(key) => Some(hash(tenant, &[b"client", key])),
        None if has_own_times => {
            let parameters = match &head.format {
                Format::Pprof { name, labels } => format!("{name:?} {labels:?}"),
                Format::OtlpProtobuf | Format::OtlpJson => String::new(),
            };
            Some(hash(tenant, &[b"content", parameters.as_bytes(), message]))
        }
        None => None,
    }
}

/// Returns a random ID, by which a shard recognizes a retry of the router itself.
pub(crate) fn random_id() -> BatchId {
    // The standard library seeds its hashers with random numbers of the kernel.
    let random = || u128::from(RandomState::new().hash_one(std::process::id()));
    BatchId(random() << 64 | random())
}

fn hash(tenant: &TenantId, parts: &[&[u8]]) -> BatchId {
    let mut hash = Xxh3::new();
    for part in [tenant.as_str().as_bytes()].iter().chain(parts) {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    BatchId(hash.digest128())
}

/// Returns whether the dictionary has a stack, a pair or an attribute set that no sample refers to.
fn has_unused(dictionary: &Dictionary, profiles: &[Profile]) -> bool {
    let samples = || profiles.iter().map(|profile| &profile.samples);
    is_any_unused(dictionary.pairs.len(), samples().flat_map(|samples| &samples.pairs).copied())
        || is_any_unused(
            dictionary.attribute_sets.len(),
            samples().flat_map(|samples| &samples.attribute_sets).copied(),
        )
        || is_any_unused(dictionary.stacks.len(), dictionary.pairs.iter().flat_map(|pair| [pair.user, pair.kernel]))
}

/// Returns whether an ID below `length` does not occur in `used`. ID 0 does not matter: it is the empty entry of each
/// table.
fn is_any_unused(length: usize, used: impl Iterator<Item = u32>) -> bool {
    let mut is_used = vec![false; length];
    used.for_each(|id| is_used[id as usize] = true);
    is_used.iter().skip(1).any(|is_used| !is_used)
}

/// Returns the part of a dictionary that these profiles need. Replaces the IDs in the profiles by those of the returned
/// dictionary.
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
    use std::num::NonZeroU16;
    use std::sync::Arc;

    use proto::dictionary::{Attribute, AttributeValue};
    use proto::placement::{Epoch, Placement, SLOTS, Spread};
    use proto::{Label, LabelSet, StackHash, StackPair};

    use super::*;

    /// Returns a dictionary with pairs and attribute sets 1 to 3. The stack of a pair is undefined if the pair's ID is
    /// odd.
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

    /// Returns the batch of samples, each of which is given by the ID of its pair and the ID of its attribute set.
    fn batch(samples: &[(u32, u32)]) -> Batch {
        let mut columns = Samples::default();
        samples.iter().for_each(|&(pair, set)| columns.push(1, pair, 1, set));
        let labels = LabelSet::new(vec![Label::new(SERVICE_NAME_LABEL, "s")]);
        let profiles = vec![Profile { labels, samples: columns }];
        let push = Push { dictionary: dictionary(), profiles, ..Push::default() };
        let tenant = TenantId::default_tenant();
        let placement = Placement::uniform(NonZeroU16::MIN);
        place(push, random_id(), Destination { tenant: &tenant, placement: &placement }).next_batch().unwrap().1
    }

    #[test]
    fn samples_go_to_the_shards_of_their_own_times_and_series() {
        let tenant = TenantId::default_tenant();
        let minute_ns = 60_000_000_000;
        let all_on = |shard: u32| vec![shard; SLOTS.into()];
        let spread =
            || BTreeMap::from([(tenant.clone(), BTreeMap::from([("s".to_owned(), Spread::new(64).unwrap())]))]);
        // In epoch 3, each slot has a shard of its own.
        let each_slot = (10..).take(SLOTS.into()).collect();
        let epochs = [
            Epoch::new(1, i64::MIN, all_on(1), BTreeMap::new()),
            Epoch::new(2, minute_ns, all_on(2), spread()),
            Epoch::new(3, 2 * minute_ns, each_slot, spread()),
        ];
        let placement = Placement::new(epochs.map(|epoch| Arc::new(epoch.unwrap()))).unwrap();
        let times = [5, minute_ns + 1, 1, 9 * minute_ns, minute_ns, 3 * minute_ns];
        let profile = |pod: u32| {
            let labels = [(SERVICE_NAME_LABEL, "s".to_owned()), ("pod", pod.to_string())];
            let labels = LabelSet::new(labels.iter().map(|(name, value)| Label::new(name, value)).collect());
            let mut samples = Samples::default();
            (1..).zip(times).for_each(|(value, time_ns)| samples.push(time_ns, 0, value, 0));
            Profile { labels, samples }
        };
        let push = Push { profiles: (0..20).map(profile).collect(), ..Push::default() };
        let mut parts = place(push, BatchId(7), Destination { tenant: &tenant, placement: &placement });
        let batches: BTreeMap<u32, Batch> = std::iter::from_fn(|| parts.next_batch()).collect();
        assert!(batches.values().all(|batch| batch.id == Some(BatchId(7))));
        let values = |shard: u32| batches[&shard].series.iter().map(|series| &series.samples.values[..]);
        assert!(values(1).eq(std::iter::repeat_n(&[1, 3, 5][..], 20)), "the order is kept");
        assert!(values(2).eq(std::iter::repeat_n(&[2][..], 20)));
        let of_epoch_3 = batches.range(10..).flat_map(|(_, batch)| &batch.series);
        assert!(of_epoch_3.map(|series| &series.samples.values[..]).eq(std::iter::repeat_n(&[4, 6][..], 20)));
        assert!(batches.len() > 10, "the series are spread over {} shards", batches.len());
    }

    #[test]
    fn a_batch_holds_only_the_definitions_that_its_samples_refer_to() {
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
