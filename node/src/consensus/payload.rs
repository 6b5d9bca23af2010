//! The command of a log entry: its bytes and, if this process proposed it, the decoded entry.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use crate::error::RecordError;

/// The bytes of a `proto::wire::Entry`, which the leader encodes once. The proposing process also keeps the decoded
/// entry, so that applying it does not decode it again.
#[derive(Clone)]
pub(crate) struct Payload {
    bytes: Bytes,
    entry: Option<Arc<proto::Entry>>,
}

impl Payload {
    /// Returns a payload that this process proposes.
    pub(super) fn proposed(bytes: Bytes, entry: proto::Entry) -> Self {
        Self { bytes, entry: Some(Arc::new(entry)) }
    }

    /// Returns a payload that was read from the log or received from a leader.
    pub(super) fn read(bytes: Bytes) -> Self {
        Self { bytes, entry: None }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the entry to apply. An error means that the bytes cannot be decoded. Their checksum was right, so broken
    /// software proposed the entry, and no replica may apply it.
    pub(super) fn entry(self) -> Result<Arc<proto::Entry>, RecordError> {
        if let Some(entry) = self.entry {
            return Ok(entry);
        }
        let broken = RecordError::Content { record: "entry's command" };
        let Ok(wire) = proto::wire::Entry::decode(self.bytes) else { return Err(broken) };
        proto::Entry::from_wire(wire).map(Arc::new).map_err(|error| {
            tracing::error!(%error, "an entry of the log contradicts itself");
            broken
        })
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}
