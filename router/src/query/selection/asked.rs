//! The shards of one query: which it asks, the states that it reads, and the shards that do not answer.
//!
//! Invariant: all reads of a query see at least the state of the read point that the query first got from a shard. A
//! shard that did not answer once is not asked again by the same query.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use proto::placement::Placement;
use proto::{Consistency, Matcher, TenantId, Window};
use tokio::time::timeout;

use crate::nodes::{Nodes, NodesError, Points, Reading, in_order};
use crate::query::error::QueryError;
use crate::query::run::Run;
use crate::query::selection::coverage::{Coverage, SilentShard, Staleness};
use crate::query::selection::pruning::shards_of;

/// Time for which a query keeps its slot while it waits for read points. A shard without a leader must not keep other
/// queries from running.
const SLOT_HELD_MAX: Duration = Duration::from_millis(50);
/// Maximum number of read points that one query waits for at one time. Each is one small request.
const POINTS_AT_ONCE_MAX: usize = 64;

/// The shards of one query.
#[derive(Debug, Default)]
pub(in crate::query) struct AskedShards {
    asked: BTreeSet<u32>,
    points: Points,
    silent: BTreeMap<u32, Box<NodesError>>,
    /// Time range that covers the ranges of all requests.
    window: Option<Window>,
}

impl Run {
    /// Returns the placement that the whole query uses.
    pub(crate) async fn placement(&mut self, nodes: &Nodes) -> Result<&Placement, QueryError> {
        let pinned = match self.placement.take() {
            Some(pinned) => pinned,
            None => nodes.placement().await?,
        };
        Ok(self.placement.insert(pinned))
    }

    /// Returns the shards that can have samples in a time range, of series that these matchers select; ascending. They
    /// count as asked. Shards that do not answer are omitted.
    pub(crate) async fn shards_of(
        &mut self,
        nodes: &Nodes,
        tenant: &TenantId,
        matchers: &[Matcher],
        window: Window,
    ) -> Result<Vec<u32>, QueryError> {
        let shards = shards_of(self.placement(nodes).await?, tenant, matchers, window);
        self.answering(nodes, shards, window).await
    }

    /// Returns the shards of all epochs, ascending. They count as asked. Shards that do not answer are omitted.
    pub(crate) async fn all_shards(&mut self, nodes: &Nodes) -> Result<Vec<u32>, QueryError> {
        let shards = self.placement(nodes).await?.shards();
        self.answering(nodes, shards, Window { start_ns: i64::MIN, end_ns: i64::MAX }).await
    }

    /// Gets the read points of the shards that have none yet.
    async fn answering(&mut self, nodes: &Nodes, shards: Vec<u32>, window: Window) -> Result<Vec<u32>, QueryError> {
        let of = &mut self.shards;
        of.asked.extend(&shards);
        let all = of.window.get_or_insert(window);
        *all = Window { start_ns: all.start_ns.min(window.start_ns), end_ns: all.end_ns.max(window.end_ns) };
        let is_new = |shard: &&u32| !of.points.contains_key(shard) && !of.silent.contains_key(shard);
        let new: Vec<u32> = shards.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            self.read_points(nodes, new).await?;
        }
        Ok(shards.into_iter().filter(|shard| self.answers(*shard)).collect())
    }

    async fn read_points(&mut self, nodes: &Nodes, shards: Vec<u32>) -> Result<(), QueryError> {
        let began = Instant::now();
        let epoch = self.placement.as_ref().map_or(0, |placement| placement.epoch());
        let consistency = self.options.consistency;
        let calls =
            shards.into_iter().map(|shard| async move { (shard, nodes.read_point(epoch, shard, consistency).await) });
        let mut waiting = pin!(futures::stream::iter(calls).buffered(POINTS_AT_ONCE_MAX).collect::<Vec<_>>());
        let points = match timeout(SLOT_HELD_MAX, &mut waiting).await {
            Ok(points) => points,
            // Nothing is loaded yet, so another query may run meanwhile.
            Err(_elapsed) if self.shards.points.is_empty() => {
                self.release_slot()?;
                let points = waiting.await;
                self.take_slot().await?;
                points
            }
            Err(_elapsed) => waiting.await,
        };
        self.timings.add("shards", began.elapsed());
        let known = Arc::make_mut(&mut self.shards.points);
        for (shard, point) in points {
            match point.map_err(|error| QueryError::from(error).silent_shard()) {
                Ok(point) => drop(known.insert(shard, point)),
                Err(Ok((shard, error))) => drop(self.shards.silent.insert(shard, error)),
                Err(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a request to shards that [`Run::shards_of`] has returned.
    pub(crate) fn reading(&self) -> Reading {
        let epoch = self.placement.as_ref().map_or(0, |placement| placement.epoch());
        Reading::new(epoch, Arc::clone(&self.shards.points), Arc::clone(&self.worker.permit))
    }

    /// Makes calls to several shards, and measures the time. Returns the responses in the order of the calls, without
    /// those of shards that did not answer.
    ///
    /// # Errors
    /// Returns the error of the first call that fails otherwise.
    pub(crate) async fn calls<T>(
        &mut self,
        calls: Vec<impl Future<Output = Result<T, QueryError>>>,
    ) -> Result<Vec<T>, QueryError> {
        let began = Instant::now();
        let calls = calls.into_iter().map(|call| async move {
            match call.await {
                Ok(response) => Ok(Ok(response)),
                Err(error) => error.silent_shard().map(Err),
            }
        });
        let all = in_order(calls.collect()).await?;
        self.timings.add("shards", began.elapsed());
        let silent = &mut self.shards.silent;
        let answered =
            |response: Result<T, _>| response.map_err(|(shard, error)| drop(silent.insert(shard, error))).ok();
        Ok(all.into_iter().filter_map(answered).collect())
    }

    /// Returns whether a shard has answered all requests of the query.
    pub(crate) fn answers(&self, shard: u32) -> bool {
        !self.shards.silent.contains_key(&shard)
    }

    /// Prepares to run the query once more if it failed because the node has another placement than the router. The
    /// first run may have missed shards.
    ///
    /// # Errors
    /// Returns `error` if it has another reason, or if the query has already run twice.
    pub(crate) fn place_again(&mut self, error: QueryError) -> Result<(), QueryError> {
        if self.is_placed_again || !error.is_misplaced() {
            return Err(error);
        }
        self.is_placed_again = true;
        self.placement = None;
        self.shards = AskedShards::default();
        Ok(())
    }

    /// Checks, after the last request, that the caller accepts the response without the shards that did not answer.
    ///
    /// # Errors
    /// Returns an error if no shard answered, or if the caller accepts no partial response.
    pub(crate) fn check(&mut self) -> Result<(), QueryError> {
        let AskedShards { asked, silent, .. } = &mut self.shards;
        if silent.is_empty() || (silent.len() < asked.len() && !self.options.refuses_partial) {
            return Ok(());
        }
        let shards: Vec<u32> = silent.keys().copied().collect();
        let Some((_, first)) = silent.pop_first() else { return Ok(()) };
        if shards.len() == 1 {
            return Err(QueryError::Nodes(first));
        }
        Err(QueryError::ShardsMissing { shards, asked: asked.len(), first })
    }

    /// Returns the shards that the response covers.
    pub(crate) fn coverage(&self) -> Coverage {
        let AskedShards { asked, points, silent, window } = &self.shards;
        let slots = |shard| match (&self.placement, window) {
            (Some(placement), Some(window)) => placement.slots_of(shard, *window),
            _ => Vec::new(),
        };
        let is_stale = self.options.consistency == Consistency::Stale;
        let ages = points.iter().filter(|(shard, _)| self.answers(**shard)).map(|(_, point)| point.state.staleness);
        let staleness = ages.map(Staleness::from).max().filter(|_| is_stale);
        let silent = silent.iter().map(|(&number, error)| {
            let reason = error.reason().to_owned();
            SilentShard { number, slots: slots(number), reason }
        });
        Coverage { asked: asked.len(), silent: silent.collect(), staleness }
    }

    /// Frees the slot of the query.
    fn release_slot(&mut self) -> Result<(), QueryError> {
        let none = Arc::clone(&self.slots).try_acquire_many_owned(0).map_err(|_closed| QueryError::Broken)?;
        self.worker.permit = Arc::new(none);
        Ok(())
    }

    async fn take_slot(&mut self) -> Result<(), QueryError> {
        let began = Instant::now();
        let permit = Arc::clone(&self.slots).acquire_owned().await.map_err(|_closed| QueryError::Broken)?;
        self.worker.permit = Arc::new(permit);
        self.timings.add("wait", began.elapsed());
        Ok(())
    }
}
