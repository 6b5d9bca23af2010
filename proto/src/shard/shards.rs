//! Requests to the node that has a shard, as a trait.
//!
//! Over the network, the gRPC service `varve.v1.Node` has the same requests. In one process, the trait needs no
//! encoding.

use std::time::Duration;

use crate::batch::Batch;
use crate::formats::wire;
pub use crate::formats::wire::AdministrationTask;
use crate::label::LabelSet;
use crate::shard::answer::{Answer, DroppedLabel, Missing};
use crate::shard::entry::Deletion;
use crate::shard::error::SelectionError;
use crate::shard::location_sets::{KnownLocations, LocationPage};
use crate::shard::placement::Placement;
use crate::shard::selection::{Matcher, Selection, Window};
use crate::tenant::TenantId;

/// Shards that accept requests.
#[tonic::async_trait]
pub trait Shards: Send + Sync {
    /// The error of a request: a code, and a text for the caller.
    type Error;

    /// Returns the placement of slots on shards.
    async fn placement(&self) -> Result<Placement, Self::Error>;

    /// Stores a batch. When this returns, the batch is durable and visible to queries.
    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Self::Error>;

    /// Returns sums of samples. The read is linearizable.
    async fn select(&self, shard: u32, selection: Selection) -> Result<Answer, Self::Error>;

    /// Returns a page of the locations that the router does not know. The page is empty if the router knows all.
    async fn locations(&self, shard: u32, tenant: TenantId, known: KnownLocations)
    -> Result<LocationPage, Self::Error>;

    /// Returns the series that have samples in a window. The read is linearizable.
    async fn series(
        &self,
        shard: u32,
        tenant: TenantId,
        matchers: Vec<Matcher>,
        window: Window,
    ) -> Result<SeriesAnswer, Self::Error>;

    /// Deletes samples permanently. When this returns, no query sees the samples any more. The call may take any length
    /// of time.
    async fn delete(&self, shard: u32, deletion: Deletion) -> Result<Deleted, Self::Error>;

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
    /// Number of deleted sums, each of one series over one minute, hour or day. A sum counts only if the finer values
    /// of its time had expired before.
    pub windows: u64,
}

/// The series that have samples in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesAnswer {
    /// Label sets of the series, sorted, each once.
    pub series: Vec<LabelSet>,
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
        Ok(Self {
            series: from.series.into_iter().map(|group| LabelSet::from_wire(group.labels)).collect(),
            attribute_names: from.attribute_names,
            missing: from.missing.into_iter().map(Missing::from_wire).collect::<Result<_, _>>()?,
            dropped_labels: from.dropped_labels.into_iter().map(DroppedLabel::from_wire).collect::<Result<_, _>>()?,
        })
    }

    /// Merges the responses of several shards. The result does not depend on their order.
    #[must_use]
    pub fn merged(answers: Vec<Self>) -> Self {
        let mut all = Self::default();
        for Self { series, attribute_names, missing, dropped_labels } in answers {
            all.series.extend(series);
            all.attribute_names.extend(attribute_names);
            all.missing.extend(missing);
            all.dropped_labels.extend(dropped_labels);
        }
        // The lists of the shards are sorted already, and this sort makes use of that.
        all.series.sort();
        all.series.dedup();
        all.attribute_names.sort();
        all.attribute_names.dedup();
        all.missing.sort_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
        all.missing.dedup();
        all.dropped_labels.sort();
        all.dropped_labels.dedup();
        all
    }
}
