//! Consistency of the reads of a query.
//!
//! A query first asks each of its shards for a [`ReadPoint`]. All further reads of the query name the index of this
//! point. They see at least its state, and need no further confirmation of the leader, also if the leader changes.

use std::time::Duration;

use crate::formats::wire;

/// The state of a shard that a query may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Everything that was acknowledged before the query. The leader confirms with a majority that it still leads.
    #[default]
    Linearizable,
    /// The state of any member, however old.
    Stale,
}

/// A state of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadPoint {
    /// Log index of the last entry that is applied in this state; 0 if there is none.
    pub applied_index: u64,
    /// The state has everything that was acknowledged this long ago; `None` if this is not known.
    pub staleness: Option<Duration>,
}

/// The placement and the state that a read refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// Epoch of the placement that chose the shard.
    pub placement_epoch: u64,
    /// Log index that the member has applied before it reads. `None`: only the leader may respond, and the read is
    /// linearizable.
    pub applied_index: Option<u64>,
}

impl ReadAt {
    /// Returns what a linearizable read at the leader refers to.
    #[must_use]
    pub fn leader(placement_epoch: u64) -> Self {
        Self { placement_epoch, applied_index: None }
    }
}

impl ReadPoint {
    /// Encodes the state.
    #[must_use]
    pub fn to_wire(self) -> wire::ReadPointResponse {
        let milliseconds = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        let Self { applied_index, staleness } = self;
        // Rounded up, so that the bound still holds.
        let staleness_ms = staleness.map(|age| if age.is_zero() { 0 } else { milliseconds(age) });
        wire::ReadPointResponse { applied_index, staleness_ms }
    }

    /// Decodes a state.
    #[must_use]
    pub fn from_wire(from: wire::ReadPointResponse) -> Self {
        let wire::ReadPointResponse { applied_index, staleness_ms } = from;
        Self { applied_index, staleness: staleness_ms.map(Duration::from_millis) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn points_read_back_and_are_never_younger(
            applied_index in any::<u64>(),
            age_ns in proptest::option::of(any::<u64>()),
        ) {
            let sent = ReadPoint { applied_index, staleness: age_ns.map(Duration::from_nanos) };
            let read = ReadPoint::from_wire(sent.to_wire());
            prop_assert_eq!(read.applied_index, applied_index);
            prop_assert_eq!(read.staleness.is_some(), sent.staleness.is_some());
            prop_assert!(read.staleness >= sent.staleness);
            let most = sent.staleness.map(|age| age + Duration::from_millis(1));
            prop_assert!(read.staleness <= most);
        }
    }
}
