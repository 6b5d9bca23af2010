//! The RocksDB that holds the Raft logs of all shards of a node, with its WAL on.
//!
//! ```text
//! column family  key                          value
//! log            shard u32 | index u64        entry record
//! meta           shard u32 | `v`              vote record
//! meta           shard u32 | `p`              log id record: the last entry that was cut off
//! meta           `node`                       node id u64
//! ```
//!
//! Integers are big-endian. Vote and log are in one database because their order must survive a crash, and one sync serves
//! all shards.

use std::path::Path;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use rocksdb::{
    BottommostLevelCompaction, ColumnFamily, CompactOptions, DB, Direction, IteratorMode, ReadOptions, WriteBatch,
};

use crate::consensus::purged_ranges::PurgedRanges;
use crate::consensus::record::{self, RecordError, entry_key};
use crate::consensus::recovery;
use crate::consensus::sync_thread::SyncThread;
use crate::consensus::synced_mark::SyncedMark;
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::error::{NodeError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::{Metrics, gauge};

pub(crate) const LOG: &str = "log";
pub(crate) const META: &str = "meta";
const NODE_KEY: &[u8] = b"node";

/// One for all shards. Writing does not sync; [`LogDatabase::sync`] does.
#[derive(Debug)]
pub(crate) struct LogDatabase {
    database: Arc<DB>,
    // Behind `database`: its thread holds a reference.
    sync_thread: SyncThread,
    failure: Failure,
    metrics: Metrics,
    /// Entries that were purged and still take space.
    purged: Mutex<PurgedRanges>,
    /// Held while space is given back.
    reclaiming: Mutex<()>,
    /// Dropped last: while anybody can upgrade it, files may be open.
    open: Arc<()>,
}

impl LogDatabase {
    /// Opens or makes the database of this node.
    pub(crate) fn open(path: &Path, node_id: u64, failure: Failure, metrics: Metrics) -> Result<Self, NodeError> {
        let database = Arc::new(recovery::open(path)?);
        let mark = SyncedMark::open(path)?;
        let sync_thread = SyncThread::start(Arc::clone(&database), mark, failure.clone(), metrics.clone())
            .map_err(|source| NodeError::Directory { directory: path.to_owned(), source })?;
        let purged = Mutex::new(PurgedRanges::default());
        let (reclaiming, open) = (Mutex::new(()), Arc::default());
        let log = Self { database, sync_thread, failure, metrics, purged, reclaiming, open };
        log.check_node(node_id)?;
        log.find_purged()?;
        Ok(log)
    }

    /// Entries that an earlier process purged may still take space: it may have ended before it reclaimed them, or failed to.
    fn find_purged(&self) -> Result<(), ReplicaError> {
        for item in self.database.iterator_cf(self.family(META)?, IteratorMode::Start) {
            let (key, value) = item.map_err(ReplicaError::Log)?;
            if let [a, b, c, d, b'p'] = *key {
                let (shard, upto) = (u32::from_be_bytes([a, b, c, d]), record::decode_log_id(&value)?);
                self.purged.lock().add(shard, entry_key(shard, 0), entry_key(shard, upto.index + 1));
            }
        }
        Ok(())
    }

    fn check_node(&self, node_id: u64) -> Result<(), NodeError> {
        match self.get(NODE_KEY)? {
            Some(value) => {
                let length = |_length| ReplicaError::Record(RecordError::Length { record: "node id" });
                let found = u64::from_be_bytes(value.as_ref().try_into().map_err(length)?);
                if found == node_id { Ok(()) } else { Err(NodeError::OtherNode { found, expected: node_id }) }
            }
            None => {
                let mut batch = WriteBatch::default();
                batch.put_cf(self.family(META)?, NODE_KEY, node_id.to_be_bytes());
                Ok(self.write(batch)?)
            }
        }
    }

    /// Has no strong references when all files are closed; the last reference to this may have gone a moment before.
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

    /// Why RocksDB refuses to write. Once a sync has failed it does, in one of several words, and maybe before that sync's caller is
    /// told: the failed sync is reported before its consequences are.
    fn refused(&self, error: rocksdb::Error) -> ReplicaError {
        self.sync_thread.wait_for_report();
        ReplicaError::Log(error)
    }

    /// Calls back when everything written before is on disk.
    pub(crate) fn sync(&self, callback: IOFlushed<Types>, entries: usize) -> Result<(), ReplicaError> {
        self.sync_thread.request(callback, entries)
    }

    /// Writes entries.
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

    /// The entries of `[start, end)` that there are, without gaps; stops early behind `bytes_max`, but not before the first.
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
            if let Some(before) = entries.last()
                && entry.log_id.index != before.log_id.index + 1
            {
                return Err(RecordError::Missing { shard, index: before.log_id.index + 1 }.into());
            }
            entries.push(entry);
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(entries)
    }

    pub(crate) fn last(&self, shard: u32) -> Result<Option<LogEntry>, ReplicaError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(entry_key(shard, 0));
        let last = entry_key(shard, u64::MAX);
        let mode = IteratorMode::From(&last, Direction::Reverse);
        let item = self.database.iterator_cf_opt(self.family(LOG)?, options, mode).next();
        let Some((key, value)) = item.transpose().map_err(ReplicaError::Log)? else { return Ok(None) };
        Ok(Some(decode(&key, value)?))
    }

    /// Drops the entries from `index` on.
    pub(crate) fn truncate(&self, shard: u32, index: u64) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(LOG)?, entry_key(shard, index), entry_key(shard, u64::MAX));
        self.write(batch)
    }

    /// Drops the entries up to `upto` and remembers that.
    pub(crate) fn cut(&self, shard: u32, upto: &LogId) -> Result<(), ReplicaError> {
        let before = self.cut_off(shard)?.map_or(0, |log_id| log_id.index + 1);
        // From where the last cut ended: a range that always began at 0 would overlap every file there is.
        let (from, to) = (entry_key(shard, before), entry_key(shard, upto.index + 1));
        let mut batch = WriteBatch::default();
        batch.delete_range_cf(self.family(LOG)?, from, to);
        batch.put_cf(self.family(META)?, meta_key(shard, b'p'), record::encode_log_id(upto));
        self.write(batch)?;
        self.metrics.first_log_index.set(gauge(upto.index + 1));
        self.purged.lock().add(shard, from, to);
        Ok(())
    }

    /// The last entry that was cut off.
    pub(crate) fn cut_off(&self, shard: u32) -> Result<Option<LogId>, ReplicaError> {
        let Some(value) = self.get(&meta_key(shard, b'p'))? else { return Ok(None) };
        Ok(Some(record::decode_log_id(&value)?))
    }

    /// Whether anything was cut off that [`LogDatabase::reclaim`] has not reclaimed.
    pub(crate) fn is_reclaimable(&self) -> bool {
        !self.purged.lock().is_empty()
    }

    /// Gives the space of what was cut off back to the file system. Takes long: not for an async task.
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
        for (from, to) in purged.iter() {
            self.database.compact_range_cf_opt(self.family(LOG)?, Some(from), Some(to), &options);
        }
        Ok(())
    }

    /// Writes everything to files of its own, so that no old WAL file is needed any more.
    pub(crate) fn flush(&self) -> Result<(), ReplicaError> {
        for family in [META, LOG] {
            self.database.flush_cf(self.family(family)?).map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    pub(crate) fn write_vote(&self, shard: u32, vote: &Vote) -> Result<(), ReplicaError> {
        let mut batch = WriteBatch::default();
        batch.put_cf(self.family(META)?, meta_key(shard, b'v'), record::encode_vote(vote));
        self.write(batch)
    }

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
