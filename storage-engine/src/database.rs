//! The state database: a RocksDB without a WAL. Also reads and writes the values that belong to no partition.

pub(crate) mod cursor;
pub(crate) mod frame;
pub(crate) mod key;
pub(crate) mod stored_rows;

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use bytes::Bytes;
use proto::{TenantId, Tier, limits};
use rocksdb::{BlockBasedOptions, DB, DBCompressionType, IteratorMode, Options, ReadOptions, WriteBatch, WriteOptions};
use rocksdb_files::manifest::TornTail;

use crate::database::key::{PartitionKey, StaleKey};
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::damaged_keys::Walk;
use crate::{Config, Position};

/// Version of the format in `FORMAT.md`.
pub(crate) const FORMAT_VERSION: u32 = 7;

/// Bits per key of RocksDB's bloom filter, which saves a read for most missing keys. Every append looks up a batch ID,
/// and this ID is usually missing.
const BLOOM_BITS: f64 = 10.0;
/// Size of a table block, in bytes. Keys share long prefixes and values are large, so fewer and larger blocks make a
/// smaller index.
const BLOCK_BYTES: usize = 16 << 10;
/// Size of a write buffer, in bytes. A full buffer is written to a table file. [`crate::Engine::flush`] writes all
/// buffers, so this limit matters only while a flush writes more than one buffer.
const WRITE_BUFFER_BYTES: usize = 32 << 20;

/// The database as of one moment.
pub(crate) type Snapshot<'a> = rocksdb::SnapshotWithThreadMode<'a, DB>;

pub(crate) fn options(config: &Config) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(BLOOM_BITS, false);
    table.set_block_size(BLOCK_BYTES);
    table.set_format_version(6);
    table.set_block_cache(&config.budgets.cache);
    // Index and filter blocks count against the cache.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    // The values are compressed already.
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_write_buffer_manager(&config.budgets.write_buffers);
    options.set_max_background_jobs(2);
    // RocksDB would collect statistics in each of a node's databases, and nobody reads them.
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.set_keep_log_file_num(2);
    options.set_max_open_files(i32::try_from(config.budgets.open_files()).unwrap_or(i32::MAX));
    options
}

/// Opens the database. If `is_damaged`, some table files are damaged, so RocksDB must not compact.
pub(crate) fn open(config: &Config, is_damaged: bool) -> Result<DB, EngineError> {
    let mut options = options(config);
    options.set_disable_auto_compactions(is_damaged);
    // The database then ends before the torn part of RocksDB's list of files, and the node applies the log again from
    // there. If the log begins later, the node refuses the state.
    if let Some(torn) = TornTail::find(&config.directory).map_err(EngineError::Files)? {
        torn.truncate().map_err(EngineError::Files)?;
    }
    let database = DB::open(&options, &config.directory)?;
    check_format(&database)?;
    Ok(database)
}

/// Opens the database for reading. No file changes.
pub(crate) fn open_for_reading(directory: &std::path::Path) -> Result<DB, EngineError> {
    let database = DB::open_for_read_only(&Options::default(), directory, false)?;
    match database.get(key::FORMAT)? {
        Some(value) => check_version(&value)?,
        None => return Err(Corruption { key: key::FORMAT.to_vec(), check: CorruptionCheck::Missing }.into()),
    }
    Ok(database)
}

fn check_format(database: &DB) -> Result<(), EngineError> {
    let Some(value) = database.get(key::FORMAT)? else {
        let value = frame::seal(key::FORMAT, &FORMAT_VERSION.to_be_bytes());
        return Ok(database.put_opt(key::FORMAT, value, &unlogged())?);
    };
    check_version(&value)
}

fn check_version(value: &[u8]) -> Result<(), EngineError> {
    // The value had no frame before version 3 of the format.
    let found = match <[u8; 4]>::try_from(value) {
        Ok(bare) => u32::from_be_bytes(bare),
        Err(_framed) => u32::from_be_bytes(exact(key::FORMAT, value)?),
    };
    match found {
        FORMAT_VERSION => Ok(()),
        _ => Err(EngineError::Format { found, expected: FORMAT_VERSION }),
    }
}

/// Returns write options without a WAL: the Raft log is the only write-ahead log.
pub(crate) fn unlogged() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

/// Adds the frame of a value (version and checksum) to an uncompressed payload, and puts the value into the batch.
pub(crate) fn put(batch: &mut WriteBatch, key: &[u8], payload: &[u8]) {
    batch.put(key, frame::seal(key, payload));
}

fn exact<const N: usize>(key: &[u8], value: &[u8]) -> Result<[u8; N], Corruption> {
    let payload = frame::open(key, value)?;
    payload.try_into().map_err(|_length| Corruption { key: key.to_vec(), check: CorruptionCheck::Length })
}

/// Key and value of one entry of the database.
pub(crate) type Item = (Box<[u8]>, Box<[u8]>);

/// Iterates in order over all entries of a snapshot whose keys begin with `prefix`.
pub(crate) fn scan<'a>(
    snapshot: &'a Snapshot<'_>,
    prefix: &[u8],
) -> impl Iterator<Item = Result<Item, rocksdb::Error>> + 'a {
    let mut end = prefix.to_vec();
    // Keys with this prefix sort before this end, because none continues with 20 bytes of ones.
    end.extend([0xff; 20]);
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(end);
    snapshot.iterator_opt(IteratorMode::From(prefix, rocksdb::Direction::Forward), options)
}

/// Puts the position into the batch: | log index u64 | the log's own ID ... |
pub(crate) fn put_position(batch: &mut WriteBatch, position: &Position) {
    let mut value = position.index.to_be_bytes().to_vec();
    value.extend(&position.log_id);
    put(batch, key::APPLIED, &value);
}

pub(crate) fn read_position(snapshot: &Snapshot<'_>) -> Result<Option<Position>, EngineError> {
    let Some(value) = snapshot.get(key::APPLIED)? else { return Ok(None) };
    let Some((index, log_id)) = frame::open(key::APPLIED, &value)?.split_first_chunk() else {
        return Err(Corruption { key: key::APPLIED.to_vec(), check: CorruptionCheck::Length }.into());
    };
    Ok(Some(Position { index: u64::from_be_bytes(*index), log_id: Bytes::copy_from_slice(log_id) }))
}

pub(crate) fn read_membership(snapshot: &Snapshot<'_>) -> Result<Option<Bytes>, EngineError> {
    let Some(value) = snapshot.get(key::MEMBERSHIP)? else { return Ok(None) };
    Ok(Some(Bytes::copy_from_slice(frame::open(key::MEMBERSHIP, &value)?)))
}

pub(crate) fn read_clock(snapshot: &Snapshot<'_>) -> Result<i64, EngineError> {
    match snapshot.get(key::CLOCK)? {
        Some(value) => Ok(i64::from_be_bytes(exact(key::CLOCK, &value)?)),
        None => Ok(0),
    }
}

/// Reads the start of the oldest partition that was ever there, in nanoseconds since 1970; `None` if there was none.
pub(crate) fn read_oldest(snapshot: &Snapshot<'_>) -> Result<Option<i64>, EngineError> {
    let Some(value) = snapshot.get(key::OLDEST)? else { return Ok(None) };
    Ok(Some(i64::from_be_bytes(exact(key::OLDEST, &value)?)))
}

pub(crate) fn read_tenants(snapshot: &Snapshot<'_>) -> Result<BTreeMap<TenantId, u32>, EngineError> {
    let mut tenants = BTreeMap::new();
    for item in scan(snapshot, &key::tenants()) {
        let (at, value) = item?;
        let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
        let name = std::str::from_utf8(frame::open(&at, &value)?).map_err(|_not_utf8| corrupt())?;
        let id = at.get(1..).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes).ok_or_else(corrupt)?;
        tenants.insert(TenantId::new(name).map_err(|_no_name| corrupt())?, id);
    }
    Ok(tenants)
}

/// Time up to which partitions were dropped, by tier and retention class, in nanoseconds since 1970.
pub(crate) type Expired = BTreeMap<(Tier, u8), i64>;

pub(crate) fn put_expired(batch: &mut WriteBatch, tier: Tier, class: u8, before_ns: i64) {
    put(batch, &key::expired(tier, class), &before_ns.to_be_bytes());
}

pub(crate) fn read_expired(snapshot: &Snapshot<'_>) -> Result<Expired, EngineError> {
    let mut expired = Expired::new();
    for item in scan(snapshot, key::EXPIRED) {
        let (at, value) = item?;
        let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
        let &[tier, class] = at.get(key::EXPIRED.len()..).unwrap_or_default() else { return Err(corrupt().into()) };
        let tier = Tier::from_number(tier).ok_or_else(corrupt)?;
        expired.insert((tier, class), i64::from_be_bytes(exact(&at, &value)?));
    }
    Ok(expired)
}

pub(crate) fn read_stale(snapshot: &Snapshot<'_>) -> Result<BTreeSet<StaleKey>, EngineError> {
    let mut stale = BTreeSet::new();
    let mut walk = Walk::new(snapshot, key::stale().to_vec());
    while let Some(item) = walk.next()? {
        // A mark in a block that cannot be read is missing here. It is restored when the engine is opened.
        let Ok((at, _)) = item else { continue };
        // The window is in the key, and the value is empty. If the value is damaged, at worst the window is summed
        // again without need.
        let read = StaleKey::read(&at);
        stale.insert(read.ok_or_else(|| Corruption { key: at.to_vec(), check: CorruptionCheck::Content })?);
    }
    Ok(stale)
}

/// Returns every partition that has a key. Seeks from one partition to the next instead of reading all keys.
pub(crate) fn read_partition_keys(snapshot: &Snapshot<'_>) -> Result<BTreeSet<PartitionKey>, EngineError> {
    let mut keys = BTreeSet::new();
    let mut damaged = Vec::new();
    let mut walk = Walk::new(snapshot, key::partitions().to_vec());
    while let Some(item) = walk.next()? {
        match item {
            Ok((at, _)) => {
                let Some(partition) = PartitionKey::of_key(&at) else { continue };
                keys.insert(partition);
                walk.seek(partition.end());
            }
            Err(range) => damaged.push(range),
        }
    }
    if !damaged.is_empty() {
        let tenants: Vec<u32> = read_tenants(snapshot)?.into_values().collect();
        let clock_ns = read_clock(snapshot)?;
        let oldest_ns = read_oldest(snapshot)?;
        let known = keys.clone();
        for range in &damaged {
            let is_lost = |key: &PartitionKey| range.from < key.end() && key.prefix() < range.to;
            keys.extend(that_may_exist(&known, &range.from, &tenants, oldest_ns, clock_ns).filter(is_lost));
        }
    }
    Ok(keys)
}

/// Returns the partitions that may exist in the unreadable keys from `from` on: for each tenant, those of every tier
/// from `oldest_ns`, or else the first `known` partition, up to `until_ns`. Time alone limits them, because one range
/// of unreadable keys may hold all tiers of a time.
pub(crate) fn that_may_exist(
    known: &BTreeSet<PartitionKey>,
    from: &[u8],
    tenants: &[u32],
    oldest_ns: Option<i64>,
    until_ns: i64,
) -> impl Iterator<Item = PartitionKey> {
    // The samples of an entry may be ahead of its time.
    let until_ns = until_ns.saturating_add(limits::TIME_AHEAD_MAX_NS);
    let first = PartitionKey::of_key(from);
    let starts = known.iter().copied().chain(first).map(PartitionKey::start_ns);
    let start_ns = starts.chain(oldest_ns).min().unwrap_or(until_ns);
    let classes: BTreeSet<u8> = known.iter().copied().chain(first).map(|key| key.class).chain([0]).collect();
    let of_tier = move |(class, tier)| {
        let at = move |time_ns: i64| PartitionKey::of(tier, class, 0, time_ns.saturating_add(1));
        let next = move |key: &PartitionKey| Some(at(key.end_ns())).filter(|next| next > key);
        iter::successors(Some(at(start_ns)), next).take_while(move |key| key.start_ns() <= until_ns)
    };
    let times = classes.into_iter().flat_map(|class| Tier::ALL.map(|tier| (class, tier))).flat_map(of_tier);
    times.flat_map(move |key| tenants.iter().map(move |&tenant| key.of_tenant(tenant)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_another_version_is_refused_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let database = DB::open_default(folder.path()).unwrap();
        let version = || u32::from_be_bytes(exact(key::FORMAT, &database.get(key::FORMAT).unwrap().unwrap()).unwrap());
        check_format(&database).unwrap();
        assert_eq!(version(), FORMAT_VERSION);
        for unknown in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
            database.put(key::FORMAT, frame::seal(key::FORMAT, &unknown.to_be_bytes())).unwrap();
            let error = check_format(&database).unwrap_err();
            assert!(matches!(error, EngineError::Format { found, .. } if found == unknown), "{error}");
            assert_eq!(version(), unknown, "unchanged");
        }
    }
}
