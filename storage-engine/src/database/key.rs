//! Keys of the state database.
//!
//! All integers are big-endian, so keys sort by their fields in order.
//!
//! ```text
//! 00 tag                                                    of the shard: format f, position a, membership m, clock c,
//!                                                           start of the oldest partition o
//! 00 x tier u8 | class u8                                   time up to which partitions were dropped
//! 01 tenant u32 [ | period u32 ]                            labels that the tenant's sums drop (`state::label_drops`)
//! 02 tenant u32                                             name of a tenant
//! 03 tier u8 | class u8 | window u32 | tenant u32 | series u32   a window to be summed again from the finer tier
//! 04 partition | series u32 u32 | window u32 u32            damaged values: first and last series and window
//! 05 key                                                    a repair lost keys from this one on
//! 10 tier u8 | class u8 | start u32 | tenant u32 | section  a partition; it is dropped as one range
//!    raw:   c: series u32 | window u32 | log index u64      chunks: sums, and the events of small chunks
//!           e: series u32 | window u32 | log index u64      events of the other chunks
//!           h: window u32 | series u32 | log index u64      head values, flushed at this log index
//!           i: batch id 16                                  an applied batch whose newest sample is in the partition
//!    other: s: first series u32                             series, in blocks
//!           d: sequence u32                                 dictionary blocks
//!           n: sequence u32                                 names of labels and attributes that the tier drops
//!           w: series u32 | window u32                      sums of an hour or a day, or of each of ten minutes
//! 11 partition ...                                          moved from 10: a partition with damaged definitions
//! ```
//!
//! `start` is the number of the partition, and `window` the number of the window; both count from 1970 on. In the tier
//! of minutes, `window` counts ten minutes, as for chunks. Raw samples use the series and the dictionary of the
//! partition of minutes of the same time.

mod section;

use std::iter;

use proto::tier::interval_of;
use proto::{BatchId, Tier};

pub(crate) use crate::database::key::section::Section;

pub(crate) const FORMAT: &[u8] = &[0, b'f'];
pub(crate) const APPLIED: &[u8] = &[0, b'a'];
pub(crate) const MEMBERSHIP: &[u8] = &[0, b'm'];
pub(crate) const CLOCK: &[u8] = &[0, b'c'];
pub(crate) const OLDEST: &[u8] = &[0, b'o'];
pub(crate) const EXPIRED: &[u8] = &[0, b'x'];

const LABEL_DROPS: u8 = 1;
const TENANTS: u8 = 2;
const STALE: u8 = 3;
const DAMAGE: u8 = 4;
const LOST: u8 = 5;
const PARTITIONS: u8 = 0x10;
/// First byte of the keys to which values were moved because the definitions of their partition were damaged.
const QUARANTINED: u8 = 0x11;

/// Identity of a partition in keys and in memory: tier, retention class, time span and tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartitionKey {
    pub(crate) tier: Tier,
    pub(crate) class: u8,
    start: u32,
    pub(crate) tenant: u32,
}

/// Length of a partition's key prefix, in bytes: first byte, tier, class, start, tenant.
const PARTITION_PREFIX: usize = 1 + 1 + 1 + 4 + 4;
/// Capacity of new keys, in bytes: a query makes a key for each series, and it must not grow piece by piece.
const KEY_CAPACITY: usize = PARTITION_PREFIX + 1 + 4 + 4 + 8;

impl PartitionKey {
    /// Returns the partition that holds a time. The first partition also holds times up to 1970, although a push with
    /// such times is refused.
    pub(crate) fn of(tier: Tier, class: u8, tenant: u32, time_ns: i64) -> Self {
        Self { tier, class, start: interval_of(time_ns, tier.partition_ns()), tenant }
    }

    /// Returns the partition that holds a window of this tier.
    pub(crate) fn of_window(tier: Tier, class: u8, tenant: u32, window: u32) -> Self {
        Self::of(tier, class, tenant, tier.window_end_ns(window))
    }

    /// Returns the partition of another tier that holds the first nanosecond of this partition.
    pub(crate) fn in_tier(self, tier: Tier) -> Self {
        Self::of(tier, self.class, self.tenant, self.start_ns().saturating_add(1))
    }

    /// Returns the partition of another retention class with the same tier, time and tenant.
    pub(crate) fn in_class(self, class: u8) -> Self {
        Self { class, ..self }
    }

    /// Returns the partition of another tenant with the same tier, class and time.
    pub(crate) fn of_tenant(self, tenant: u32) -> Self {
        Self { tenant, ..self }
    }

    /// Returns the previous partition in time; `None` if this is the first one.
    pub(crate) fn before(&self) -> Option<Self> {
        Some(Self { start: self.start.checked_sub(1)?, ..*self })
    }

    /// Start of the partition's time, exclusive, in nanoseconds since 1970.
    pub(crate) fn start_ns(self) -> i64 {
        i64::from(self.start).saturating_mul(self.tier.partition_ns())
    }

    /// End of the partition's time, inclusive, in nanoseconds since 1970.
    pub(crate) fn end_ns(self) -> i64 {
        self.start_ns().saturating_add(self.tier.partition_ns())
    }

    /// Returns whether the partition overlaps `(start, end]`.
    pub(crate) fn overlaps(self, start_ns: i64, end_ns: i64) -> bool {
        self.start_ns() < end_ns && start_ns < self.end_ns()
    }

    pub(crate) fn prefix(self) -> Vec<u8> {
        let mut key = Vec::with_capacity(KEY_CAPACITY);
        key.extend([PARTITIONS, self.tier.number(), self.class]);
        key.extend(self.start.to_be_bytes());
        key.extend(self.tenant.to_be_bytes());
        key
    }

    /// Returns a key that sorts after all keys of the partition.
    pub(crate) fn end(self) -> Vec<u8> {
        let mut key = self.prefix();
        key.push(0xff);
        key
    }

    pub(crate) fn section(self, section: Section) -> Vec<u8> {
        let mut key = self.prefix();
        key.push(section.tag());
        key
    }

    fn key_with(self, section: Section, numbers: &[u32]) -> Vec<u8> {
        let mut key = self.section(section);
        numbers.iter().for_each(|number| key.extend(number.to_be_bytes()));
        key
    }

    pub(crate) fn series_block(self, first: u32) -> Vec<u8> {
        self.key_with(Section::Series, &[first])
    }

    pub(crate) fn dictionary_block(self, sequence: u32) -> Vec<u8> {
        self.key_with(Section::Dictionary, &[sequence])
    }

    pub(crate) fn dropped_names_block(self, sequence: u32) -> Vec<u8> {
        self.key_with(Section::DroppedNames, &[sequence])
    }

    /// Returns the first key of a series and window in a section.
    pub(crate) fn series_window(self, section: Section, series: u32, window: u32) -> Vec<u8> {
        self.key_with(section, &[series, window])
    }

    /// Returns the key of a chunk that was sealed at this log index, or of the chunk's events.
    pub(crate) fn chunk(self, section: Section, series: u32, window: u32, log_index: u64) -> Vec<u8> {
        let mut key = self.series_window(section, series, window);
        key.extend(log_index.to_be_bytes());
        key
    }

    /// Returns the key of a head value that was flushed at this log index.
    pub(crate) fn head(self, window: u32, series: u32, log_index: u64) -> Vec<u8> {
        let mut key = self.key_with(Section::Head, &[window, series]);
        key.extend(log_index.to_be_bytes());
        key
    }

    pub(crate) fn batch_id(self, id: BatchId) -> Vec<u8> {
        let mut key = self.section(Section::BatchIds);
        key.extend(id.0.to_be_bytes());
        key
    }

    /// Returns the partition of a key; `None` if the key belongs to no partition.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        Self::of_kind(PARTITIONS, key)
    }

    /// Returns the partition whose values were moved to this key; `None` if it is not the key of a moved value.
    pub(crate) fn of_quarantined(key: &[u8]) -> Option<Self> {
        Self::of_kind(QUARANTINED, key)
    }

    fn of_kind(kind: u8, key: &[u8]) -> Option<Self> {
        let prefix = key.get(..PARTITION_PREFIX)?;
        if prefix[0] != kind {
            return None;
        }
        let tier = Tier::from_number(prefix[1])?;
        Some(Self { tier, class: prefix[2], start: number(&prefix[3..7]), tenant: number(&prefix[7..11]) })
    }

    /// Returns the section of a key of a partition, and the rest of the key after the section's tag.
    pub(crate) fn section_of(key: &[u8]) -> Option<(Section, &[u8])> {
        let (&tag, rest) = key.get(PARTITION_PREFIX..)?.split_first()?;
        Some((Section::ALL.into_iter().find(|section| section.tag() == tag)?, rest))
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

/// Splits the rest of a key after the section's tag into two numbers and what follows them. The numbers are series and
/// window; in the head section, window and series.
pub(crate) fn two_numbers(rest: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (numbers, rest) = rest.split_at_checked(8)?;
    Some((number(&numbers[..4]), number(&numbers[4..]), rest))
}

/// Key of the mark that makes a window stale for one series: the window must be summed again from the finer tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StaleKey {
    /// Tier of the stale window.
    pub(crate) tier: Tier,
    pub(crate) class: u8,
    pub(crate) window: u32,
    pub(crate) tenant: u32,
    /// Number of the series in the partition from which the window is summed.
    pub(crate) series: u32,
}

impl StaleKey {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut key = vec![STALE, self.tier.number(), self.class];
        [self.window, self.tenant, self.series].iter().for_each(|number| key.extend(number.to_be_bytes()));
        key
    }

    /// Returns whether the window is summed from values of the partition `key`. For minutes, this is the partition of
    /// minutes itself, because the raw samples of the same time use its series.
    pub(crate) fn is_made_of(&self, key: PartitionKey) -> bool {
        let end_ns = numbered(self.tier).window_end_ns(self.window);
        let is_of_tier = Some(self.tier) == key.tier.coarser() || (key.tier, self.tier) == (Tier::Minute, Tier::Minute);
        is_of_tier
            && (self.class, self.tenant) == (key.class, key.tenant)
            && key.start_ns() < end_ns
            && end_ns <= key.end_ns()
    }

    pub(crate) fn read(key: &[u8]) -> Option<Self> {
        let &[STALE, tier, class, ref numbers @ ..] = key else { return None };
        let (window, tenant, rest) = two_numbers(numbers)?;
        let series = number(rest.get(..4).filter(|series| series.len() == rest.len())?);
        Some(Self { tier: Tier::from_number(tier)?, class, window, tenant, series })
    }
}

/// Returns the tier whose windows are counted by the window numbers in keys of `tier`. Values of minutes have the
/// window number of their chunk.
pub(crate) fn numbered(tier: Tier) -> Tier {
    if tier == Tier::Minute { Tier::Raw } else { tier }
}

/// Returns the key of a chunk's events, for a chunk whose events are a separate value.
pub(crate) fn events_key(chunk_key: &[u8]) -> Vec<u8> {
    let numbers = PartitionKey::of_key(chunk_key).zip(PartitionKey::section_of(chunk_key));
    numbers.map_or_else(Vec::new, |(raw, (_, rest))| [raw.section(Section::Events).as_slice(), rest].concat())
}

/// Returns the key that marks a window as stale for a series of the partition `of`.
pub(crate) fn stale_key(of: PartitionKey, tier: Tier, window: u32, series: u32) -> StaleKey {
    StaleKey { tier, class: of.class, window, tenant: of.tenant, series }
}

pub(crate) fn expired(tier: Tier, class: u8) -> Vec<u8> {
    [EXPIRED, &[tier.number(), class]].concat()
}

/// Returns the key of the record that a repair lost all keys from `from` on. The value of the record holds their end.
pub(crate) fn lost(from: &[u8]) -> Vec<u8> {
    [&[LOST], from].concat()
}

/// Returns the prefix of the keys of all records of lost keys.
pub(crate) fn losses() -> [u8; 1] {
    [LOST]
}

/// Returns the prefix of the keys of a partition's damage records. Each record is about an area: a range of series and
/// a range of windows.
pub(crate) fn damage_of(key: PartitionKey) -> Vec<u8> {
    let mut bytes = key.prefix();
    bytes[0] = DAMAGE;
    bytes
}

/// Splits the key of a damage record into the partition and the rest, which holds the area.
pub(crate) fn read_damage(key: &[u8]) -> Option<(PartitionKey, &[u8])> {
    Some((PartitionKey::of_kind(DAMAGE, key)?, key.get(PARTITION_PREFIX..)?))
}

/// Returns the prefix of the keys of all damage records.
pub(crate) fn damage() -> [u8; 1] {
    [DAMAGE]
}

/// Returns the key to which a value is moved if the definitions of its partition are damaged.
pub(crate) fn quarantined(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    if let Some(kind) = key.first_mut() {
        *kind = QUARANTINED;
    }
    key
}

/// Returns the prefix of the keys of all moved values.
pub(crate) fn quarantined_partitions() -> [u8; 1] {
    [QUARANTINED]
}

/// Returns the prefix of the keys of all stale windows.
pub(crate) fn stale() -> [u8; 1] {
    [STALE]
}

/// Returns the kind of a key that belongs to no partition, as reports name it.
pub(crate) fn kind_name(key: &[u8]) -> &'static str {
    match key.first() {
        Some(&LABEL_DROPS | &TENANTS) => "tenants",
        Some(&STALE) => "stale windows",
        Some(&DAMAGE | &LOST) => "damaged areas",
        Some(&QUARANTINED) => "quarantined values",
        _ => "shard",
    }
}

/// Returns the prefix of the keys of all partitions.
pub(crate) fn partitions() -> [u8; 1] {
    [PARTITIONS]
}

/// Returns the prefix of the keys that hold which labels the sums of tenants drop.
pub(crate) fn label_drops() -> [u8; 1] {
    [LABEL_DROPS]
}

/// Returns the key of the labels that the sums of a tenant drop from a period on; without a period, the key of the
/// first period without samples.
pub(crate) fn label_drops_of(tenant: u32, period: Option<u32>) -> Vec<u8> {
    let mut key = vec![LABEL_DROPS];
    iter::once(tenant).chain(period).for_each(|number| key.extend(number.to_be_bytes()));
    key
}

/// Returns the tenant and the period of a key from [`label_drops_of`].
pub(crate) fn read_label_drops(key: &[u8]) -> Option<(u32, Option<u32>)> {
    match key.get(1..)? {
        tenant @ [_, _, _, _] => Some((number(tenant), None)),
        numbers => two_numbers(numbers).filter(|(.., rest)| rest.is_empty()).map(|of| (of.0, Some(of.1))),
    }
}

pub(crate) fn tenants() -> [u8; 1] {
    [TENANTS]
}

pub(crate) fn tenant(id: u32) -> Vec<u8> {
    let mut key = vec![TENANTS];
    key.extend(id.to_be_bytes());
    key
}

#[cfg(test)]
mod tests;
