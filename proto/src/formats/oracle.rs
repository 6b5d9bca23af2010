//! The oracle of the tests of [`encoder`](super::encoder) and [`decoder`](super::decoder): conversions between a batch
//! and the message object, which prost encodes and decodes.
//!
//! The oracle shares the checks of definitions with the decoder, so it cannot show that a check is missing. Another
//! test of the decoder has an ID without an entry in each field.

use prost::Message as _;

use crate::batch::{Batch, BatchId, Samples, SeriesSamples};
use crate::dictionary::Dictionary;
use crate::formats::BatchError;
use crate::formats::numbers::{deltas, from_deltas, read_u128, u128_bytes};
use crate::formats::wire;
use crate::label::{Fingerprint, LabelSet};
use crate::tenant::TenantId;

/// Converts a batch to the message, with all definitions.
pub(super) fn to_wire(batch: &Batch) -> wire::Batch {
    wire::Batch {
        tenant: batch.tenant.as_str().to_owned(),
        id: batch.id.map(BatchId::to_wire).unwrap_or_default(),
        definitions: Some(batch.dictionary.to_wire()),
        series: batch.series.iter().map(series_to_wire).collect(),
        retention_class: batch.retention_class.into(),
    }
}

/// Changes the message of a batch to that of a log: of the hash of each reference, only the first half is left.
pub(super) fn into_logged(mut message: wire::Batch) -> wire::Batch {
    let definitions = message.definitions.get_or_insert_default();
    let halves = definitions.stack_references.chunks(16).flat_map(|hash| hash[..8].to_vec());
    definitions.stack_references = halves.collect::<Vec<u8>>().into();
    message
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

/// Decodes a batch through the message.
pub(super) fn decode(from: &[u8]) -> Result<Batch, BatchError> {
    let from = wire::Batch::decode(from)?;
    let id = if from.id.is_empty() { None } else { Some(BatchId::from_wire(&from.id)?) };
    let dictionary = Dictionary::from_wire(&from.definitions.unwrap_or_default())?;
    let series =
        from.series.into_iter().map(|series| series_from_wire(series, &dictionary)).collect::<Result<_, _>>()?;
    let large = |_large| BatchError::Inconsistent("there are 256 retention classes");
    let retention_class = u8::try_from(from.retention_class).map_err(large)?;
    Ok(Batch { tenant: TenantId::new(&from.tenant)?, id, retention_class, dictionary, series })
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
    let labels = (!from.labels.is_empty()).then(|| LabelSet::from_wire(&from.labels));
    Ok(SeriesSamples { fingerprint: Fingerprint(read_u128(&from.fingerprint)), labels, samples })
}
