//! Append: the last step of a push. Sends each batch to its shard, which acknowledges the batch when it is durable.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::Batch;

use crate::nodes::{Nodes, NodesError};

/// Responses of the shards that have appended their batches.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Numbers of the shards that acknowledged their batch.
    shards: Vec<u32>,
    /// Number of samples that shards skipped because the samples are older than `retention`.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
    /// True if a shard already had a batch with the same ID. That shard then stored no definition of this batch.
    pub(crate) is_duplicate: bool,
}

/// Appends the batches of all shards that have not acknowledged their batch yet. When this function returns `Ok`, the
/// batches are durable and every query sees them.
///
/// # Errors
/// Returns the [`NodesError`] of the first shard that fails. `acknowledged` then lists the shards that succeeded. The
/// same batches may be sent again with the same ID.
pub(crate) async fn append(
    nodes: &Nodes,
    batches: BTreeMap<u32, Batch>,
    acknowledged: &mut Acknowledged,
) -> Result<(), NodesError> {
    for (shard, batch) in batches {
        if acknowledged.shards.contains(&shard) {
            continue;
        }
        let appended = nodes.append(shard, batch).await?;
        acknowledged.shards.push(shard);
        acknowledged.samples_too_old += appended.samples_too_old;
        acknowledged.retention = appended.retention;
        acknowledged.is_duplicate |= appended.duplicate;
    }
    Ok(())
}
