//! Requests to the node that has a shard, as a trait.
//!
//! Over the network, the gRPC service `varve.v1.Node` has the same requests. In one process, the trait needs no
//! encoding.

use std::sync::Arc;
use std::time::Duration;

use arcstr::ArcStr;

use crate::batch::{Batch, BatchId};
use crate::formats::wire;
pub use crate::formats::wire::AdministrationTask;
use crate::label::{LabelSet, text_bytes};
use crate::shard::answer::{Answer, DroppedLabel, Missing};
use crate::shard::entry::Deletion;
use crate::shard::error::SelectionError;
use crate::shard::location_sets::{KnownLocations, LocationPage};
use crate::shard::placement::Placement;
use crate::shard::reads::{Consistency, ReadAt, ReadPoint};
use crate::shard::selection::{Matcher, Selection, Window};
use crate::tenant::TenantId;

/// Shards that accept requests.
///
/// `placement_epoch`, also in [`ReadAt`], is the epoch of the placement that chose the shard. A node with another epoch
/// refuses the request: the samples might belong to, or be in, other shards.
#[tonic::async_trait]
pub trait Shards: Send + Sync {
    /// The error of a request: a code, and a text for the caller.
    type Error;

    /// Returns the placement of slots on shards.
    async fn placement(&self) -> Result<Placement, Self::Error>;

    /// Stores a batch. When this returns, the batch is durable and visible to queries.
    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Self::Error>;

    /// Returns whether a batch with this ID was stored in the last [`IDEMPOTENCY_WINDOW_NS`], and in one entry. A batch
    /// that was acknowledged before this call is found.
    ///
    /// [`IDEMPOTENCY_WINDOW_NS`]: crate::limits::IDEMPOTENCY_WINDOW_NS
    async fn holds_batch(
        &self,
        shard: u32,
        placement_epoch: u64,
        tenant: TenantId,
        id: BatchId,
    ) -> Result<bool, Self::Error>;

    /// Returns the state that the other reads of a query see at least, if they are given its index.
    async fn read_point(
        &self,
        shard: u32,
        placement_epoch: u64,
        consistency: Consistency,
    ) -> Result<ReadPoint, Self::Error>;

    /// Returns sums of samples.
    async fn select(&self, shard: u32, at: ReadAt, selection: Selection) -> Result<Answer, Self::Error>;

    /// Returns a page of the locations that the router does not know. The page is empty if the router knows all.
    async fn locations(
        &self,
        shard: u32,
        at: ReadAt,
        tenant: TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, Self::Error>;

    /// Returns the series that have samples in a window.
    async fn series(&self, shard: u32, at: ReadAt, query: SeriesQuery) -> Result<SeriesAnswer, Self::Error>;

    /// Deletes samples permanently. When this returns, no query sees the samples any more. The call may take any length
    /// of time.
    async fn delete(&self, shard: u32, placement_epoch: u64, deletion: Deletion) -> Result<Deleted, Self::Error>;

    /// Runs an administration task. Returns a report, which is a JSON object. The call may take any length of time.
    async fn administer(&self, shard: u32, task: AdministrationTask) -> Result<String, Self::Error>;
}

/// The result of storing a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// True if a batch with this ID was applied before. Nothing is stored in this case.
    pub duplicate: bool,
    /// Number of samples that were dropped because they are older than the retention.
    pub samples_too_old: u64,
    /// Retention of raw samples on the node.
    pub retention: Duration,
}

/// Numbers of samples and sums that a deletion removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Number of deleted raw samples.
    pub samples: u64,
    /// Number of deleted sums, each of one series over one minute, hour or day. A sum is included only if the finer
    /// values of its time had expired before the deletion.
    pub windows: u64,
}

/// A request for the series that have samples in a window, or for the values of one of their labels.
#[derive(Clone, Debug)]
pub struct SeriesQuery {
    /// Owner of the series.
    pub tenant: TenantId,
    /// Conditions on labels and attributes. All must hold.
    pub matchers: Vec<Matcher>,
    /// Time range in which a series must have a sample.
    pub window: Window,
    /// Name of the label whose values are listed. If it is `None`, the series are listed with all their labels.
    pub label: Option<String>,
}

impl SeriesQuery {
    /// Encodes the request to a shard.
    #[must_use]
    pub fn to_wire(&self, shard: u32, at: ReadAt) -> wire::SeriesRequest {
        wire::SeriesRequest {
            shard,
            placement_epoch: at.placement_epoch,
            applied_index: at.applied_index,
            tenant: self.tenant.as_str().to_owned(),
            matchers: self.matchers.iter().map(Matcher::to_wire).collect(),
            start_ns: self.window.start_ns,
            end_ns: self.window.end_ns,
            label: self.label.clone(),
        }
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] for an invalid tenant or condition.
    pub fn from_wire(from: wire::SeriesRequest) -> Result<Self, SelectionError> {
        let wire::SeriesRequest { tenant, matchers, start_ns, end_ns, label, .. } = from;
        let tenant = TenantId::new(&tenant)?;
        Ok(Self { tenant, matchers: Matcher::all_from_wire(matchers)?, window: Window { start_ns, end_ns }, label })
    }
}

/// The series that have samples in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesAnswer {
    /// Label sets of the series, sorted, each once. Empty if the request names a label.
    pub series: Vec<Arc<LabelSet>>,
    /// Values of the label that the request names, sorted, each once.
    pub values: Vec<ArcStr>,
    /// Keys of sample attributes in the partitions of the window, written as label names; sorted, each once.
    pub attribute_names: Vec<String>,
    /// Times for which the list may lack series, ascending. No tier stores these times finely enough any more, or
    /// values are damaged.
    pub missing: Vec<Missing>,
    /// Labels that some of the series had, and that a tier of the response does not store; sorted, each once.
    pub dropped_labels: Vec<DroppedLabel>,
}

impl SeriesAnswer {
    /// Encodes the response.
    #[must_use]
    pub fn to_wire(&self) -> wire::SeriesResponse {
        wire::SeriesResponse {
            series: self.series.iter().map(|labels| wire::Group { labels: labels.to_wire() }).collect(),
            values: self.values.iter().map(ArcStr::to_string).collect(),
            attribute_names: self.attribute_names.clone(),
            missing: self.missing.iter().map(Missing::to_wire).collect(),
            dropped_labels: self.dropped_labels.iter().map(DroppedLabel::to_wire).collect(),
        }
    }

    /// Decodes a response.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if the message contradicts itself.
    pub fn from_wire(from: wire::SeriesResponse) -> Result<Self, SelectionError> {
        let mut series: Vec<_> =
            from.series.into_iter().map(|group| Arc::new(LabelSet::from_wire(&group.labels))).collect();
        // Sorted already, unless the sender has an older version.
        series.sort();
        series.dedup();
        Ok(Self {
            series,
            values: from.values.into_iter().map(ArcStr::from).collect(),
            attribute_names: from.attribute_names,
            missing: from.missing.into_iter().map(Missing::from_wire).collect::<Result<_, _>>()?,
            dropped_labels: from.dropped_labels.into_iter().map(DroppedLabel::from_wire).collect::<Result<_, _>>()?,
        })
    }

    /// Approximate size of the response, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.series.iter().map(|labels| size_of::<usize>() + labels.memory_bytes()).sum::<usize>()
            + self.values.iter().map(|value| size_of::<ArcStr>() + text_bytes(value)).sum::<usize>()
            + self.attribute_names.iter().map(|name| size_of::<String>() + name.len()).sum::<usize>()
            + self.missing.len() * size_of::<Missing>()
            + self.dropped_labels.iter().map(|label| size_of::<DroppedLabel>() + label.name.len()).sum::<usize>()
    }

    /// Merges the responses of several shards. The result does not depend on their order, and its lists are sorted.
    #[must_use]
    pub fn merged(mut answers: Vec<Self>) -> Self {
        // Comparing the labels of hundreds of thousands of series takes most of the time of a short list.
        if answers.len() == 1 {
            return answers.remove(0);
        }
        let mut all = Self::default();
        for Self { series, values, attribute_names, missing, dropped_labels } in answers {
            all.series.extend(series);
            all.values.extend(values);
            all.attribute_names.extend(attribute_names);
            all.missing.extend(missing);
            all.dropped_labels.extend(dropped_labels);
        }
        // The lists of the shards are sorted already, and this sort makes use of that.
        all.series.sort();
        all.series.dedup();
        all.values.sort();
        all.values.dedup();
        all.attribute_names.sort();
        all.attribute_names.dedup();
        all.missing.sort_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
        all.missing.dedup();
        all.dropped_labels.sort();
        all.dropped_labels.dedup();
        all
    }
}
