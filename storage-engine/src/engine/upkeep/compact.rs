//! Settling: everything that can be sealed, rolled up and compacted is, so that anyone can count the bytes from outside.

use std::sync::atomic::Ordering;

use proto::Tier;
use rocksdb::{BottommostLevelCompaction, CompactOptions, WriteBatch};

use crate::Flushed;
use crate::database::key::PartitionKey;
use crate::database::unlogged;
use crate::engine::Engine;
use crate::engine::upkeep::seal::Sealing;
use crate::error::EngineError;

impl Engine {
    /// Seals every head, builds every rollup whose time is over, makes each dictionary one block, and compacts. Returns up to
    /// where the state is durable then. Takes long.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    pub fn settle(&self) -> Result<Flushed, EngineError> {
        // Entries wait for it where the head is full: it is let go between one thing and the next.
        {
            let _writing = self.writing.lock();
            self.write_all(WriteBatch::default(), Sealing::Before(i64::MAX))?;
        }
        let clock_ns = self.state.read().sealing_clock_ns();
        for tier in [Tier::Hour, Tier::Day] {
            for due in self.due(tier, clock_ns) {
                let _writing = self.writing.lock();
                self.roll_up_window(&due)?;
            }
        }
        let keys: Vec<PartitionKey> =
            self.state.read().existing.iter().filter(|key| key.tier != Tier::Raw).copied().collect();
        for key in keys {
            let _writing = self.writing.lock();
            self.join_dictionary(key)?;
        }
        let settled = {
            let _writing = self.writing.lock();
            self.make_durable()?
        };
        if self.has_damaged_files.load(Ordering::Relaxed) {
            // RocksDB refuses all writes after a compaction that read a damaged block.
            return Ok(settled);
        }
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        Ok(settled)
    }

    /// Makes the blocks of a partition's dictionary one: they repeat the names that they share. The caller holds `writing`.
    fn join_dictionary(&self, key: PartitionKey) -> Result<(), EngineError> {
        let partition = match self.partition(key) {
            Ok(Some(partition)) => partition,
            Ok(None) => return Ok(()),
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        if partition.read().dictionary_blocks() < 2 {
            return Ok(());
        }
        let vocabulary = self.vocabulary(key.tenant);
        // What entries define meanwhile is written by the next flush.
        let (blocks, whole) = {
            let vocabulary = vocabulary.read();
            let partition = partition.read();
            (partition.dictionary_blocks(), partition.whole_dictionary(&vocabulary))
        };
        let mut batch = WriteBatch::default();
        (0..blocks).for_each(|block| batch.delete(key.dictionary_block(block)));
        whole.write(&mut batch)?;
        self.database.write_opt(batch, &unlogged())?;
        partition.write().joined_dictionary();
        Ok(())
    }
}
