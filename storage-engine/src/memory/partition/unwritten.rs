//! Definitions of a partition that a flush writes to the state database.

use rocksdb::WriteBatch;

use crate::database::frame;
use crate::error::EngineError;

/// Definitions for the state database. Values are compressed after all locks are released, because compression is the
/// slowest step.
#[derive(Debug, Default)]
pub(crate) struct Unwritten {
    /// Values that have to be compressed before they are written.
    pub(crate) uncompressed: Vec<UncompressedValue>,
    pub(crate) dropped_names: Option<FramedValue>,
}

/// A value that has to be compressed before it is written.
#[derive(Debug)]
pub(crate) struct UncompressedValue {
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) zstd_level: i32,
}

/// A value with its frame, which needs no compression.
#[derive(Debug)]
pub(crate) struct FramedValue {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Unwritten {
    pub(crate) fn write(self, batch: &mut WriteBatch) -> Result<(), EngineError> {
        for UncompressedValue { key, payload, zstd_level } in self.uncompressed {
            batch.put(&key, frame::pack(&key, &payload, zstd_level)?);
        }
        if let Some(FramedValue { key, value }) = self.dropped_names {
            batch.put(key, value);
        }
        Ok(())
    }
}
