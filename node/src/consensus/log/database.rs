//! The RocksDB database of the Raft logs of all shards of a node. RocksDB's WAL is on.
//!
//! ```text
//! column family  key                          value
//! log            shard u32 | index u64        entry record
//! meta           shard u32 | `v`              vote record
//! meta           shard u32 | `p`              log id record: the last purged entry
//! meta           `node`                       node id u64
//! meta           `time`                       time record: the limit of accepted time
//! meta           `shards`                     shards record: the number of shards of the node
//! ```
//!
//! Integers are big-endian. Votes and entries are in one database, because the order in which they were written must
//! survive a crash. In addition, one sync then serves all shards.

use std::num::NonZeroU16;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use openraft::storage::IOFlushed;
use openraft::type_config::TypeConfigExt as _;
use parking_lot::Mutex;
use rocksdb::{
    BottommostLevelCompaction, ColumnFamily, CompactOptions, DB, Direction, IteratorMode, ReadOptions, WriteBatch,
};

use crate::consensus::log::families::{LOG, META};
use crate::consensus::log::purged_ranges::{PurgedRange, PurgedRanges};
use crate::consensus::log::recovery;
use crate::consensus::log::sync_thread::SyncThread;
use crate::consensus::log::synced_mark::SyncedMark;
use crate::consensus::log::unapplied::UnappliedBytes;
use crate::consensus::record::{self, entry_key};
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::directory::DataDirectory;
use crate::error::{NodeError, RecordError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};

const NODE_KEY: &[u8] = b"node";
const TIME_KEY: &[u8] = b"time";
const SHARDS_KEY: &[u8] = b"shards";

/// The logs of all shards. A write is on disk for certain only after a later [`LogDatabase::sync`].
#[derive(Debug)]
pub(crate) struct LogDatabase {
    database: Arc<DB>,
    // Declared after `database`: the thread holds the last reference to the database, and drops it when it ends.
    sync_thread: SyncThread,
    failure: Failure,
    metrics: Metrics,
    /// Number of shards of the node.
    shards: NonZeroU16,
    /// Size of the entries in memory.
    unapplied_bytes: UnappliedBytes,
    /// Ranges of keys whose entries were purged but still take space.
    purged: Mutex<PurgedRanges>,
    /// Lock that is held while [`LogDatabase::reclaim`] runs.
    reclaiming: Mutex<()>,
    /// The last stored accepted time, in nanoseconds since 1970; `None` if none was stored.
    accepted_ns: Mutex<Option<i64>>,
    /// Marker that the database is open. It is dropped last: once a weak reference to it cannot be upgraded, all files
    /// are closed.
    open: Arc<()>,
    /// The directory, which stays locked until all files are closed.
    _directory: Arc<DataDirectory>,
}

impl LogDatabase {
    /// Opens or makes the database of this node. A new database stores the node id and the number of shards, which is 1
    /// if `shards` is `None`. An existing one must have these numbers.
    pub(crate) fn open(
        directory: &Arc<DataDirectory>,
        node_id: u64,
        shards: Option<NonZeroU16>,
        failure: Failure,
        metrics: Metrics,
    ) -> Result<Self, NodeError> {
        let path = &directory.raft();
        let database = Arc::new(recovery::open(path)?);
        let mark = SyncedMark::open(path)?;
        let sync_thread = SyncThread::start(Arc::clone(&database), mark, failure.clone(), metrics.clone())
            .map_err(|source| NodeError::Directory { directory: path.to_owned(), source })?;
        let mut log = Self {
            database,
            sync_thread,
            failure,
            metrics,
            shards: NonZeroU16::MIN,
            unapplied_bytes: UnappliedBytes::default(),
            purged: Mutex::default(),
            reclaiming: Mutex::default(),
            accepted_ns: Mutex::default(),
            open: Arc::default(),
            _directory: Arc::clone(directory),
        };
        log.shards = log.identify(node_id, shards)?;
        *log.accepted_ns.lock() = log.read_accepted()?;
        log.find_purged()?;
        Ok(log)
    }

    /// Records the ranges that earlier processes purged, because their entries may still take space.
    fn find_purged(&self) -> Result<(), ReplicaError> {
        for item in self.database.iterator_cf(self.family(META)?, IteratorMode::Start) {
            let (key, value) = item.map_err(ReplicaError::Log)?;
            if let [a, b, c, d, b'p'] = *key {
                let shard = u32::from_be_bytes([a, b, c, d]);
                let last = record::decode_log_id(&value)?;
                let range = PurgedRange { from: entry_key(shard, 0), to: entry_key(shard, last.index + 1) };
                self.purged.lock().add(shard, range);
            }
        }
        Ok(())
    }

    /// Checks the node id and the number of shards, or stores them in a new database. Returns the number of shards.
    fn identify(&self, node_id: u64, shards: Option<NonZeroU16>) -> Result<NonZeroU16, NodeError> {
        let Some(value) = self.get(NODE_KEY)? else {
            let shards = shards.unwrap_or(NonZeroU16::MIN);
            let mut batch = WriteBatch::default();
            batch.put_cf(self.family(META)?, NODE_KEY, node_id.to_be_bytes());
            batch.put_cf(self.family(META)?, SHARDS_KEY, record::encode_shards(shards));
            self.write(batch)?;
            return Ok(shards);
        };
        let length = |_length| ReplicaError::Record(RecordError::Length { record: "node id" });
        let found = u64::from_be_bytes(value.as_ref().try_into().map_err(length)?);
        if found != node_id {
            return Err(NodeError::OtherNode { found, expected: node_id });
        }
        let found = match self.get(SHARDS_KEY)? {
            Some(value) => record::decode_shards(&value).map_err(ReplicaError::Record)?,
            // Earlier builds had one shard, and did not store the number.
            None => NonZeroU16::MIN,
        };
        match shards {
            Some(expected) if expected != found => Err(NodeError::OtherShards { found, expected }),
            _ => Ok(found),
        }
    }

    /// Removes the number of shards, as in the log of an earlier build.
    #[cfg(test)]
    pub(super) fn forget_shards(&self) {
        self.database.delete_cf(self.family(META).unwrap(), SHARDS_KEY).unwrap();
    }

    /// Returns the number of shards of the node. They are numbered from
    /// [`FIRST_DATA_SHARD`](proto::placement::FIRST_DATA_SHARD) on.
    pub(crate) fn shards(&self) -> NonZeroU16 {
        self.shards
    }

    pub(super) fn unapplied_bytes(&self) -> &UnappliedBytes {
        &self.unapplied_bytes
    }

    /// Reads the accepted time from the database, in nanoseconds since 1970; `None` if none is stored.
    pub(crate) fn read_accepted(&self) -> Result<Option<i64>, ReplicaError> {
        let Some(value) = self.get(TIME_KEY)? else { return Ok(None) };
        Ok(Some(record::decode_time(&value)?))
    }

    /// Returns the last stored accepted time, in nanoseconds since 1970. This time survives restarts and may go back.
    pub(crate) fn accepted_ns(&self) -> Option<i64> {
        *self.accepted_ns.lock()
    }

    /// Stores the accepted time. Returns when the write is synced.
    pub(crate) async fn store_accepted(&self, accepted_ns: i64) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META)?, TIME_KEY, record::encode_time(accepted_ns));
        self.write(batch)?;
        let (sender, receiver) = Types::oneshot();
        self.sync(IOFlushed::signal(sender), 0)?;
        let not_synced = |error: &dyn std::fmt::Display| ReplicaError::Consensus(error.to_string().into());
        receiver.await.map_err(|dropped| not_synced(&dropped))?.map_err(|error| not_synced(&error))?;
        *self.accepted_ns.lock() = Some(accepted_ns);
        Ok(())
    }

    /// Returns a weak reference that can be upgraded until all files are closed. The files may close a moment after the
    /// last reference to `self` is dropped.
    pub(crate) fn while_open(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.failure
    }

    fn family(&self, name: &'static str) -> Result<&ColumnFamily, ReplicaError> {
        let closed = || ReplicaError::Consensus(format!("the log database has no column family {name}").into());
        self.database.cf_handle(name).ok_or_else(closed)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReplicaError> {
        let value = self.database.get_cf(self.family(META)?, key).map_err(ReplicaError::Log)?;
        Ok(value.map(Bytes::from))
    }

    fn write(&self, batch: WriteBatch) -> Result<(), ReplicaError> {
        self.database.write(batch).map_err(|error| self.refused(error))
    }

    /// Returns the error of a refused write. A failed sync makes RocksDB refuse writes, so the error of the sync is
    /// reported first.
    fn refused(&self, error: rocksdb::Error) -> ReplicaError {
        self.sync_thread.wait_for_report();
        ReplicaError::Log(error)
    }

    /// Calls `callback` when everything that was written before this call is on disk. `entries` is the number of
    /// entries that wait for this sync, for the metrics.
    pub(crate) fn sync(&self, callback: IOFlushed<Types>, entries: usize) -> Result<(), ReplicaError> {
        self.sync_thread.request(callback, entries)
    }

    /// Writes entries without syncing them.
    pub(crate) fn append(&self, shard: u32, entries: &[LogEntry]) -> Result<(), ReplicaError> {
        let family = self.family(LOG)?;
        let mut batch = WriteBatch::default();
        for entry in entries {
            let key = entry_key(shard, entry.log_id.index);
            let value = record::encode_entry(&key, entry);
            self.metrics.entry_bytes.inc_by(value.len() as u64);
            batch.put_cf(family, key, value);
        }
        self.write(batch)?;
        self.metrics.entries.inc_by(entries.len() as u64);
        Ok(())
    }

    /// Returns the existing entries with an index in `[start, end)`. A gap between them is an error. Stops after the
    /// entry with which their total size reaches `bytes_max` bytes.
    pub(crate) fn read(
        &self,
        shard: u32,
        start: u64,
        end: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, ReplicaError> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(entry_key(shard, end));
        let first = entry_key(shard, start);
        let mode = IteratorMode::From(&first, Direction::Forward);
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut bytes = 0;
        for item in self.database.iterator_cf_opt(self.family(LOG)?, options, mode) {
            let (key, value) = item.map_err(ReplicaError::Log)?;
            bytes += value.len();
            let entry = decode(&key, value)?;
            if let Some(previous) = entries.last()
                && entry.log_id.index != previous.log_id.index + 1
            {
                return Err(RecordError::Missing { shard, index: previous.log_id.index + 1 }.into());
            }
            entries.push(entry);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(entries)
    }

    /// Returns the last entry of a shard's log; `None` if the log is empty.
    pub(crate) fn last(&self, shard: u32) -> Result<Option<LogEntry>, ReplicaError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(entry_key(shard, 0));
        let last = entry_key(shard, u64::MAX);
        let mode = IteratorMode::From(&last, Direction::Reverse);
        let item = self.database.iterator_cf_opt(self.family(LOG)?, options, mode).next();
        let Some((key, value)) = item.transpose().map_err(ReplicaError::Log)? else { return Ok(None) };
        Ok(Some(decode(&key, value)?))
    }

    /// Deletes the entries whose index is at least `index`.
    pub(crate) fn truncate(&self, shard: u32, index: u64) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(LOG)?, entry_key(shard, index), entry_key(shard, u64::MAX));
        self.write(batch)
    }

    /// Deletes the entries up to and including `last`, and stores `last` as the purge position.
    pub(crate) fn purge(&self, shard: u32, last: &LogId) -> Result<(), ReplicaError> {
        let first = self.last_purged(shard)?.map_or(0, |log_id| log_id.index + 1);
        // The range begins at the end of the last purge. A range that always began at 0 would overlap every file.
        let range = PurgedRange { from: entry_key(shard, first), to: entry_key(shard, last.index + 1) };
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(LOG)?, range.from, range.to);
        batch.put_cf(self.family(META)?, meta_key(shard, b'p'), record::encode_log_id(last));
        self.write(batch)?;
        self.metrics.of_shard(shard).first_log_index.set(gauge(last.index + 1));
        self.purged.lock().add(shard, range);
        Ok(())
    }

    /// Returns the log id of the last purged entry; `None` if nothing was purged.
    pub(crate) fn last_purged(&self, shard: u32) -> Result<Option<LogId>, ReplicaError> {
        let Some(value) = self.get(&meta_key(shard, b'p'))? else { return Ok(None) };
        Ok(Some(record::decode_log_id(&value)?))
    }

    /// Returns true if [`LogDatabase::reclaim`] has space to reclaim.
    pub(crate) fn is_reclaimable(&self) -> bool {
        !self.purged.lock().is_empty()
    }

    /// Returns the space of purged entries to the file system. Blocks for a long time.
    pub(crate) fn reclaim(&self) -> Result<(), ReplicaError> {
        let _reclaiming = self.reclaiming.lock();
        let purged = std::mem::take(&mut *self.purged.lock());
        if purged.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.flush() {
            self.purged.lock().add_all(purged);
            return Err(error);
        }
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
        for PurgedRange { from, to } in purged.iter() {
            self.database.compact_range_cf_opt(self.family(LOG)?, Some(from), Some(to), &options);
        }
        Ok(())
    }

    /// Writes everything to table files, so that no old WAL file is needed any more.
    pub(crate) fn flush(&self) -> Result<(), ReplicaError> {
        for family in [META, LOG] {
            self.database.flush_cf(self.family(family)?).map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    /// Writes a vote without syncing it.
    pub(crate) fn write_vote(&self, shard: u32, vote: &Vote) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META)?, meta_key(shard, b'v'), record::encode_vote(vote));
        self.write(batch)
    }

    /// Returns the last vote of a shard; `None` if this node has not voted.
    pub(crate) fn vote(&self, shard: u32) -> Result<Option<Vote>, ReplicaError> {
        let Some(value) = self.get(&meta_key(shard, b'v'))? else { return Ok(None) };
        Ok(Some(record::decode_vote(&value)?))
    }
}

fn decode(key: &[u8], value: Box<[u8]>) -> Result<LogEntry, RecordError> {
    let key = key.try_into().map_err(|_length| RecordError::Length { record: "entry key" })?;
    record::decode_entry(&key, Bytes::from(value))
}

fn meta_key(shard: u32, tag: u8) -> [u8; 5] {
    let mut key = [tag; 5];
    key[..4].copy_from_slice(&shard.to_be_bytes());
    key
}
