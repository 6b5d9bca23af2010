//! Conversion between a [`Batch`] and its wire form [`wire::Batch`].

use bytes::Bytes;

use crate::batch::{Batch, BatchId, Samples, SeriesSamples};
use crate::dictionary::Dictionary;
use crate::formats::definitions::DefinitionsError;
use crate::formats::encoder::Encoder;
use crate::formats::numbers::{deltas, from_deltas, read_u128, u128_bytes};
use crate::formats::wire;
use crate::label::{Fingerprint, Label, LabelSet};
use crate::tenant::{TenantId, TenantIdError};

/// The error of a batch that contradicts itself: the sender has a bug, or the bytes were damaged.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The tenant name is invalid.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// The definitions are inconsistent.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// Columns, IDs or lengths contradict each other. The text says in which way.
    #[error("batch: {0}")]
    Inconsistent(&'static str),
}

impl Batch {
    /// Converts the batch to the message that routers send to nodes.
    #[must_use]
    pub fn to_wire(&self) -> wire::Batch {
        wire::Batch {
            tenant: self.tenant.as_str().to_owned(),
            id: self.id.map(BatchId::to_wire).unwrap_or_default(),
            definitions: Some(self.dictionary.to_wire()),
            series: self.series.iter().map(series_to_wire).collect(),
            retention_class: self.retention_class.into(),
        }
    }

    /// Returns the size of the batch as it is logged, in bytes. To find this size, encodes the whole batch.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut out = Vec::new();
        Encoder::new(&mut out).batch(self);
        out.len()
    }

    /// Decodes a batch and checks its IDs.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the message contradicts itself. No part of the message may be used then.
    pub fn from_wire(from: wire::Batch) -> Result<Self, BatchError> {
        let id = if from.id.is_empty() { None } else { Some(BatchId::from_wire(&from.id)?) };
        let dictionary = Dictionary::from_wire(&from.definitions.unwrap_or_default())?;
        let series =
            from.series.into_iter().map(|series| series_from_wire(series, &dictionary)).collect::<Result<_, _>>()?;
        let retention_class = u8::try_from(from.retention_class);
        let retention_class =
            retention_class.map_err(|_large| BatchError::Inconsistent("there are 256 retention classes"))?;
        Ok(Self { tenant: TenantId::new(&from.tenant)?, id, retention_class, dictionary, series })
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
                name: label.name.clone(),
                value: label.value.clone(),
                original_name: label.original_name.clone().unwrap_or_default(),
            })
            .collect()
    }

    /// Decodes labels.
    #[must_use]
    pub fn from_wire(from: Vec<wire::Label>) -> Self {
        let label = |label: wire::Label| Label {
            name: label.name,
            value: label.value,
            original_name: Some(label.original_name).filter(|name| !name.is_empty()),
        };
        Self::new(from.into_iter().map(label).collect())
    }
}

fn series_to_wire(series: &SeriesSamples) -> wire::SeriesSamples {
    wire::SeriesSamples {
        fingerprint: u128_bytes(series.fingerprint.0),
        labels: series.labels.as_ref().map(LabelSet::to_wire).unwrap_or_default(),
        time_deltas_ns: deltas(&series.samples.times_ns),
        pairs: series.samples.pairs.clone(),
        values: series.samples.values.clone(),
        attribute_sets: series.samples.attribute_sets.clone(),
    }
}

fn series_from_wire(from: wire::SeriesSamples, dictionary: &Dictionary) -> Result<SeriesSamples, BatchError> {
    if from.fingerprint.len() != 16 {
        return Err(BatchError::Inconsistent("a fingerprint has 16 bytes"));
    }
    let samples = Samples {
        times_ns: from_deltas(&from.time_deltas_ns),
        pairs: from.pairs,
        values: from.values,
        attribute_sets: from.attribute_sets,
    };
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
    let labels = (!from.labels.is_empty()).then(|| LabelSet::from_wire(from.labels));
    Ok(SeriesSamples { fingerprint: Fingerprint(read_u128(&from.fingerprint)), labels, samples })
}
