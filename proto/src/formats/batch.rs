//! Conversion between a [`Batch`] and its wire form [`wire::Batch`].

use arcstr::ArcStr;
use bytes::Bytes;

use crate::batch::{Batch, BatchId, Samples};
use crate::dictionary::Dictionary;
use crate::formats::definitions::DefinitionsError;
use crate::formats::encoder::{Encoder, References};
use crate::formats::numbers::{read_u128, u128_bytes};
use crate::formats::wire;
use crate::label::{Fingerprint, Label, LabelSet};
use crate::tenant::TenantIdError;

/// The error of a batch that contradicts itself: the sender has a bug, or the bytes were damaged.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The tenant name is invalid.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// The bytes are not those of a protobuf message.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// A text of a message is not UTF-8.
    #[error(transparent)]
    Text(#[from] std::str::Utf8Error),
    /// A message ends within a field.
    #[error("a message ends within a field")]
    TooShort,
    /// The definitions are inconsistent.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// Columns, IDs or lengths contradict each other. The text says in which way.
    #[error("batch: {0}")]
    Inconsistent(&'static str),
}

impl Batch {
    /// Encodes the batch as a [`wire::Batch`] for the leader of a shard. Omits the definitions that no stack and no
    /// attribute set needs.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_with(References::Hashes)
    }

    /// Encodes the batch as a [`wire::Batch`] for a log. It then refers to each known stack by half of its hash.
    #[must_use]
    pub fn encode_logged(&self) -> Bytes {
        self.encode_with(References::FirstHalves)
    }

    fn encode_with(&self, references: References) -> Bytes {
        let mut out = Vec::new();
        Encoder::new(&mut out).batch(self, references);
        out.into()
    }

    /// Returns an upper bound of the size of the batch as it is logged, in bytes, whichever definitions are removed
    /// before. To find this bound, encodes the whole batch.
    #[must_use]
    pub fn logged_len_max(&self) -> usize {
        // A reference may take more bytes than the locations of its stack.
        let defined = self.dictionary.stacks.len() - self.dictionary.stacks.references().count();
        self.encode().len() + defined * size_of::<u64>()
    }
}

impl BatchId {
    /// Encodes the ID.
    #[must_use]
    pub fn to_wire(self) -> Bytes {
        u128_bytes(self.0)
    }

    /// Decodes an ID.
    ///
    /// # Errors
    /// Returns [`BatchError::Inconsistent`] for another length than 16 bytes.
    pub fn from_wire(from: &[u8]) -> Result<Self, BatchError> {
        if from.len() != 16 {
            return Err(BatchError::Inconsistent("an ID has 16 bytes"));
        }
        Ok(Self(read_u128(from)))
    }
}

impl LabelSet {
    /// Encodes the labels.
    #[must_use]
    pub fn to_wire(&self) -> Vec<wire::Label> {
        self.iter()
            .map(|label| wire::Label {
                name: label.name.to_string(),
                value: label.value.to_string(),
                original_name: label.original_name.as_deref().unwrap_or_default().to_owned(),
            })
            .collect()
    }

    /// Decodes labels.
    #[must_use]
    pub fn from_wire(from: &[wire::Label]) -> Self {
        Self::from_wire_with(from, |text| ArcStr::from(text))
    }

    /// Decodes labels whose texts come from `share`, which returns a text that equals its argument.
    #[must_use]
    pub fn from_wire_with(from: &[wire::Label], mut share: impl FnMut(&str) -> ArcStr) -> Self {
        let label = |label: &wire::Label| Label {
            name: share(&label.name),
            value: share(&label.value),
            original_name: Some(&label.original_name).filter(|name| !name.is_empty()).map(|name| share(name)),
        };
        Self::new(from.iter().map(label).collect())
    }
}

/// Checks that the columns have equal lengths, and that the dictionary has an entry for each ID in them.
pub(super) fn check_samples(samples: &Samples, dictionary: &Dictionary) -> Result<(), BatchError> {
    let length = samples.len();
    if [samples.pairs.len(), samples.values.len(), samples.attribute_sets.len()] != [length; 3] {
        return Err(BatchError::Inconsistent("the columns of the samples differ in length"));
    }
    if samples.pairs.iter().any(|&pair| pair as usize >= dictionary.pairs.len()) {
        return Err(BatchError::Inconsistent("the stack of a sample has no definition"));
    }
    if samples.attribute_sets.iter().any(|&set| set as usize >= dictionary.attribute_sets.len()) {
        return Err(BatchError::Inconsistent("the attribute set of a sample has no definition"));
    }
    Ok(())
}

/// Decodes the fingerprint of a series.
pub(super) fn fingerprint(from: &[u8]) -> Result<Fingerprint, BatchError> {
    if from.len() != 16 {
        return Err(BatchError::Inconsistent("a fingerprint has 16 bytes"));
    }
    Ok(Fingerprint(read_u128(from)))
}

/// Decodes a retention class.
pub(super) fn retention_class(from: u32) -> Result<u8, BatchError> {
    u8::try_from(from).map_err(|_large| BatchError::Inconsistent("there are 256 retention classes"))
}
