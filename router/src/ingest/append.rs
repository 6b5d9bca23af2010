//! Append: the last step of a push. Sends each batch to its shard, which acknowledges it when it is durable.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::Batch;

use crate::nodes::{Nodes, NodesError};

/// Responses of the shards that have appended their batches.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Shards that acknowledged their batch.
    shards: Vec<u32>,
    /// Samples that were skipped because they are older than `retention`.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
    /// True if a shard had a batch with this id already, and so stored no definition of this one.
    pub(crate) is_duplicate: bool,
}

/// Appends the batches of all shards that have not acknowledged theirs yet. When this returns, they are durable and
/// every query sees them.
///
/// # Errors
/// [`NodesError`] of the first shard that fails. `acknowledged` has the shards that succeeded; the same batches with
/// the same id may be sent again.
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
