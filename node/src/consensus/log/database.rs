//! The RocksDB database of the Raft logs of all shards of a node. RocksDB's WAL is on.
//!
//! ```text
//! column family  key                          value
//! log            shard u32 | index u64        entry record
//! meta           shard u32 | `v`              vote record
//! meta           shard u32 | `p`              log id record: the last purged entry
//! meta           shard u32 | `r`              replica record: the identity of the replica
//! meta           `node`                       node id u64
//! meta           `directory`                  directory record: the identity of the data directory
//! meta           `time`                       time record: the limit of accepted time
//! meta           `shards`                     shards record: the number of shards of the node
//! ```
//!
//! Integers are big-endian. Votes and entries are in one database, because the order in which they were written must
//! survive a crash. In addition, one sync then serves all shards.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use rocksdb::{ColumnFamily, DB, Direction, IteratorMode, ReadOptions, WriteBatch};
use storage_engine::Position;
use tokio::sync::oneshot;

use crate::consensus::log::families::{LOG, META, family};
use crate::consensus::log::keys::{DIRECTORY_KEY, NODE_KEY, PURGED, REPLICA, SHARDS_KEY, TIME_KEY, VOTE, meta_key};
use crate::consensus::log::recovery;
use crate::consensus::log::synced_mark::SyncedMark;
use crate::consensus::log::tail::TailBytes;
use crate::consensus::log::write_thread::{Done, SharedTail, Write, WriteThread, Writer};
use crate::consensus::member::{DirectoryId, ReplicaRecord};
use crate::consensus::record::{self, entry_key};
use crate::consensus::types::{LogEntry, LogId, Types, Vote};
use crate::directory::DataDirectory;
use crate::error::{NodeError, RecordError, ReplicaError};
use crate::failure::Failure;
use crate::metrics::Metrics;

/// Properties of a node that the first start stores, and that no later start may change.
#[derive(Clone, Copy, Debug)]
struct Identity {
    directory: DirectoryId,
    /// Number of shards of the node.
    shards: NonZeroU16,
}

/// The logs of all shards. The methods that are not `async` block.
#[derive(Debug)]
pub(crate) struct LogDatabase {
    pub(super) database: Arc<DB>,
    // Declared after `database`: the thread holds the last reference to the database, and drops it when it ends.
    write_thread: WriteThread,
    failure: Failure,
    identity: Identity,
    /// Size of the entries in memory.
    tail_bytes: TailBytes,
    /// True if entries were purged that still take space.
    pub(super) purged: Arc<AtomicBool>,
    /// True once [`LogDatabase::stop_merges`] was called.
    pub(super) is_closing: AtomicBool,
    /// Lock that is held while [`LogDatabase::reclaim`] runs.
    pub(super) reclaiming: Mutex<()>,
    /// The last stored accepted time, in nanoseconds since 1970; `None` if none was stored.
    accepted_ns: Mutex<Option<i64>>,
    /// Records of replicas, by shard. A shard without a record has the identity of the data directory.
    replicas: Mutex<BTreeMap<u32, ReplicaRecord>>,
    /// Marker that the database is open. It is dropped last: once a weak reference to it cannot be upgraded, all files
    /// are closed.
    open: Arc<()>,
    /// The directory, which stays locked until all files are closed.
    directory: Arc<DataDirectory>,
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
        let purged = Arc::<AtomicBool>::default();
        let writer = Writer {
            database: Arc::clone(&database),
            mark,
            failure: failure.clone(),
            metrics,
            purged: Arc::clone(&purged),
            in_flight: Arc::default(),
        };
        let write_thread =
            WriteThread::start(writer).map_err(|source| NodeError::Directory { directory: path.to_owned(), source })?;
        let mut log = Self {
            database,
            write_thread,
            failure,
            identity: Identity { directory: DirectoryId::default(), shards: NonZeroU16::MIN },
            tail_bytes: TailBytes::default(),
            purged,
            is_closing: AtomicBool::default(),
            reclaiming: Mutex::default(),
            accepted_ns: Mutex::default(),
            replicas: Mutex::default(),
            open: Arc::default(),
            directory: Arc::clone(directory),
        };
        log.identity = log.identify(node_id, shards)?;
        *log.accepted_ns.lock() = log.read_accepted()?;
        log.read_shards()?;
        Ok(log)
    }

    /// Reads the records of replicas, and whether earlier processes purged entries, because these may still take space.
    fn read_shards(&self) -> Result<(), ReplicaError> {
        for item in self.database.iterator_cf(self.family(META)?, IteratorMode::Start) {
            let (key, value) = item.map_err(ReplicaError::Log)?;
            if let [_, _, _, _, PURGED] = *key {
                self.purged.store(true, Ordering::Release);
            } else if let [a, b, c, d, REPLICA] = *key {
                self.replicas.lock().insert(u32::from_be_bytes([a, b, c, d]), record::decode_replica(&value)?);
            }
        }
        Ok(())
    }

    /// Checks the node id and the number of shards, or stores them in a new database. Returns the identity.
    fn identify(&self, node_id: u64, shards: Option<NonZeroU16>) -> Result<Identity, NodeError> {
        let Some(value) = self.get(NODE_KEY)? else {
            let shards = shards.unwrap_or(NonZeroU16::MIN);
            let directory = random_identity().map_err(ReplicaError::Files)?;
            let mut batch = WriteBatch::default();
            batch.put_cf(self.family(META)?, NODE_KEY, node_id.to_be_bytes());
            batch.put_cf(self.family(META)?, DIRECTORY_KEY, record::encode_directory(&directory));
            batch.put_cf(self.family(META)?, SHARDS_KEY, record::encode_shards(shards));
            // The thread does not write yet. Other nodes are told the identity, so it is synced before that.
            self.database.write(batch).map_err(ReplicaError::Log)?;
            self.database.flush_wal(true).map_err(ReplicaError::Sync)?;
            return Ok(Identity { directory, shards });
        };
        let length = |_length| ReplicaError::Record(RecordError::Length { record: "node id" });
        let found = u64::from_be_bytes(value.as_ref().try_into().map_err(length)?);
        if found != node_id {
            return Err(NodeError::OtherNode { found, expected: node_id });
        }
        // An empty value stands for a missing one: both have the wrong length.
        let directory = self.get(DIRECTORY_KEY)?.unwrap_or_default();
        let directory = record::decode_directory(&directory).map_err(ReplicaError::Record)?;
        let found = self.get(SHARDS_KEY)?.unwrap_or_default();
        let found = record::decode_shards(&found).map_err(ReplicaError::Record)?;
        match shards {
            Some(expected) if expected != found => Err(NodeError::OtherShards { found, expected }),
            _ => Ok(Identity { directory, shards: found }),
        }
    }

    /// Returns the data directory, which stays locked as long as there is a reference to it.
    pub(crate) fn directory(&self) -> &Arc<DataDirectory> {
        &self.directory
    }

    /// Returns the identity of the data directory. A node with a new, empty directory has another one.
    pub(crate) fn directory_id(&self) -> DirectoryId {
        self.identity.directory
    }

    /// Returns the record of a shard's replica. Without a decision, it has the identity of the data directory.
    pub(crate) fn replica(&self, shard: u32) -> ReplicaRecord {
        let original = ReplicaRecord { identity: Some(self.directory_id()), revision: 0 };
        self.replicas.lock().get(&shard).copied().unwrap_or(original)
    }

    /// Deletes the log and the votes of a shard's replica, and stores another record. Returns when that is synced. The
    /// replica must be closed.
    pub(crate) async fn renew_replica(&self, shard: u32, replica: ReplicaRecord) -> Result<(), Arc<ReplicaError>> {
        self.write(Write::Renew { shard, replica }).await?;
        self.replicas.lock().insert(shard, replica);
        Ok(())
    }

    /// Returns the number of shards of the node. They are numbered from
    /// [`FIRST_DATA_SHARD`](proto::placement::FIRST_DATA_SHARD) on.
    pub(crate) fn shards(&self) -> NonZeroU16 {
        self.identity.shards
    }

    pub(super) fn tail_bytes(&self) -> &TailBytes {
        &self.tail_bytes
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
    pub(crate) async fn store_accepted(&self, accepted_ns: i64) -> Result<(), Arc<ReplicaError>> {
        self.write(Write::Time(accepted_ns)).await?;
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

    pub(super) fn family(&self, name: &'static str) -> Result<&ColumnFamily, ReplicaError> {
        family(&self.database, name)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReplicaError> {
        let value = self.database.get_cf(self.family(META)?, key).map_err(ReplicaError::Log)?;
        Ok(value.map(Bytes::from))
    }

    /// Writes, and returns when the write is synced.
    pub(super) async fn write(&self, write: Write) -> Result<(), Arc<ReplicaError>> {
        let (done, written) = oneshot::channel();
        let ended = |error| self.failure.report(error);
        self.write_thread.request(write, Done::Writer(done)).await.map_err(ended)?;
        let dropped = |dropped: oneshot::error::RecvError| ReplicaError::Consensus(dropped.into());
        written.await.map_err(|error| self.failure.report(dropped(error)))?
    }

    /// Blocks until all entries that were appended before this call are on disk.
    pub(crate) fn wait_until_synced(&self) -> Result<(), Arc<ReplicaError>> {
        self.blocking_write(Write::Nothing)
    }

    /// Writes, and blocks until the write is synced.
    fn blocking_write(&self, write: Write) -> Result<(), Arc<ReplicaError>> {
        let (done, written) = oneshot::channel();
        let ended = |error| self.failure.report(error);
        self.write_thread.blocking_request(write, Done::Writer(done)).map_err(ended)?;
        let dropped = |dropped: oneshot::error::RecvError| ReplicaError::Consensus(dropped.into());
        written.blocking_recv().map_err(|error| self.failure.report(dropped(error)))?
    }

    /// Makes a shard's log continue where the shard's state ends: at `flushed`. If a snapshot has replaced the state,
    /// the log may end before that entry, or have another entry in its place. All entries are then deleted. Entries
    /// after that entry are kept, because they may be acknowledged. Returns the position of the last purged entry;
    /// `None` if nothing was purged. The shard's replica must be closed.
    pub(crate) fn align(&self, shard: u32, flushed: Option<&Position>) -> Result<Option<Position>, ReplicaError> {
        let mut purged = self.last_purged(shard)?;
        let flushed = flushed.map(|flushed| record::decode_log_id(&flushed.log_id)).transpose()?;
        if let Some(flushed) = flushed.filter(|flushed| purged.is_none_or(|purged| purged.index < flushed.index)) {
            let at = self.read(shard, flushed.index, flushed.index + 1, usize::MAX)?;
            if at.first().is_none_or(|entry| entry.log_id != flushed) {
                tracing::warn!(shard, index = flushed.index, "the log begins after the entries of the state");
                self.blocking_write(Write::Restart { shard, last: flushed })
                    .map_err(|error| ReplicaError::Consensus(error.to_string().into()))?;
                purged = Some(flushed);
            }
        }
        Ok(purged.map(|purged| Position { index: purged.index, log_id: record::encode_log_id(&purged).into() }))
    }

    /// Requests a write of entries, which are already in the tail. `callback` is called when they are synced.
    pub(super) async fn append(
        &self,
        shard: u32,
        entries: Vec<LogEntry>,
        tail: SharedTail,
        callback: IOFlushed<Types>,
    ) -> Result<(), ReplicaError> {
        self.write_thread.request(Write::Append { shard, entries, tail }, Done::Openraft(callback)).await
    }

    /// Writes an entry without a sync, as if the process ended before the sync.
    #[cfg(test)]
    pub(super) fn write_unsynced(&self, shard: u32, entry: &LogEntry) {
        let key = entry_key(shard, entry.log_id.index);
        self.database.put_cf(self.family(LOG).unwrap(), key, record::encode_entry(&key, entry)).unwrap();
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

    /// Returns the log id of the last purged entry; `None` if nothing was purged.
    pub(crate) fn last_purged(&self, shard: u32) -> Result<Option<LogId>, ReplicaError> {
        let Some(value) = self.get(&meta_key(shard, PURGED))? else { return Ok(None) };
        Ok(Some(record::decode_log_id(&value)?))
    }

    /// Writes everything to table files, so that no old WAL file is needed any more.
    pub(crate) fn flush(&self) -> Result<(), ReplicaError> {
        for family in [META, LOG] {
            let flushed = self.database.flush_cf(self.family(family)?);
            flushed.map_err(|error| {
                // A failed sync makes RocksDB refuse writes, so the error of the sync is reported first.
                self.write_thread.wait_for_report();
                ReplicaError::Log(error)
            })?;
        }
        Ok(())
    }

    /// Returns the last vote of a shard; `None` if this node has not voted.
    pub(crate) fn vote(&self, shard: u32) -> Result<Option<Vote>, ReplicaError> {
        let Some(value) = self.get(&meta_key(shard, VOTE))? else { return Ok(None) };
        Ok(Some(record::decode_vote(&value)?))
    }
}

fn decode(key: &[u8], value: Box<[u8]>) -> Result<LogEntry, RecordError> {
    let key = key.try_into().map_err(|_length| RecordError::Length { record: "entry key" })?;
    record::decode_entry(&key, Bytes::from(value))
}

/// Returns 16 random bytes of the operating system.
pub(crate) fn random_identity() -> std::io::Result<[u8; 16]> {
    let mut identity = DirectoryId::default();
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut identity)?;
    Ok(identity)
}
