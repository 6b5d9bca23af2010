//! Horizons: for each tier, the time up to which the tier has no data, because its partitions expired.

use proto::Tier;

use crate::database::Expired;

/// Time up to which partitions expired, by tier and retention class.
#[derive(Debug, Default)]
pub(crate) struct Horizons(Expired);

impl Horizons {
    /// Creates the horizons from the times in the database.
    pub(crate) fn stored(expired: Expired) -> Self {
        Self(expired)
    }

    /// Returns the end, in nanoseconds since 1970, of the last dropped partition of a tier. The tier has no data up to
    /// this time.
    pub(crate) fn horizon_ns(&self, tier: Tier, class: u8) -> i64 {
        let before_ns = self.0.get(&(tier, class)).copied().unwrap_or_default();
        before_ns.div_euclid(tier.partition_ns()) * tier.partition_ns()
    }

    /// Returns the tiers and retention classes with expired partitions.
    pub(crate) fn expired(&self) -> impl Iterator<Item = (Tier, u8)> + '_ {
        self.0.keys().copied()
    }

    /// Records that the partitions that end at or before a time expired. Returns the latest such time of the tier and
    /// class.
    pub(crate) fn expire(&mut self, tier: Tier, class: u8, before_ns: i64) -> i64 {
        let latest_ns = self.0.entry((tier, class)).or_insert(before_ns);
        *latest_ns = before_ns.max(*latest_ns);
        *latest_ns
    }
}
