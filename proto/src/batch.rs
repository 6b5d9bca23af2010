//! Samples: the normal form of a push, and the batches that the router sends to shards.

use crate::dictionary::{Dictionary, Spans};
use crate::label::{Fingerprint, LabelSet};
use crate::tenant::TenantId;

/// Samples, in columns of equal length. The IDs in the columns refer to entries of the dictionary that comes with the
/// samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Times in nanoseconds since 1970, in any order.
    pub times_ns: Vec<i64>,
    /// IDs of stack pairs.
    pub pairs: Vec<u32>,
    /// Values, in the profile type's unit.
    pub values: Vec<i64>,
    /// IDs of attribute sets.
    pub attribute_sets: Vec<u32>,
}

impl Samples {
    /// Empty columns with capacity for `count` samples.
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

    /// Appends the samples of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.times_ns.append(&mut other.times_ns);
        self.pairs.append(&mut other.pairs);
        self.values.append(&mut other.values);
        self.attribute_sets.append(&mut other.attribute_sets);
    }

    /// Sorts the samples by time. Samples of the same time keep their order.
    pub fn sort_by_time(&mut self) {
        if self.times_ns.is_sorted() {
            return;
        }
        let mut order: Vec<(i64, u32)> = self.times_ns.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let from = std::mem::take(self);
        *self = Self {
            times_ns: order.iter().map(|&(time, _)| time).collect(),
            pairs: order.iter().map(|&(_, i)| from.pairs[i as usize]).collect(),
            values: order.iter().map(|&(_, i)| from.values[i as usize]).collect(),
            attribute_sets: order.iter().map(|&(_, i)| from.attribute_sets[i as usize]).collect(),
        };
    }

    /// Number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times_ns.len()
    }

    /// Returns whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times_ns.is_empty()
    }
}

/// The samples of one series in one push.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Labels of the series, with `service_name` and `__profile_type__`.
    pub labels: LabelSet,
    /// Samples of the series, at least one.
    pub samples: Samples,
}

/// The normal form of a push, into which every wire format is decoded.
#[derive(Debug, Default)]
pub struct Push {
    /// Dictionary with the definitions that the samples refer to.
    pub dictionary: Dictionary,
    /// Profiles of the push that were not refused.
    pub profiles: Vec<Profile>,
    /// Number of profiles of the push that were refused.
    pub rejected: u64,
    /// Reasons for refused and truncated profiles, one sentence each. Only the first reasons are listed; the last
    /// sentence then gives the number of the others.
    pub warnings: Vec<String>,
    /// True if the push contains the times of its samples, so that pushes of equal bytes are retries of one push.
    pub has_own_times: bool,
}

impl Push {
    /// Approximate total size in memory of the batches that are made of the push, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let profile = |profile: &Profile| series_bytes(Some(&profile.labels), &profile.samples);
        self.dictionary.memory_bytes() + self.profiles.iter().map(profile).sum::<usize>()
    }
}

fn series_bytes(labels: Option<&LabelSet>, samples: &Samples) -> usize {
    // Largest encoded size of one sample, in bytes: one value of each column.
    const SAMPLE_BYTES: usize = 10 + 5 + 10 + 5;
    64 + labels.map_or(0, LabelSet::memory_bytes) + samples.len() * SAMPLE_BYTES
}

/// ID by which a retry is recognized: a hash of the tenant, and of the client's key or the request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(pub u128);

/// Samples of one tenant for one shard, with the definitions that they need.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Owner of the samples.
    pub tenant: TenantId,
    /// ID of the batch. `None` means that the samples are stored each time the batch arrives.
    pub id: Option<BatchId>,
    /// Retention class of the partitions that receive the samples.
    pub retention_class: u8,
    /// Dictionary with the definitions that the samples refer to.
    pub dictionary: Dictionary,
    /// Samples by series; each series occurs once.
    pub series: Vec<SeriesSamples>,
}

/// Samples of one series.
#[derive(Clone, Debug)]
pub struct SeriesSamples {
    /// Identity of the series.
    pub fingerprint: Fingerprint,
    /// Labels of the series; `None` if the shard knows the series.
    pub labels: Option<LabelSet>,
    /// Samples of the series, at least one.
    pub samples: Samples,
}

/// The definitions that [`Batch::strip`] removed from a batch.
#[derive(Debug)]
pub struct Stripped {
    stacks: Spans,
    labels: Vec<(usize, LabelSet)>,
}

impl Batch {
    /// Removes the definitions of stacks and series that the shard knows. The two functions tell if the shard knows the
    /// stack with an ID, and the series with an index.
    ///
    /// Definitions that become unused stay in the dictionary, but are neither logged nor applied.
    pub fn strip(
        &mut self,
        is_known_stack: impl Fn(usize) -> bool,
        is_known_series: impl Fn(usize) -> bool,
    ) -> Stripped {
        // The empty stack, with ID 0, always stays as it is.
        let stacks = self.dictionary.stacks.strip(|id| id > 0 && is_known_stack(id));
        let known = self.series.iter_mut().enumerate().filter(|(index, _)| is_known_series(*index));
        let labels = known.filter_map(|(index, series)| Some((index, series.labels.take()?))).collect();
        Stripped { stacks, labels }
    }

    /// Returns whether the batch holds every definition that its samples refer to.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.dictionary.stacks.iter().all(|(_, stack)| stack.is_some())
            && self.series.iter().all(|series| series.labels.is_some())
    }

    /// Puts back the definitions that [`Batch::strip`] removed.
    pub fn restore(&mut self, stripped: Stripped) {
        self.dictionary.stacks.restore(stripped.stacks);
        for (index, labels) in stripped.labels {
            self.series[index].labels = Some(labels);
        }
    }

    /// Approximate size of the batch in memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let series = |series: &SeriesSamples| series_bytes(series.labels.as_ref(), &series.samples);
        self.dictionary.memory_bytes() + self.series.iter().map(series).sum::<usize>()
    }

    /// Upper bound of the batch's size in the wire form, in bytes. Computed without encoding the batch.
    #[must_use]
    pub fn encoded_len_max(&self) -> usize {
        self.memory_bytes() + self.dictionary.wire_bytes_more()
    }
}
