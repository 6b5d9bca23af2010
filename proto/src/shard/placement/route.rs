//! The shards of one series, by time.

use smallvec::SmallVec;

use crate::shard::selection::Window;

/// The shards of one series. The shard changes with an epoch of the placement, and only if the series moves then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    first: u32,
    /// For each later shard, the time after which the series is in the shard; ascending.
    later: SmallVec<[(i64, u32); 2]>,
}

impl Route {
    /// Makes a route of the first shard, and of later shards with the times after which they apply, ascending.
    pub(super) fn new(first: u32, later: impl Iterator<Item = (i64, u32)>) -> Self {
        let mut route = Self { first, later: SmallVec::new() };
        for (begins_ns, shard) in later {
            if shard != route.last() {
                route.later.push((begins_ns, shard));
            }
        }
        route
    }

    fn last(&self) -> u32 {
        self.later.last().map_or(self.first, |&(_, shard)| shard)
    }

    /// The shard of all samples; `None` if it depends on the time.
    #[must_use]
    pub fn only(&self) -> Option<u32> {
        self.later.is_empty().then_some(self.first)
    }

    /// Shard of a sample.
    #[must_use]
    pub fn shard_at(&self, time_ns: i64) -> u32 {
        self.leg_at(time_ns).0
    }

    /// Shard of a sample, and the time range for which the series stays in this shard. The range begins at `i64::MIN`
    /// for the first shard, and ends at `i64::MAX` for the last one.
    #[must_use]
    pub fn leg_at(&self, time_ns: i64) -> (u32, Window) {
        let next = self.later.partition_point(|&(begins_ns, _)| begins_ns < time_ns);
        let end_ns = self.later.get(next).map_or(i64::MAX, |&(begins_ns, _)| begins_ns);
        let current = next.checked_sub(1).and_then(|current| self.later.get(current));
        let (start_ns, shard) = current.copied().unwrap_or((i64::MIN, self.first));
        (shard, Window { start_ns, end_ns })
    }
}
