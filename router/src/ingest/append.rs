//! Append: the last step of a push. Sends each batch to its shard, which acknowledges the batch when it is durable.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::Batch;
use proto::placement::Placement;

use crate::nodes::{Nodes, NodesError};

/// Responses of the shards that have appended their batches.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Numbers of the shards that acknowledged their batch.
    pub(crate) shards: Vec<u32>,
    /// Number of samples that shards skipped because the samples are older than `retention`.
    pub(crate) samples_too_old: u64,
    pub(crate) retention: Duration,
    /// True if a shard already had a batch with the same ID. That shard then stored no definition of this batch.
    pub(crate) is_duplicate: bool,
}

/// Appends the batches of all shards that have not acknowledged their batch yet, all at the same time. When this
/// function returns `Ok`, the batches are durable and every query sees them.
///
/// # Errors
/// Returns the [`NodesError`] of the first shard that fails, by number; if another fault than missing definitions
/// occurred, one of these faults. All other shards have succeeded or failed then, and `acknowledged` lists those that
/// succeeded. The same batches may be sent again with the same ID.
pub(crate) async fn append(
    nodes: &Nodes,
    placement: &Placement,
    mut batches: BTreeMap<u32, Batch>,
    acknowledged: &mut Acknowledged,
) -> Result<(), NodesError> {
    batches.retain(|shard, _| !acknowledged.shards.contains(shard));
    let mut failed: Option<NodesError> = None;
    for (shard, appended) in nodes.append(placement, batches).await {
        match appended {
            Ok(appended) => {
                acknowledged.shards.push(shard);
                acknowledged.samples_too_old += appended.samples_too_old;
                acknowledged.retention = appended.retention;
                acknowledged.is_duplicate |= appended.duplicate;
            }
            Err(error) if failed.as_ref().is_none_or(NodesError::is_dangling) && !error.is_dangling() => {
                failed = Some(error);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), Err)
}
