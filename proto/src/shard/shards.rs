//! What a router asks of the node that has a shard: over the network by `varve.v1.Node`, in one process by this trait, which
//! says the same without a wire form in between.

use std::time::Duration;

use crate::batch::Batch;
use crate::formats::wire;
pub use crate::formats::wire::AdministrationTask;
use crate::label::LabelSet;
use crate::shard::answer::{Answer, LeftOutLabel, Missing};
use crate::shard::entry::Deletion;
use crate::shard::error::SelectionError;
use crate::shard::location_sets::{KnownLocations, LocationPage};
use crate::shard::selection::{Matcher, Selection, Window};
use crate::tenant::TenantId;

/// The shards that a router sends requests to.
#[tonic::async_trait]
pub trait Shards: Send + Sync {
    /// The error of a request: its code, and text for the caller.
    type Error;

    /// Stores a batch; when this returns, it is durable and visible.
    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Self::Error>;

    /// Sums of samples. Linearizable.
    async fn select(&self, shard: u32, selection: Selection) -> Result<Answer, Self::Error>;

    /// Locations of a tenant's stacks that are not known yet; none for a tenant without any.
    async fn locations(&self, shard: u32, tenant: TenantId, known: KnownLocations) -> Result<LocationPage, Self::Error>;

    /// The series that have samples in a window. Linearizable.
    async fn series(
        &self,
        shard: u32,
        tenant: TenantId,
        matchers: Vec<Matcher>,
        window: Window,
    ) -> Result<SeriesAnswer, Self::Error>;

    /// Deletes samples, for good; when this returns, no query sees them. Takes as long as it takes.
    async fn delete(&self, shard: u32, deletion: Deletion) -> Result<Deleted, Self::Error>;

    /// What whoever runs the shard asks of it: a report, a JSON object. Takes as long as it takes.
    async fn administer(&self, shard: u32, task: AdministrationTask) -> Result<String, Self::Error>;
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Its id was known: nothing was counted again.
    pub duplicate: bool,
    /// Left out, because they are older than the retention.
    pub samples_too_old: u64,
    /// How long samples are kept.
    pub retention: Duration,
}

/// How much of a shard was deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Raw ones.
    pub samples: u64,
    /// Minutes, hours and days of series, where what is finer was dropped before.
    pub windows: u64,
}

/// Series that have samples in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesAnswer {
    /// Sorted, each once.
    pub series: Vec<LabelSet>,
    /// Keys of sample attributes in the window's partitions, written as labels; sorted, each once.
    pub attribute_names: Vec<String>,
    /// Times in which there are more, ascending: no tier holds them so finely any more.
    pub missing: Vec<Missing>,
    /// Labels that some of the series had; sorted, each once.
    pub left_out: Vec<LeftOutLabel>,
}

impl SeriesAnswer {
    /// As it is sent.
    #[must_use]
    pub fn to_wire(&self) -> wire::SeriesResponse {
        wire::SeriesResponse {
            series: self.series.iter().map(|labels| wire::Group { labels: labels.to_wire() }).collect(),
            attribute_names: self.attribute_names.clone(),
            missing: self.missing.iter().map(Missing::to_wire).collect(),
            left_out: self.left_out.iter().map(LeftOutLabel::to_wire).collect(),
        }
    }

    /// What was sent.
    ///
    /// # Errors
    /// [`SelectionError`] where it does not add up.
    pub fn from_wire(from: wire::SeriesResponse) -> Result<Self, SelectionError> {
        Ok(Self {
            series: from.series.into_iter().map(|group| LabelSet::from_wire(group.labels)).collect(),
            attribute_names: from.attribute_names,
            missing: from.missing.into_iter().map(Missing::from_wire).collect::<Result<_, _>>()?,
            left_out: from.left_out.into_iter().map(LeftOutLabel::from_wire).collect::<Result<_, _>>()?,
        })
    }

    /// Adds what another shard has.
    pub fn extend(&mut self, other: Self) {
        let Self { series, attribute_names, missing, left_out } = other;
        self.series.extend(series);
        self.series.sort_unstable();
        self.series.dedup();
        self.attribute_names.extend(attribute_names);
        self.attribute_names.sort_unstable();
        self.attribute_names.dedup();
        self.missing.extend(missing);
        self.missing.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest));
        self.missing.dedup();
        self.left_out.extend(left_out);
        self.left_out.sort_unstable();
        self.left_out.dedup();
    }
}
