//! The command of a log entry: its bytes and, if this process proposed it, the decoded command.

mod compressed;
mod proposal;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use crate::consensus::payload::proposal::Proposal;
use crate::error::RecordError;

/// Protobuf tag of the time of an entry's proposal: field 1, a fixed64.
pub(super) const PROPOSED_AT_TAG: u8 = 1 << 3 | 1;

/// Form of the bytes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The encoded command.
    Plain,
    /// The form of [`compressed`].
    Compressed,
}

/// The bytes of a command, which the leader encodes and compresses once: its log, the messages to the other members and
/// their logs hold these bytes. Only the state of the group decodes them. The proposing process also keeps the decoded
/// command, so that applying it does not decode it again.
#[derive(Clone)]
pub(crate) struct Payload {
    form: Form,
    bytes: Bytes,
    decoded: Option<Arc<dyn Any + Send + Sync>>,
}

impl Payload {
    /// Returns a payload that this process proposes.
    pub(super) fn proposed(form: Form, bytes: Bytes, decoded: impl Any + Send + Sync) -> Self {
        Self { form, bytes, decoded: Some(Arc::new(decoded)) }
    }

    /// Returns a payload that was read from the log or received from a leader.
    pub(super) fn read(form: Form, bytes: Bytes) -> Self {
        Self { form, bytes, decoded: None }
    }

    /// Returns a payload of an encoded command that this process proposes without keeping the decoded command.
    pub(crate) fn plain(bytes: Bytes) -> Self {
        Self::read(Form::Plain, bytes)
    }

    /// Returns the payload without the decoded command.
    pub(super) fn without_decoded(&self) -> Self {
        Self::read(self.form, self.bytes.clone())
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Returns the bytes in their form.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the encoded command.
    ///
    /// # Errors
    /// The bytes are in the compressed form, and cannot be decompressed.
    pub(crate) fn encoded(&self) -> Result<Bytes, RecordError> {
        match self.form {
            Form::Plain => Ok(self.bytes.clone()),
            Form::Compressed => compressed::unpack(&self.bytes).map(Bytes::from),
        }
    }

    /// Returns the length of the bytes as they are in the log.
    pub(crate) fn logged_len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the length of the encoded command, in bytes.
    pub(crate) fn encoded_len(&self) -> usize {
        match self.form {
            Form::Plain => self.bytes.len(),
            Form::Compressed => compressed::unpacked_len(&self.bytes),
        }
    }

    /// Returns the decoded command, if this process proposed it as a `T`. Otherwise, the bytes must be decoded.
    pub(crate) fn decoded<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.decoded.as_ref()?).downcast().ok()
    }
}

/// The bytes of a command whose time of proposal is not set yet.
#[derive(Debug)]
pub(super) struct Untimed {
    form: Form,
    bytes: Vec<u8>,
}

impl Untimed {
    /// Compresses an encoded command, which begins with [`PROPOSED_AT_TAG`] and the eight bytes of a time. The bytes
    /// stay plain if the other form is not smaller.
    pub(super) fn compress(encoded: Vec<u8>) -> Self {
        match compressed::pack(&encoded) {
            Some(bytes) => Self { form: Form::Compressed, bytes },
            None => Self { form: Form::Plain, bytes: encoded },
        }
    }

    /// Sets the time, in nanoseconds since 1970.
    pub(super) fn at(mut self, proposed_at_ns: u64, decoded: impl Any + Send + Sync) -> Payload {
        let start = match self.form {
            Form::Plain => 1,
            Form::Compressed => 0,
        };
        self.bytes[start..start + 8].copy_from_slice(&proposed_at_ns.to_le_bytes());
        Payload::proposed(self.form, self.bytes.into(), decoded)
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        (self.form, &self.bytes) == (other.form, &other.bytes)
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
