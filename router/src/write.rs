//! The write path: a push in normal form becomes one batch for each shard, and is acknowledged when all have it.

use std::collections::BTreeMap;
use std::time::Duration;

use indexmap::IndexMap;
use proto::label::SERVICE_NAME_LABEL;
use proto::placement::{Placement, Slot};
use proto::{Batch, BatchId, Dictionary, Fingerprint, Importer, Push, SeriesSamples, TenantId};
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
    /// Left out, because they are older than the retention.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
}

/// Stores a push. When this returns, it is durable and every query sees it.
///
/// # Errors
/// [`NodesError`]: some shards may have their part; the same push with the same id may be sent again.
pub(crate) async fn write(
    nodes: &Nodes,
    tenant: &TenantId,
    push: Push,
    id: Option<BatchId>,
) -> Result<Written, NodesError> {
    let mut written = Written::default();
    for (shard, batch) in batches(nodes.placement(), tenant, &push, id) {
        let answer = nodes.append(shard, &batch).await?;
        written.samples_too_old += answer.samples_too_old;
        written.retention = Duration::from_secs(answer.retention_seconds);
    }
    Ok(written)
}

/// One batch for each shard, its series each once, its definitions those that its samples need.
fn batches(placement: &Placement, tenant: &TenantId, push: &Push, id: Option<BatchId>) -> BTreeMap<u32, Batch> {
    struct Part<'a> {
        dictionary: Dictionary,
        importer: Importer<'a>,
        series: IndexMap<Fingerprint, SeriesSamples>,
    }
    let mut parts: BTreeMap<u32, Part<'_>> = BTreeMap::new();
    for profile in &push.profiles {
        let shard = placement.shard(Slot::of(tenant, profile.labels.get(SERVICE_NAME_LABEL)));
        let part = parts.entry(shard).or_insert_with(|| Part {
            dictionary: Dictionary::default(),
            importer: Importer::new(&push.dictionary),
            series: IndexMap::new(),
        });
        let fingerprint = profile.labels.fingerprint(tenant);
        let series = part.series.entry(fingerprint).or_insert_with(|| SeriesSamples {
            fingerprint,
            labels: Some(profile.labels.clone()),
            samples: proto::Samples::default(),
        });
        let from = &profile.samples;
        for i in 0..from.len() {
            let pair = part.importer.pair(&mut part.dictionary, from.pairs[i]);
            let attribute_set = part.importer.attributes(&mut part.dictionary, from.attribute_sets[i]);
            series.samples.push(from.times_ns[i], pair, from.values[i], attribute_set);
        }
    }
    let batch = |part: Part<'_>| Batch {
        tenant: tenant.clone(),
        id,
        dictionary: part.dictionary,
        series: part.series.into_values().collect(),
    };
    parts.into_iter().map(|(shard, part)| (shard, batch(part))).collect()
}
