//! Reads of shards. A read point comes from the leader, or from any member if the query accepts a stale state. With the
//! read point, any member that has its state serves the other reads of the query.

use std::sync::Arc;
use std::time::Duration;

use proto::Consistency;
use proto::leader_search::SLOW;
use proto::meta::Shard;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use crate::nodes::cluster::{Cluster, failure_of, now};
use crate::nodes::reading::{Point, Reading};
use crate::nodes::remote::{Lost, Remote};

/// Longest time that one member may take to return a read point. The next member is called then.
const MEMBER_PATIENCE: Duration = Duration::from_secs(2);

impl Cluster {
    /// Returns the state of a shard that the other reads of a query see at least.
    pub(in crate::nodes) async fn read_point(
        &self,
        shard: u32,
        placement_epoch: u64,
        consistency: Consistency,
    ) -> Result<Point, Status> {
        let read = |node: Arc<Remote>| async move {
            let read = timeout(MEMBER_PATIENCE, node.read_point(shard, placement_epoch, consistency)).await;
            read.unwrap_or_else(|_elapsed| Err(Lost::Response.status(format!("no answer within {MEMBER_PATIENCE:?}"))))
        };
        if consistency == Consistency::Stale {
            let (node, state) = self.at_any_member(shard, None, read).await?;
            return Ok(Point { state, node: Some(node) });
        }
        let patience = self.silent_shards.patience(shard, Instant::now())?;
        let late = |_elapsed| Err(Status::unavailable(format!("no leader of the shard answered within {patience:?}")));
        let began = Instant::now();
        match timeout(patience, self.at_leader(shard, true, read)).await.unwrap_or_else(late) {
            Ok(state) => {
                self.silent_shards.answered(shard);
                Ok(Point { state, node: self.leaders.lock().leader(shard) })
            }
            Err(status) => {
                if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) {
                    self.leaders.lock().forget_leader(shard);
                    // A shard that fails at once costs the next query no time, and may answer again by then.
                    if began.elapsed() >= SLOW {
                        self.silent_shards.did_not_answer(shard, status.clone(), Instant::now());
                    }
                }
                Err(status)
            }
        }
    }

    /// Makes a read that refers to the read point of a query. Without a read point, only the leader is called.
    pub(in crate::nodes) async fn read<T, F: Future<Output = Result<T, Status>>>(
        &self,
        reading: &Reading,
        shard: u32,
        call: impl Fn(Arc<Remote>) -> F,
    ) -> Result<T, Status> {
        match reading.member(shard) {
            Some(first) => Ok(self.at_any_member(shard, Some(first), call).await?.1),
            None => self.at_leader(shard, true, call).await,
        }
    }

    /// Calls the members of a shard, one after the other, until one responds: the member on the node `first`, the
    /// leader, the others, and last those that did not respond lately. Returns the node that responded.
    async fn at_any_member<T, F: Future<Output = Result<T, Status>>>(
        &self,
        shard: u32,
        first: Option<u64>,
        call: impl Fn(Arc<Remote>) -> F,
    ) -> Result<(u64, T), Status> {
        let state = self.state().await?;
        let mut nodes = state.shards.get(&shard).map(Shard::nodes).unwrap_or_default();
        {
            let known = self.leaders.lock();
            let (leader, now) = (known.leader(shard), now());
            nodes.sort_by_key(|&node| (known.is_silent(node, now), Some(node) != first, Some(node) != leader));
        }
        let mut last = Status::not_found(format!("shard {shard} does not exist: read the placement again"));
        for node in nodes {
            let address = state.nodes.get(&node).map(|node| node.address.as_str()).unwrap_or_default();
            let began = now();
            let remote = self.connection(address)?;
            match call(Arc::clone(&remote)).await {
                Ok(response) => {
                    self.leaders.lock().set_responding(node);
                    return Ok((node, response));
                }
                Err(status) if status.code() == Code::Unavailable => {
                    self.note_failure(node, &remote, failure_of(&status), began).await;
                    last = status;
                }
                // A member that lost its data, or has not joined yet, does not have the shard. A member that lags does
                // not have the placement.
                Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => {
                    if last.code() != Code::Unavailable {
                        last = status;
                    }
                }
                Err(status) => return Err(status),
            }
        }
        Err(last)
    }
}
