//! The state database: one RocksDB without a WAL, and the few values that are not a partition's.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proto::TenantId;
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Options, WriteOptions};

use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::key::{self, PartitionKey};
use crate::partition::scan;
use crate::{Config, Position};

/// Version of everything in `FORMAT.md`.
pub(crate) const FORMAT_VERSION: u32 = 2;

/// Bits of the bloom filter per key: batch ids are asked for on every append and are mostly not there.
const BLOOM_BITS: f64 = 10.0;

/// A write buffer is flushed when [`crate::Engine::flush`] says so; this only bounds what one sealing may hold.
const WRITE_BUFFER_BYTES: usize = 64 << 20;

pub(crate) fn open(config: &Config) -> Result<DB, EngineError> {
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(BLOOM_BITS, false);
    table.set_block_cache(&Cache::new_lru_cache(config.cache_bytes));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    // Values are packed already.
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_background_jobs(2);
    options.set_keep_log_file_num(4);
    options.set_max_open_files(512);
    let database = DB::open(&options, &config.directory)?;
    check_format(&database)?;
    Ok(database)
}

fn check_format(database: &DB) -> Result<(), EngineError> {
    match database.get(key::FORMAT)? {
        Some(value) => {
            let found = u32::from_be_bytes(exact(key::FORMAT, &value)?);
            if found == FORMAT_VERSION { Ok(()) } else { Err(EngineError::Format { found, expected: FORMAT_VERSION }) }
        }
        None => {
            let mut options = WriteOptions::default();
            options.disable_wal(true);
            Ok(database.put_opt(key::FORMAT, FORMAT_VERSION.to_be_bytes(), &options)?)
        }
    }
}

fn exact<const N: usize>(key: &[u8], value: &[u8]) -> Result<[u8; N], Corruption> {
    value.try_into().map_err(|_length| Corruption { key: key.to_vec(), check: CorruptionCheck::Length })
}

/// | log index u64 | the log's own id … |
pub(crate) fn position_value(position: &Position) -> Vec<u8> {
    let mut value = position.index.to_be_bytes().to_vec();
    value.extend(&position.log_id);
    value
}

pub(crate) fn read_position(database: &DB) -> Result<Option<Position>, EngineError> {
    let Some(value) = database.get(key::APPLIED)? else { return Ok(None) };
    let Some((index, log_id)) = value.split_first_chunk() else {
        return Err(Corruption { key: key::APPLIED.to_vec(), check: CorruptionCheck::Length }.into());
    };
    Ok(Some(Position { index: u64::from_be_bytes(*index), log_id: Bytes::copy_from_slice(log_id) }))
}

pub(crate) fn read_clock(database: &DB) -> Result<i64, EngineError> {
    match database.get(key::CLOCK)? {
        Some(value) => Ok(i64::from_be_bytes(exact(key::CLOCK, &value)?)),
        None => Ok(0),
    }
}

pub(crate) fn read_tenants(database: &DB) -> Result<BTreeMap<TenantId, u32>, EngineError> {
    let mut tenants = BTreeMap::new();
    for item in scan(database, &key::tenants()) {
        let (at, value) = item?;
        let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
        let name = std::str::from_utf8(&value).map_err(|_not_utf8| corrupt())?;
        let id = at.get(1..).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes).ok_or_else(corrupt)?;
        tenants.insert(TenantId::new(name).map_err(|_no_name| corrupt())?, id);
    }
    Ok(tenants)
}

/// Every partition that has a key, found by seeking from one to the next.
pub(crate) fn read_partition_keys(database: &DB) -> Result<BTreeSet<PartitionKey>, EngineError> {
    let mut keys = BTreeSet::new();
    let mut cursor = database.raw_iterator();
    cursor.seek(key::partitions());
    while let Some(partition) = cursor.key().and_then(PartitionKey::of_key) {
        keys.insert(partition);
        cursor.seek(partition.end());
    }
    cursor.status()?;
    Ok(keys)
}
