//! The command of a log entry: its bytes and, if this process proposed it, the decoded command.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The bytes of a command, which the leader encodes once. Only the state of the group decodes them. The proposing
/// process also keeps the decoded command, so that applying it does not decode it again.
#[derive(Clone)]
pub(crate) struct Payload {
    bytes: Bytes,
    decoded: Option<Arc<dyn Any + Send + Sync>>,
}

impl Payload {
    /// Returns a payload that this process proposes.
    pub(crate) fn proposed(bytes: Bytes, decoded: impl Any + Send + Sync) -> Self {
        Self { bytes, decoded: Some(Arc::new(decoded)) }
    }

    /// Returns a payload that was read from the log or received from a leader.
    pub(crate) fn read(bytes: Bytes) -> Self {
        Self { bytes, decoded: None }
    }

    /// Returns the encoded command.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the decoded command, if this process proposed it as a `T`. Otherwise, the bytes must be decoded.
    pub(crate) fn decoded<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.decoded.as_ref()?).downcast().ok()
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
