//! What a router asks of the node that has a shard: over the network by `varve.v1.Node`, in one process by this trait, which
//! says the same without a wire form in between.

use std::time::Duration;

use tonic::Status;

use crate::batch::Batch;
use crate::entry::Deletion;
use crate::label::LabelSet;
use crate::selection::{Answer, Matcher, Selection, Window};
use crate::tenant::TenantId;
pub use crate::wire::AdministrationTask;

/// See the module. Errors are what the gRPC service answers.
#[tonic::async_trait]
pub trait Shards: Send + Sync {
    /// Stores a batch; when this returns, it is durable and visible.
    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Status>;

    /// Sums of samples. Linearizable.
    async fn select(&self, shard: u32, selection: Selection) -> Result<Answer, Status>;

    /// The series that have samples in a window. Linearizable.
    async fn series(
        &self,
        shard: u32,
        tenant: TenantId,
        matchers: Vec<Matcher>,
        window: Window,
    ) -> Result<SeriesAnswer, Status>;

    /// Deletes samples, for good; when this returns, no query sees them. Takes as long as it takes.
    async fn delete(&self, shard: u32, deletion: Deletion) -> Result<Deleted, Status>;

    /// What whoever runs the shard asks of it: a report, a JSON object. Takes as long as it takes.
    async fn administer(&self, shard: u32, task: AdministrationTask) -> Result<String, Status>;
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
#[derive(Clone, Debug, Default)]
pub struct SeriesAnswer {
    /// Sorted, each once.
    pub series: Vec<LabelSet>,
    /// Keys of sample attributes in the window's partitions, written as labels; sorted, each once.
    pub attribute_names: Vec<String>,
}
