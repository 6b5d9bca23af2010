//! Chunks of one window of a series, as stored in the database.

use proto::Samples;

use crate::database::frame;
use crate::database::key::{PartitionKey, Section, events_key};
use crate::encoding::chunk::Chunk;
use crate::engine::store::Store;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::integrity::quarantine::damaged_keys::Walk;

/// Readable chunks of one window of a series, and an error if another chunk cannot be read.
pub(crate) struct WindowChunks {
    pub(crate) chunks: Vec<WindowChunk>,
    pub(crate) damage: Option<EngineError>,
}

/// Key of a chunk, and number of samples in the chunk.
pub(crate) struct WindowChunk {
    pub(crate) key: Vec<u8>,
    pub(crate) samples: u64,
}

/// Returns the readable chunks of a window of a series, and an error if another chunk cannot be read.
pub(crate) fn chunks_of(
    store: &Store,
    raw: PartitionKey,
    window: u32,
    series: u32,
) -> Result<WindowChunks, EngineError> {
    let mut chunks = Vec::new();
    let mut damage = None;
    let snapshot = store.database().snapshot();
    let mut walk = Walk::new(&snapshot, raw.series_window(Section::Chunks, series, window));
    while let Some(item) = walk.next()? {
        match item {
            Ok((key, value)) => match count_of(&key, &value, window) {
                Ok(samples) => chunks.push(WindowChunk { key: key.to_vec(), samples }),
                Err(wrong) => damage = Some(wrong.into()),
            },
            Err(keys) => damage = Some(keys.error.into()),
        }
    }
    Ok(WindowChunks { chunks, damage })
}

/// Returns the number of samples in a chunk.
pub(crate) fn count_of(key: &[u8], value: &[u8], window: u32) -> Result<u64, Corruption> {
    Ok(Chunk::read(frame::open(key, value)?, window).ok_or_else(|| corrupt(key))?.samples)
}

/// Returns all samples of a chunk, sorted by time.
pub(crate) fn samples_of(store: &Store, key: &[u8], window: u32) -> Result<Samples, EngineError> {
    let value = store.database().get(key)?.ok_or_else(|| corrupt(key))?;
    let chunk = Chunk::read(frame::open(key, &value)?, window).ok_or_else(|| corrupt(key))?;
    let own = own_events(store, key, &chunk)?;
    Ok(chunk.samples(own.as_deref()).ok_or_else(|| corrupt(key))?)
}

fn own_events(store: &Store, key: &[u8], chunk: &Chunk<'_>) -> Result<Option<Vec<u8>>, EngineError> {
    if !chunk.has_own_events() {
        return Ok(None);
    }
    let key = events_key(key);
    let missing = || Corruption { key: key.clone(), check: CorruptionCheck::Length };
    let value = store.database().get(&key)?.ok_or_else(missing)?;
    Ok(Some(frame::open(&key, &value)?.to_vec()))
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}
