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
    }
    Ok(())
}

/// One batch for each shard, its series each once, its definitions those that its samples need.
fn batches(placement: &Placement, tenant: &TenantId, push: Push, id: Option<BatchId>) -> BTreeMap<u32, Batch> {
    let mut shards: BTreeMap<u32, Vec<Profile>> = BTreeMap::new();
    for profile in push.profiles {
        let shard = placement.shard(Slot::of(tenant, profile.labels.get(SERVICE_NAME_LABEL)));
        shards.entry(shard).or_default().push(profile);
    }
    let is_split = shards.len() > 1;
    let mut dictionary = push.dictionary;
    let mut batch = |mut profiles: Vec<Profile>| {
        let dictionary = if is_split { part_of(&dictionary, &mut profiles) } else { std::mem::take(&mut dictionary) };
        let series = series_of(tenant, profiles);
        Batch { tenant: tenant.clone(), id, retention_class: 0, dictionary, series }
    };
    shards.into_iter().map(|(shard, profiles)| (shard, batch(profiles))).collect()
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
