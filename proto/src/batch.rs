//! Samples: the normal form of a push, and the batch of one shard that it becomes.

use crate::definitions::{DefinitionsError, read_u128, u128_bytes};
use crate::dictionary::Dictionary;
use crate::encoder::Encoder;
use crate::label::{Fingerprint, Label, LabelSet};
use crate::stacks::Spans;
use crate::tenant::{TenantId, TenantIdError};
use crate::wire;

/// Samples in columns of equal length; ids are of the dictionary beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Nanoseconds since 1970, in any order.
    pub times_ns: Vec<i64>,
    /// Stack pairs.
    pub pairs: Vec<u32>,
    /// In the profile type's unit.
    pub values: Vec<i64>,
    /// Attribute sets.
    pub attribute_sets: Vec<u32>,
}

impl Samples {
    /// None yet, and room for so many.
    #[must_use]
    pub fn with_capacity(count: usize) -> Self {
        Self {
            times_ns: Vec::with_capacity(count),
            pairs: Vec::with_capacity(count),
            values: Vec::with_capacity(count),
            attribute_sets: Vec::with_capacity(count),
        }
    }

    /// Adds one sample.
    #[inline]
    pub fn push(&mut self, time_ns: i64, pair: u32, value: i64, attribute_set: u32) {
        self.times_ns.push(time_ns);
        self.pairs.push(pair);
        self.values.push(value);
        self.attribute_sets.push(attribute_set);
    }

    /// Adds the samples of another behind these.
    pub fn append(&mut self, mut other: Self) {
        self.times_ns.append(&mut other.times_ns);
        self.pairs.append(&mut other.pairs);
        self.values.append(&mut other.values);
        self.attribute_sets.append(&mut other.attribute_sets);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times_ns.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times_ns.is_empty()
    }
}

/// What one push holds for one series. Its labels include the profile type.
#[derive(Clone, Debug)]
pub struct Profile {
    /// With `service_name` and `__profile_type__`.
    pub labels: LabelSet,
    /// At least one.
    pub samples: Samples,
}

/// The normal form of a push: what every wire format becomes.
#[derive(Debug, Default)]
pub struct Push {
    /// What the samples refer to.
    pub dictionary: Dictionary,
    /// What is accepted.
    pub profiles: Vec<Profile>,
    /// Profiles that are refused.
    pub rejected: u64,
    /// Why profiles were refused, and what was cut; a few sentences, the rest counted in the last.
    pub warnings: Vec<String>,
    /// Whether the samples' times came with the push, so that the same bytes are the same push.
    pub has_own_times: bool,
}

impl Push {
    /// Bytes that its batches take in memory together, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let profile = |profile: &Profile| series_bytes(Some(&profile.labels), &profile.samples);
        self.dictionary.memory_bytes() + self.profiles.iter().map(profile).sum::<usize>()
    }
}

fn series_bytes(labels: Option<&LabelSet>, samples: &Samples) -> usize {
    // Columns of a sample, and what varints may take more.
    const SAMPLE_BYTES: usize = 10 + 5 + 10 + 5;
    64 + labels.map_or(0, LabelSet::memory_bytes) + samples.len() * SAMPLE_BYTES
}

/// What makes a retry recognizable: a hash of the tenant and the client's key or the request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u128);

/// Samples of one tenant for one shard, with the definitions that they need.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose.
    pub tenant: TenantId,
    /// None: counted each time it comes.
    pub id: Option<BatchId>,
    /// Which of the few ways of keeping data its partitions belong to.
    pub retention_class: u8,
    /// What the samples refer to.
    pub dictionary: Dictionary,
    /// Each series once.
    pub series: Vec<SeriesSamples>,
}

/// Samples of one series.
#[derive(Clone, Debug)]
pub struct SeriesSamples {
    /// Which series.
    pub fingerprint: Fingerprint,
    /// None: the shard knows them.
    pub labels: Option<LabelSet>,
    /// At least one.
    pub samples: Samples,
}

/// What a batch had before something was left out of it: see [`Batch::leave_out`].
#[derive(Debug)]
pub struct LeftOut {
    stacks: Spans,
    labels: Vec<(usize, LabelSet)>,
}

/// A batch that contradicts itself: the sender is broken, or the bytes are not what it sent.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// See there.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// See there.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// Columns, ids or lengths that do not add up.
    #[error("batch: {0}")]
    Inconsistent(&'static str),
}

impl Batch {
    /// As it is sent and logged.
    #[must_use]
    pub fn to_wire(&self) -> wire::Batch {
        wire::Batch {
            tenant: self.tenant.as_str().to_owned(),
            id: self.id.map(|id| u128_bytes(id.0)).unwrap_or_default(),
            definitions: Some(self.dictionary.to_wire()),
            series: self.series.iter().map(series_to_wire).collect(),
            retention_class: self.retention_class.into(),
        }
    }

    /// Leaves out the definitions of stacks and series that the shard knows, by id and place. It is done where they are: what
    /// nothing refers to any more stays in the dictionary, and is neither logged nor applied.
    pub fn leave_out(
        &mut self,
        is_known_stack: impl Fn(usize) -> bool,
        is_known_series: impl Fn(usize) -> bool,
    ) -> LeftOut {
        // The empty stack is never a reference.
        let stacks = self.dictionary.stacks.leave_out(|id| id > 0 && is_known_stack(id));
        let known = self.series.iter_mut().enumerate().filter(|(place, _)| is_known_series(*place));
        let labels = known.filter_map(|(place, series)| Some((place, series.labels.take()?))).collect();
        LeftOut { stacks, labels }
    }

    /// Whether it holds all that it refers to.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.dictionary.stacks.iter().all(|(_, stack)| stack.is_some())
            && self.series.iter().all(|series| series.labels.is_some())
    }

    /// Undoes [`Batch::leave_out`].
    pub fn put_back(&mut self, left_out: LeftOut) {
        self.dictionary.stacks.put_back(left_out.stacks);
        for (place, labels) in left_out.labels {
            self.series[place].labels = Some(labels);
        }
    }

    /// Bytes of its wire form. Writes it out: not to be asked lightly.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut out = Vec::new();
        Encoder::new(&mut out).batch(self);
        out.len()
    }

    /// Bytes that it takes in memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let series = |series: &SeriesSamples| series_bytes(series.labels.as_ref(), &series.samples);
        self.dictionary.memory_bytes() + self.series.iter().map(series).sum::<usize>()
    }

    /// More bytes than its wire form has, told without encoding it.
    #[must_use]
    pub fn encoded_len_max(&self) -> usize {
        self.memory_bytes() + self.dictionary.wire_bytes_more()
    }

    /// The batch that was sent, its ids checked.
    ///
    /// # Errors
    /// [`BatchError`]; nothing of the batch may be used then.
    pub fn from_wire(from: wire::Batch) -> Result<Self, BatchError> {
        let id = match from.id.len() {
            0 => None,
            16 => Some(BatchId(read_u128(&from.id))),
            _ => return Err(BatchError::Inconsistent("an id has 16 bytes")),
        };
        let dictionary = Dictionary::from_wire(&from.definitions.unwrap_or_default())?;
        let series =
            from.series.into_iter().map(|series| series_from_wire(series, &dictionary)).collect::<Result<_, _>>()?;
        let retention_class = u8::try_from(from.retention_class);
        let retention_class =
            retention_class.map_err(|_large| BatchError::Inconsistent("there are 256 retention classes"))?;
        Ok(Self { tenant: TenantId::new(&from.tenant)?, id, retention_class, dictionary, series })
    }
}

impl LabelSet {
    /// As it is sent.
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

    /// What was sent.
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
        return Err(BatchError::Inconsistent("columns of samples differ in length"));
    }
    if samples.pairs.iter().any(|&pair| pair as usize >= dictionary.pairs.len()) {
        return Err(BatchError::Inconsistent("a sample's stack is not defined"));
    }
    if samples.attribute_sets.iter().any(|&set| set as usize >= dictionary.attribute_sets.len()) {
        return Err(BatchError::Inconsistent("a sample's attributes are not defined"));
    }
    let labels = (!from.labels.is_empty()).then(|| LabelSet::from_wire(from.labels));
    Ok(SeriesSamples { fingerprint: Fingerprint(read_u128(&from.fingerprint)), labels, samples })
}

/// Differences to the number before, the first to zero; wrapping, so that any i64 goes through.
pub(crate) fn deltas(numbers: &[i64]) -> Vec<i64> {
    let before = std::iter::once(0).chain(numbers.iter().copied());
    numbers.iter().zip(before).map(|(number, before)| number.wrapping_sub(before)).collect()
}

/// What [`deltas`] was made of.
pub(crate) fn from_deltas(deltas: &[i64]) -> Vec<i64> {
    deltas
        .iter()
        .scan(0_i64, |number, &delta| {
            *number = number.wrapping_add(delta);
            Some(*number)
        })
        .collect()
}
