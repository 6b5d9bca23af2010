//! Accepted time, which retention uses. The node stores a limit of it in its log, from which the next start continues.

use std::sync::Arc;
use std::time::Instant;

use crate::consensus::LogDatabase;
use crate::error::ReplicaError;
use crate::node::shared::Shared;

impl Shared {
    /// Returns the present time of retention (accepted time), in nanoseconds since 1970. If the stored limit of
    /// accepted time is too old, first stores a new limit. `has_data` is true if a shard of the node has entries.
    ///
    /// # Errors
    /// The new limit could not be stored, so retention must not drop anything.
    pub(super) async fn retention_ns(&self, log: &LogDatabase, has_data: bool) -> Result<i64, Arc<ReplicaError>> {
        let _storing = self.storing_time.lock().await;
        let (now_ns, to_store_ns) = self.clock.now_and_to_store_ns(log.accepted_ns());
        // Without entries, there is no data that the time could affect.
        if let Some(limit_ns) = to_store_ns.filter(|_limit_ns| has_data) {
            log.store_accepted(limit_ns).await?;
        }
        Ok(now_ns)
    }

    /// Sets the accepted time to the system clock, which an operator has confirmed. The time is stored first, because
    /// retention must not follow a confirmation that a restart would forget.
    pub(super) async fn accept_clock(&self, log: &LogDatabase) -> Result<(), Arc<ReplicaError>> {
        let _storing = self.storing_time.lock().await;
        let read_at = Instant::now();
        let system_ns = self.clock.report().system_ns;
        log.store_accepted(system_ns).await?;
        let stored_for_ns = i64::try_from(read_at.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.clock.accept(system_ns.saturating_add(stored_for_ns));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{Config, Retention};

    #[tokio::test(flavor = "multi_thread")]
    async fn an_accepted_clock_is_not_overwritten_with_an_older_time() {
        let folder = tempfile::tempdir().unwrap();
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        let config = Config::new(folder.path().to_owned(), retention, 1 << 30);
        let shared = Shared::open(config, &mut Registry::default()).await.unwrap();
        // The clock starts in 1970, so the system clock is decades ahead of it.
        shared.clock.start(1, Some(1));
        let log = shared.raft_log.opened().await.unwrap();
        let (accepted, read) = tokio::join!(shared.accept_clock(&log), shared.retention_ns(&log, true));
        accepted.unwrap();
        let system_ns = shared.clock.report().system_ns;
        for ns in [read.unwrap(), log.accepted_ns().unwrap(), log.read_accepted().unwrap().unwrap()] {
            assert!(ns.abs_diff(system_ns) < 60_000_000_000, "{ns} is stored or used instead of {system_ns}");
        }
    }
}
