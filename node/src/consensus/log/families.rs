//! The column families of the log database, and RocksDB's options.

use rocksdb::{
    BlockBasedOptions, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, Options,
};

use crate::error::ReplicaError;

/// Name of the column family of entries, whose keys are shard and index.
pub(super) const LOG: &str = "log";
/// Name of the column family of votes, purge positions, the accepted time, and the identity of the node.
pub(super) const META: &str = "meta";

/// Size of the write buffer of [`LOG`], in bytes. Most entries are purged soon, so a large buffer keeps them out of
/// files.
const LOG_WRITE_BUFFER_BYTES: usize = 32 << 20;
const META_WRITE_BUFFER_BYTES: usize = 1 << 20;
/// Number of unmerged files of [`LOG`] at which RocksDB merges them by itself. The largest of them have the size of a
/// write buffer.
///
/// Each of these files has entries of all shards, so a merge writes all kept entries again. As long as the log keeps
/// less than about 4 GiB, only [`LogDatabase::reclaim`](super::database::LogDatabase::reclaim) merges files. A read of
/// the log looks into each file, which takes up to 20 ms for 128 files.
const LOG_FILES_MAX: i32 = 128;
/// Size of the merged files of [`LOG`], in bytes, at which RocksDB would divide them among several levels, and write
/// entries again to move them from one to the next: never.
const LOG_LEVEL_BYTES: u64 = 1 << 50;
/// Largest total size of the files of the write-ahead log (WAL), in bytes. A column family that is rarely written keeps
/// old WAL files from deletion until this limit is reached.
const WAL_BYTES_MAX: u64 = 128 << 20;

pub(super) fn options(mode: DBRecoveryMode) -> Options {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    // One flush, a merge of the log, which may take a minute, and meanwhile one of the other family.
    options.set_max_background_jobs(3);
    options.set_max_total_wal_size(WAL_BYTES_MAX);
    options.set_keep_log_file_num(4);
    options.set_wal_recovery_mode(mode);
    options
}

pub(super) fn families() -> [ColumnFamilyDescriptor; 2] {
    [
        ColumnFamilyDescriptor::new(LOG, log_options()),
        ColumnFamilyDescriptor::new(META, family_options(META_WRITE_BUFFER_BYTES)),
    ]
}

/// Returns a column family of the open database.
pub(super) fn family<'a>(database: &'a DB, name: &'static str) -> Result<&'a ColumnFamily, ReplicaError> {
    let closed = || ReplicaError::Consensus(format!("the log database has no column family {name}").into());
    database.cf_handle(name).ok_or_else(closed)
}

fn family_options(write_buffer_bytes: usize) -> Options {
    let mut options = Options::default();
    options.set_write_buffer_size(write_buffer_bytes);
    options.set_compression_type(DBCompressionType::None);
    options
}

fn log_options() -> Options {
    let mut options = family_options(LOG_WRITE_BUFFER_BYTES);
    let mut table = BlockBasedOptions::default();
    // A restart reads entries once and in order: caching them would only evict blocks of the engine.
    table.disable_cache();
    options.set_block_based_table_factory(&table);
    options.set_level_zero_file_num_compaction_trigger(LOG_FILES_MAX);
    options.set_level_zero_slowdown_writes_trigger(2 * LOG_FILES_MAX);
    options.set_level_zero_stop_writes_trigger(3 * LOG_FILES_MAX);
    options.set_max_bytes_for_level_base(LOG_LEVEL_BYTES);
    options
}
