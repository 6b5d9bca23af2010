//! Signature of a shard's content: a number that is equal on replicas that hold the same content at one log position,
//! whatever each of them has flushed, sealed and rolled up.
//!
//! Every sample, window and batch ID adds one term, modulo 2^128, so their order and the values that hold them do not
//! matter. The term of a sample is weight × value. The weight is a hash of everything else: series, time, stack and
//! attributes, by their content and not by their numbers. Only windows without finer windows count, because replicas
//! sum up the other windows at times of their own.

use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::FixedState;
use proto::dictionary::{Attribute, AttributeValue};
use proto::{Fingerprint, Samples, Tier};

use crate::database::frame;
use crate::database::key::{self, PartitionKey, Section, events_key, numbered, two_numbers};
use crate::database::stored_rows::read_rows;
use crate::database::{self, Item, Snapshot};
use crate::encoding::chunk::Chunk;
use crate::encoding::head_block;
use crate::encoding::windows::WindowRows;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::flush::flush;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::integrity::verify::signature::Weights;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::{Flushed, Position};

/// Signature of the content of a shard at one position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Position of the last entry in the content; `None` if no entry was applied.
    pub position: Option<Position>,
    /// Number of raw samples.
    pub samples: u64,
    /// Signature of all content. It is equal on replicas that applied the same entries. If the content differs, the
    /// signature differs with a probability of all but one in 2^64.
    pub signature: u128,
}

/// Makes all applied entries durable, and reads the content at this position. The lock keeps the content in place.
pub(crate) fn read(writing: &Writing<'_>) -> Result<Content, EngineError> {
    let Flushed { position, .. } = flush(writing)?;
    let snapshot = writing.database().snapshot();
    let mut sum = Sum { hashes: FixedState::default(), samples: 0, sum: 0 };
    // Position, membership, clock, expiries, dropped labels and tenants. The start of the oldest partition depends on
    // the windows that this replica has summed up so far: a day starts before its minutes.
    for prefix in [[0], key::label_drops(), key::tenants()] {
        for item in database::scan(&snapshot, &prefix) {
            let (at, value) = item?;
            let value = frame::open(&at, &value)?;
            if *at != *key::OLDEST {
                sum.add(("value", &at, value), 1);
            }
        }
    }
    let keys: Vec<PartitionKey> = writing.state().partitions.existing().iter().copied().collect();
    for &key in keys.iter().filter(|key| key.tier != Tier::Raw) {
        let of = Reader::new(&snapshot, key, writing)?;
        let raw = key.in_tier(Tier::Raw);
        if key.tier == Tier::Minute && keys.contains(&raw) {
            of.add_samples(raw, &mut sum)?;
        }
        let has_finer = |end_ns: i64| {
            let state = writing.state();
            let finer = Tier::ALL.into_iter().take_while(|tier| *tier != key.tier);
            finer.into_iter().any(|tier| state.horizons.horizon_ns(tier, key.class) < end_ns)
        };
        of.add_windows(&has_finer, &mut sum)?;
    }
    Ok(Content { position, samples: sum.samples, signature: sum.sum })
}

/// Sum of the terms so far.
struct Sum {
    hashes: FixedState,
    samples: u64,
    sum: u128,
}

impl Sum {
    fn add(&mut self, weighed: impl Hash, value: i128) {
        let weight = u128::from(self.hashes.hash_one(weighed));
        self.sum = self.sum.wrapping_add(weight.wrapping_mul(value.cast_unsigned()));
    }
}

/// Reader of one partition of minutes, hours or days.
struct Reader<'a> {
    snapshot: &'a Snapshot<'a>,
    key: PartitionKey,
    weights: Weights,
    /// Hash of each attribute set, by number of the set.
    attribute_sets: Vec<u64>,
}

impl<'a> Reader<'a> {
    fn new(snapshot: &'a Snapshot<'a>, key: PartitionKey, writing: &Writing<'_>) -> Result<Self, EngineError> {
        let mut shared = TenantDictionary::new(0);
        let partition = Partition::load(snapshot, key, &mut shared, 0)?;
        let weights = Weights::new(&partition, &shared, &writing.tenant_name(key.tenant), &[]);
        let sets = partition.attribute_sets.as_slice().iter().map(|&set| hash_of_set(&shared, set)).collect();
        Ok(Self { snapshot, key, weights, attribute_sets: sets })
    }

    /// Adds the raw samples and the batch IDs of the same time.
    fn add_samples(&self, raw: PartitionKey, sum: &mut Sum) -> Result<(), EngineError> {
        self.walk(raw.section(Section::Head), |(at, value), (_, series)| {
            self.add_rows(&at, series, &head_block::decode(&at, &value)?, sum)
        })?;
        self.walk(raw.section(Section::Chunks), |(at, value), (series, window)| {
            self.add_rows(&at, series, &self.samples_of(&at, &value, window)?, sum)
        })?;
        for item in database::scan(self.snapshot, &raw.section(Section::BatchIds)) {
            let (at, _) = item?;
            sum.add(("batch", &at), 1);
        }
        Ok(())
    }

    fn samples_of(&self, key: &[u8], value: &[u8], window: u32) -> Result<Samples, EngineError> {
        let chunk = Chunk::read(frame::open(key, value)?, window).ok_or_else(|| corrupt(key))?;
        let own_key = events_key(key);
        let own = if chunk.has_own_events() { self.snapshot.get(&own_key)? } else { None };
        let own = own.as_deref().map(|own| frame::open(&own_key, own)).transpose()?;
        Ok(chunk.samples(own).ok_or_else(|| corrupt(key))?)
    }

    fn add_rows(&self, key: &[u8], series: u32, samples: &Samples, sum: &mut Sum) -> Result<(), EngineError> {
        let Fingerprint(series) = self.weights.fingerprint(series).ok_or_else(|| corrupt(key))?;
        for row in 0..samples.len() {
            let time_ns = samples.times_ns[row];
            let pair = self.weights.pair(samples.pairs[row]).ok_or_else(|| corrupt(key))?;
            let set = samples.attribute_sets[row] as usize;
            let attributes = self.attribute_sets.get(set).ok_or_else(|| corrupt(key))?;
            let weighed = (series, time_ns, pair, attributes);
            sum.add((weighed, "value"), samples.values[row].into());
            sum.add((weighed, "count"), 1);
        }
        sum.samples += samples.len() as u64;
        Ok(())
    }

    /// Adds the windows that have no finer windows. `has_finer` returns true for the end of a window that has some.
    fn add_windows(&self, has_finer: &dyn Fn(i64) -> bool, sum: &mut Sum) -> Result<(), EngineError> {
        let values = numbered(self.key.tier);
        self.walk(self.key.section(Section::Windows), |(at, value), (series, window)| {
            if has_finer(values.window_end_ns(window)) {
                return Ok(());
            }
            let Fingerprint(series) = self.weights.fingerprint(series).ok_or_else(|| corrupt(&at))?;
            for WindowRows { slot, samples, last_ns, rows } in read_rows(&at, &value, values, window)? {
                let of = (self.key.tier.number(), self.key.class, window, slot, series);
                sum.add((of, "count"), samples.into());
                sum.add((of, "last"), last_ns.into());
                for (pair, value) in rows {
                    let pair = self.weights.pair(pair).ok_or_else(|| corrupt(&at))?;
                    sum.add((of, pair), value);
                }
            }
            Ok(())
        })
    }

    /// Visits all values of a section. The two numbers are those in the key.
    fn walk(
        &self,
        section: Vec<u8>,
        mut visit: impl FnMut(Item, (u32, u32)) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut walk = Walk::once(self.snapshot, section);
        while let Some(item) = walk.next()? {
            let item = item.map_err(|keys| keys.error)?;
            let numbers = PartitionKey::section_of(&item.0).and_then(|(_, rest)| two_numbers(rest));
            let (one, other, _) = numbers.ok_or_else(|| corrupt(&item.0))?;
            visit(item, (one, other))?;
        }
        Ok(())
    }
}

/// Returns the hash of an attribute set, which does not depend on the order of its attributes.
fn hash_of_set(shared: &TenantDictionary, set: u32) -> u64 {
    let hashes = FixedState::default();
    let strings = &shared.dictionary.strings;
    let attribute = |Attribute { key, unit, value }: Attribute| {
        let value = match value {
            AttributeValue::Text(id) => (0, strings.hash(id)),
            AttributeValue::Json(id) => (1, strings.hash(id)),
            AttributeValue::Integer(value) => (2, i128::from(value).cast_unsigned()),
            AttributeValue::Boolean(value) => (3, value.into()),
            AttributeValue::Double(bits) => (4, bits.into()),
        };
        hashes.hash_one((strings.hash(key), strings.hash(unit), value))
    };
    shared.dictionary.attribute_sets.get(set).map(attribute).fold(0, u64::wrapping_add)
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}
