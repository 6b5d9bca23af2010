//! Samples: the normal form of a push, and the batch of one shard that it becomes.

use crate::dictionary::{Dictionary, Spans};
use crate::label::{Fingerprint, LabelSet};
use crate::tenant::TenantId;

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

impl Batch {
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
}
