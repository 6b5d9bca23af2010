//! Compacts the state: seals, rolls up and compacts everything, so that its size on disk can be measured.

use std::sync::atomic::Ordering;

use proto::Tier;
use rocksdb::{BottommostLevelCompaction, CompactOptions, WriteBatch};

use crate::Flushed;
use crate::database::key::PartitionKey;
use crate::database::unlogged;
use crate::engine::Engine;
use crate::engine::upkeep::seal::Sealing;
use crate::engine::write_lock::Writing;
use crate::error::EngineError;

impl Engine {
    /// Seals every head, builds every rollup whose time is over, merges the blocks of each dictionary, and compacts
    /// the database. Returns the position up to which the state is durable. Takes long.
    ///
    /// # Errors
    /// Those of [`Engine::flush`].
    pub fn compact(&self) -> Result<Flushed, EngineError> {
        // Entries wait for this lock if the head is full, so it is released between steps.
        {
            let writing = self.writing.lock();
            self.write_all(&writing, WriteBatch::default(), Sealing::Before(i64::MAX))?;
        }
        let clock_ns = self.state.read().clock.sealing_ns();
        for tier in [Tier::Hour, Tier::Day] {
            for due in self.due(tier, clock_ns) {
                let writing = self.writing.lock();
                self.roll_up_window(&writing, &due)?;
            }
        }
        let keys: Vec<PartitionKey> = {
            let state = self.state.read();
            state.partitions.existing().iter().filter(|key| key.tier != Tier::Raw).copied().collect()
        };
        for key in keys {
            let writing = self.writing.lock();
            self.join_dictionary(&writing, key)?;
        }
        let flushed = {
            let writing = self.writing.lock();
            self.make_durable(&writing)?
        };
        if self.has_damaged_files.load(Ordering::Relaxed) {
            // RocksDB refuses all writes after a compaction that read a damaged block.
            return Ok(flushed);
        }
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        Ok(flushed)
    }

    /// Merges the blocks of a partition's dictionary into one, because they repeat shared names.
    fn join_dictionary(&self, _writing: &Writing<'_>, key: PartitionKey) -> Result<(), EngineError> {
        let partition = match self.partition(key) {
            Ok(Some(partition)) => partition,
            Ok(None) => return Ok(()),
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        if partition.read().dictionary_blocks() < 2 {
            return Ok(());
        }
        let shared = self.tenant_dictionary(key.tenant);
        // The next flush writes definitions that entries add meanwhile.
        let (blocks, whole) = {
            let shared = shared.read();
            let partition = partition.read();
            (partition.dictionary_blocks(), partition.whole_dictionary(&shared))
        };
        let mut batch = WriteBatch::default();
        (0..blocks).for_each(|block| batch.delete(key.dictionary_block(block)));
        whole.write(&mut batch)?;
        self.database.write_opt(batch, &unlogged())?;
        partition.write().joined_dictionary();
        Ok(())
    }
}
