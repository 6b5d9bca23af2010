//! The record of the state of the meta group in the log database.
//!
//! ```text
//! meta state  | version u8 | a `varve.v1.MetaState` | crc u32 |
//! ```
//!
//! `crc` is the CRC-32C of the other bytes, big-endian. The record has at most [`META_STATE_BYTES_MAX`] and five bytes.
//!
//! Invariant: decoding returns a state exactly as it was written, or an error. Nothing is decoded before the checksum
//! is checked.

use proto::limits::META_STATE_BYTES_MAX;
use proto::meta::State;

use crate::error::RecordError;

/// Version of the record.
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
const RECORD: &str = "state of the meta group";

/// Encodes a state. Equal states have equal records.
#[must_use]
pub fn encode_state(state: &State) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.append(&mut state.encode());
    out.extend_from_slice(&crc32c::crc32c(&out).to_be_bytes());
    out
}

/// Decodes a state.
///
/// # Errors
/// Returns a [`RecordError`] if the record is from another version, damaged, or not one of a valid state.
pub fn decode_state(value: &[u8]) -> Result<State, RecordError> {
    let (body, crc) = value.split_last_chunk::<CRC_BYTES>().ok_or(RecordError::Length { record: RECORD })?;
    let (&version, state) = body.split_first().ok_or(RecordError::Length { record: RECORD })?;
    if version != VERSION {
        return Err(RecordError::Version { record: RECORD, found: version, expected: VERSION });
    }
    if state.len() > META_STATE_BYTES_MAX {
        return Err(RecordError::Length { record: RECORD });
    }
    if crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
        return Err(RecordError::Checksum { record: RECORD });
    }
    State::decode(state).map_err(|error| {
        tracing::error!(%error, "the state of the meta group cannot be read");
        RecordError::Content { record: RECORD }
    })
}
