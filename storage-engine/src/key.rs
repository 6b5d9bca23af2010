//! Keys of the state database. All integers are big-endian, so that keys sort as their parts do.
//!
//! ```text
//! 00 tag                                                  the shard: f format, a applied position, m membership, c clock
//! 01 period u32 | batch id 16                             batch ids, by the period in which they were proposed
//! 02 tenant u32                                           name of a tenant
//! 10 tier u8 | class u8 | start u32 | tenant u32 | section  all of a partition, so that it is dropped as one range
//!    section s: first series u32                          series, in blocks as they came
//!    section d: sequence u32                              dictionary, in blocks as it grew
//!    section c: series u32 | window u64 | log index u64   chunks
//! ```
//!
//! `start` counts spans of [`PARTITION_NS`] since 1970, `window` is the start of the chunk's window in nanoseconds. Tier 0 is
//! raw and class 0 the only retention class of this version.

use proto::BatchId;

/// The span of time of a raw partition, nanoseconds.
pub(crate) const PARTITION_NS: i64 = 6 * 3600 * 1_000_000_000;

/// The window of a chunk, nanoseconds; divides [`PARTITION_NS`].
pub(crate) const WINDOW_NS: i64 = 600 * 1_000_000_000;

pub(crate) const FORMAT: &[u8] = &[0, b'f'];
pub(crate) const APPLIED: &[u8] = &[0, b'a'];
pub(crate) const MEMBERSHIP: &[u8] = &[0, b'm'];
pub(crate) const CLOCK: &[u8] = &[0, b'c'];

const BATCH_IDS: u8 = 1;
const TENANTS: u8 = 2;
const PARTITIONS: u8 = 0x10;

/// Identity of a partition in keys and in memory: of one tenant, one span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartitionKey {
    start: u32,
    pub(crate) tenant: u32,
}

/// Length of a partition's key prefix: kind, tier, class, start, tenant.
const PARTITION_PREFIX: usize = 1 + 1 + 1 + 4 + 4;

impl PartitionKey {
    /// The partition of a time; times before 1970, which no push may have, are those of 1970.
    pub(crate) fn of(tenant: u32, time_ns: i64) -> Self {
        Self { start: u32::try_from(time_ns.div_euclid(PARTITION_NS)).unwrap_or_default(), tenant }
    }

    pub(crate) fn start_ns(self) -> i64 {
        i64::from(self.start) * PARTITION_NS
    }

    /// The first time behind it.
    pub(crate) fn end_ns(self) -> i64 {
        self.start_ns().saturating_add(PARTITION_NS)
    }

    pub(crate) fn prefix(self) -> Vec<u8> {
        let mut key = vec![PARTITIONS, 0, 0];
        key.extend(self.start.to_be_bytes());
        key.extend(self.tenant.to_be_bytes());
        key
    }

    /// The first key behind all of the partition's.
    pub(crate) fn end(self) -> Vec<u8> {
        let mut key = self.prefix();
        key.push(0xff);
        key
    }

    fn section(self, section: u8) -> Vec<u8> {
        let mut key = self.prefix();
        key.push(section);
        key
    }

    pub(crate) fn series_section(self) -> Vec<u8> {
        self.section(b's')
    }

    pub(crate) fn series_block(self, first: u32) -> Vec<u8> {
        let mut key = self.series_section();
        key.extend(first.to_be_bytes());
        key
    }

    pub(crate) fn dictionary_section(self) -> Vec<u8> {
        self.section(b'd')
    }

    pub(crate) fn dictionary_block(self, sequence: u32) -> Vec<u8> {
        let mut key = self.dictionary_section();
        key.extend(sequence.to_be_bytes());
        key
    }

    /// The first key of a series' chunks whose window starts at or behind a time.
    pub(crate) fn chunks_from(self, series: u32, window_start_ns: i64) -> Vec<u8> {
        let mut key = self.section(b'c');
        key.extend(series.to_be_bytes());
        key.extend(u64::try_from(window_start_ns).unwrap_or_default().to_be_bytes());
        key
    }

    pub(crate) fn chunk(self, series: u32, window_start_ns: i64, log_index: u64) -> Vec<u8> {
        let mut key = self.chunks_from(series, window_start_ns);
        key.extend(log_index.to_be_bytes());
        key
    }

    /// The partition of any of its keys; `None` for other keys.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        let prefix = key.get(..PARTITION_PREFIX)?;
        if prefix[0] != PARTITIONS {
            return None;
        }
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        Some(Self { start: number(&prefix[3..7]), tenant: number(&prefix[7..11]) })
    }
}

/// Where the partitions begin.
pub(crate) fn partitions() -> [u8; 1] {
    [PARTITIONS]
}

/// Start of the window of a time.
pub(crate) fn window_of(time_ns: i64) -> i64 {
    time_ns.div_euclid(WINDOW_NS) * WINDOW_NS
}

pub(crate) fn tenants() -> [u8; 1] {
    [TENANTS]
}

pub(crate) fn tenant(id: u32) -> Vec<u8> {
    let mut key = vec![TENANTS];
    key.extend(id.to_be_bytes());
    key
}

/// A batch id that was proposed in this period.
pub(crate) fn batch_id(period: u32, id: BatchId) -> Vec<u8> {
    let mut key = batch_ids(period);
    key.extend(id.0.to_be_bytes());
    key
}

/// The first key of a period's batch ids.
pub(crate) fn batch_ids(period: u32) -> Vec<u8> {
    let mut key = vec![BATCH_IDS];
    key.extend(period.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_found_by_any_of_its_keys_and_all_lie_in_its_range() {
        let time_ns = 1_790_000_000_000_000_000;
        let partition = PartitionKey::of(7, time_ns);
        assert!(partition.start_ns() <= time_ns && time_ns < partition.end_ns());
        let keys =
            [partition.series_block(1), partition.dictionary_block(2), partition.chunk(u32::MAX, time_ns, u64::MAX)];
        for key in keys {
            assert_eq!(PartitionKey::of_key(&key), Some(partition));
            assert!(partition.prefix() <= key && key < partition.end());
        }
        assert_eq!(PartitionKey::of_key(&tenant(1)), None);
        assert!(partition.end() <= PartitionKey::of(8, time_ns).prefix());
        assert!(PartitionKey::of(8, time_ns).end() <= PartitionKey::of(0, time_ns + PARTITION_NS).prefix());
    }
}
