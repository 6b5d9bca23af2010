//! Settling: everything that can be sealed, rolled up and compacted is, so that anyone can count the bytes from outside.

use proto::Tier;
use rocksdb::{BottommostLevelCompaction, CompactOptions, WriteBatch};

use crate::Flushed;
use crate::database::unlogged;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::flush::Sealing;
use crate::key::PartitionKey;

impl Engine {
    /// Seals every head, builds every rollup whose time is over, makes each dictionary one block, and compacts. Returns up to
    /// where the state is durable then. Takes long.
    ///
    /// # Errors
    /// As [`Engine::flush`].
    pub fn settle(&self) -> Result<Flushed, EngineError> {
        let settled = {
            let _writing = self.writing.lock();
            self.write_all(WriteBatch::default(), Sealing::Before(i64::MAX))?;
            let clock_ns = self.state.read().clock_ns;
            self.roll_up(clock_ns)?;
            let keys: Vec<PartitionKey> =
                self.state.read().existing.iter().filter(|key| key.tier != Tier::Raw).copied().collect();
            for key in keys {
                self.join_dictionary(key)?;
            }
            self.make_durable()?
        };
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.database.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        Ok(settled)
    }

    /// Makes the blocks of a partition's dictionary one: they repeat the names that they share. The caller holds `writing`.
    fn join_dictionary(&self, key: PartitionKey) -> Result<(), EngineError> {
        let Some(partition) = self.partition(key)? else { return Ok(()) };
        let vocabulary = self.vocabulary(key.tenant);
        let mut batch = WriteBatch::default();
        {
            let vocabulary = vocabulary.read();
            let partition = partition.read();
            // What entries define meanwhile is written by the next flush.
            if partition.dictionary_blocks() < 2 {
                return Ok(());
            }
            partition.join_dictionary(&vocabulary, &mut batch)?;
        }
        self.database.write_opt(batch, &unlogged())?;
        partition.write().joined_dictionary();
        Ok(())
    }
}
