//! The table files of the log, and merges of them, which return the space of purged entries to the file system.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rocksdb::properties::CUR_SIZE_ALL_MEM_TABLES;
use rocksdb::{BottommostLevelCompaction, CStrLike, CompactOptions, LiveFile, Range};

use crate::consensus::log::LogDatabase;
use crate::consensus::log::families::{LOG, META};
use crate::consensus::record::entry_key;
use crate::error::ReplicaError;
use crate::space::Space;

/// Conditions for a reclaim.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Largest number of bytes that may be written for each byte that is returned.
    pub(crate) written_max: u64,
    /// Size of the entries of each shard that are not purged, in bytes; `None` if it is not known.
    pub(crate) live: BTreeMap<u32, Option<u64>>,
    /// Free space that must be left, in bytes.
    pub(crate) reserve_bytes: u64,
}

impl LogDatabase {
    /// Returns true if entries were purged since the last reclaim.
    pub(crate) fn is_reclaimable(&self) -> bool {
        self.purged.load(Ordering::Acquire)
    }

    /// Returns the space of purged entries to the file system, if the terms allow it. Returns true if it was tried. If
    /// that failed, [`LogDatabase::is_reclaimable`] stays true. Blocks for a long time.
    ///
    /// This writes the entries of all shards again that are not purged, so it needs space for them. Each file of a
    /// flush has entries of all shards, so the shards cannot be merged separately.
    pub(crate) fn reclaim(&self, terms: &Terms) -> Result<bool, ReplicaError> {
        let _reclaiming = self.reclaiming.lock();
        if !self.is_reclaimable() {
            return Ok(false);
        }
        let live = terms.live.iter().map(|(shard, known)| known.map_or_else(|| self.live_bytes(*shard), Ok));
        let live = live.sum::<Result<u64, _>>()?;
        let in_memory = self.property(LOG, CUR_SIZE_ALL_MEM_TABLES)? + self.property(META, CUR_SIZE_ALL_MEM_TABLES)?;
        let in_files: u64 = self.files()?.iter().map(|file| file.size as u64).sum();
        let purged = (in_files + in_memory).saturating_sub(live);
        let needed = live.saturating_add(in_memory).saturating_add(terms.reserve_bytes);
        let space = Space::of(self.directory().path()).map_err(ReplicaError::Files)?;
        if live > purged.saturating_mul(terms.written_max) || needed > space.free_bytes {
            return Ok(false);
        }
        // A purge that is written from now on sets it again. The flush includes all earlier ones.
        self.purged.store(false, Ordering::Release);
        let merged = self.flush().and_then(|()| self.merge());
        if !matches!(merged, Ok(true)) {
            self.purged.store(true, Ordering::Release);
        }
        // The end of the merge is no failure if the log is being closed.
        if self.is_closing.load(Ordering::Acquire) { Ok(false) } else { merged.map(|_| true) }
    }

    /// Merges all table files of entries. Returns false if RocksDB failed to do this. It does not return the error, but
    /// if the files are damaged, it refuses later writes.
    fn merge(&self) -> Result<bool, ReplicaError> {
        let unmerged = |file: LiveFile| (file.level == 0).then_some(file.name);
        let before: Vec<String> = self.files()?.into_iter().filter_map(unmerged).collect();
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Skip);
        // One call for all shards. With a call for each one, every flush in between would make the next call write all
        // entries again.
        self.database.compact_range_cf_opt(self.family(LOG)?, None::<&[u8]>, None::<&[u8]>, &options);
        let is_left = self.files()?.into_iter().filter_map(unmerged).any(|name| before.contains(&name));
        if is_left && !self.is_closing.load(Ordering::Acquire) {
            tracing::warn!("the space of purged log entries was not reclaimed; will retry");
        }
        Ok(!is_left)
    }

    /// Ends a merge that is running, and refuses later ones. Called before the log is closed.
    pub(crate) fn stop_merges(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.database.cancel_all_background_work(false);
    }

    /// Returns the table files of entries.
    fn files(&self) -> Result<Vec<LiveFile>, ReplicaError> {
        let mut files = self.database.live_files().map_err(ReplicaError::Log)?;
        files.retain(|file| file.column_family_name == LOG);
        Ok(files)
    }

    /// Returns about the size in table files of a shard's entries that are not purged, in bytes.
    fn live_bytes(&self, shard: u32) -> Result<u64, ReplicaError> {
        self.table_bytes(shard, self.last_purged(shard)?.map_or(0, |last| last.index + 1))
    }

    /// Returns about the size in table files of a shard's entries from the index `start` on, in bytes. It is not too
    /// small, but may include an earlier entry of each file.
    pub(crate) fn table_bytes(&self, shard: u32, start: u64) -> Result<u64, ReplicaError> {
        // The index of a file does not tell apart an entry and keys between it and the next entry.
        let [start, end] = [entry_key(shard, start), entry_key(shard.saturating_add(1), 0)];
        let sizes = self.database.get_approximate_sizes_cf(self.family(LOG)?, &[Range::new(&start, &end)]);
        Ok(sizes.into_iter().sum())
    }

    /// Returns a number that RocksDB knows about a family; 0 if it does not know the property.
    fn property(&self, name: &'static str, property: impl CStrLike) -> Result<u64, ReplicaError> {
        let value = self.database.property_int_value_cf(self.family(name)?, property);
        Ok(value.map_err(ReplicaError::Log)?.unwrap_or_default())
    }
}
