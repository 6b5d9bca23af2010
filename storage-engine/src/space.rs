//! Disk space: what partitions take, and getting it back from those that were dropped.

use rocksdb::{CompactOptions, Range};

use crate::database::read_partition_keys;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::key::{self, PartitionKey};

impl Engine {
    /// Ends of partitions, ascending, and about how many bytes on disk those take that end there. What is only in memory counts
    /// nothing.
    ///
    /// # Errors
    /// [`EngineError`] where the disk cannot be read.
    pub fn disk_bytes_by_end(&self) -> Result<Vec<(i64, u64)>, EngineError> {
        let keys = read_partition_keys(&self.database)?;
        let bounds: Vec<_> = keys.iter().map(|key| (key.prefix(), key.end())).collect();
        let ranges: Vec<_> = bounds.iter().map(|(from, to)| Range::new(from, to)).collect();
        let mut by_end: Vec<(i64, u64)> = Vec::new();
        for (key, bytes) in keys.iter().zip(self.database.get_approximate_sizes(&ranges)) {
            match by_end.last_mut() {
                Some((end_ns, sum)) if *end_ns == key.end_ns() => *sum += bytes,
                _ => by_end.push((key.end_ns(), bytes)),
            }
        }
        Ok(by_end)
    }

    /// Gives back the space of partitions that ended before a time and were dropped: what was not a file of its own lies among
    /// other keys until it is compacted. Takes long; what was dropped must be flushed.
    pub fn reclaim(&self, before_ns: i64) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        let to = PartitionKey::of(0, before_ns).prefix();
        self.database.compact_range_opt(Some(key::partitions()), Some(to), &options);
    }
}
