//! Errors that stop replicas. Parts of a replica or of the log report an error; other tasks wait for it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::ReplicaError;

/// The error that is kept for the node's log or for one replica: the first, because later errors are consequences. Only
/// a failed sync of the log replaces an earlier error, because a failed sync must end the process. Clones share the
/// error.
///
/// All replicas of a node use one log. An error of the log is therefore also an error of each replica, and precedes the
/// replica's own error.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kept: watch::Sender<Option<Arc<ReplicaError>>>,
    replica: Option<OfReplica>,
}

#[derive(Clone, Debug)]
struct OfReplica {
    shard: u32,
    log: watch::Sender<Option<Arc<ReplicaError>>>,
}

impl Failure {
    /// Returns the failure of a node's log.
    pub(crate) fn of_log() -> Self {
        Self { kept: watch::Sender::new(None), replica: None }
    }

    /// Returns the failure of a replica. `self` is the failure of its log.
    pub(crate) fn of_replica(&self, shard: u32) -> Self {
        Self { kept: watch::Sender::new(None), replica: Some(OfReplica { shard, log: self.kept.clone() }) }
    }

    /// Keeps `error` if it is the first error, or the first failed sync. Returns the error that is kept.
    pub(crate) fn report(&self, error: ReplicaError) -> Arc<ReplicaError> {
        let error = Arc::new(error);
        let is_kept = self.kept.send_if_modified(|kept| {
            let is_new = kept.as_ref().is_none_or(|kept| is_sync(&error) && !is_sync(kept));
            if is_new {
                *kept = Some(Arc::clone(&error));
            }
            is_new
        });
        match &self.replica {
            Some(OfReplica { shard, .. }) if is_kept => tracing::error!(shard, %error, "the replica stops"),
            None if is_kept => tracing::error!(%error, "the Raft log has failed: all replicas stop"),
            _ => {}
        }
        self.get().unwrap_or(error)
    }

    /// Reports `error` as [`Failure::report`] does. Returns the kept error as the error type that openraft's traits
    /// require.
    pub(crate) fn io_error(&self, error: impl Into<ReplicaError>) -> std::io::Error {
        std::io::Error::other(self.report(error.into()))
    }

    pub(crate) fn get(&self) -> Option<Arc<ReplicaError>> {
        let of_log = self.replica.as_ref().and_then(|replica| replica.log.borrow().clone());
        of_log.or_else(|| self.kept.borrow().clone())
    }

    /// Forgets the error of a log that was closed, so that the log can be opened again. No part of it may still report
    /// errors.
    pub(crate) fn clear(&self) {
        self.kept.send_replace(None);
    }

    /// Waits until an error is reported, and returns the kept error.
    pub(crate) async fn wait(&self) -> Arc<ReplicaError> {
        self.wait_for(|_error| true).await
    }

    /// Waits until an error is kept after which the replica or the log must not be opened again, and returns it.
    pub(crate) async fn wait_for_final(&self) -> Arc<ReplicaError> {
        self.wait_for(ReplicaError::is_final).await
    }

    async fn wait_for(&self, is_wanted: impl Fn(&ReplicaError) -> bool) -> Arc<ReplicaError> {
        let mut own = self.kept.subscribe();
        let mut of_log = self.replica.as_ref().map_or(&self.kept, |replica| &replica.log).subscribe();
        loop {
            own.mark_unchanged();
            of_log.mark_unchanged();
            if let Some(error) = self.get().filter(|error| is_wanted(error)) {
                return error;
            }
            let changed = tokio::select! {
                changed = own.changed() => changed,
                changed = of_log.changed() => changed,
            };
            // `self` holds the senders, so this returns only when another error is kept.
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn is_sync(error: &ReplicaError) -> bool {
    matches!(error, ReplicaError::Sync(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::failed_sync;

    #[test]
    fn only_a_failed_sync_replaces_the_first_error() {
        let failure = Failure::of_log();
        failure.report(ReplicaError::Damaged);
        failure.report(ReplicaError::Consensus("openraft stopped".into()));
        assert!(matches!(*failure.get().unwrap(), ReplicaError::Damaged));
        failure.report(failed_sync());
        failure.report(ReplicaError::Damaged);
        assert!(matches!(*failure.get().unwrap(), ReplicaError::Sync(_)));
    }

    #[tokio::test]
    async fn an_error_of_the_log_is_one_of_every_replica_and_precedes_its_own() {
        let log = Failure::of_log();
        let [one, two] = [1, 2].map(|shard| log.of_replica(shard));
        one.report(ReplicaError::Damaged);
        assert!(matches!(*one.wait().await, ReplicaError::Damaged));
        assert!(two.get().is_none() && log.get().is_none());
        let waiting = tokio::spawn({
            let two = two.clone();
            async move { two.wait_for_final().await }
        });
        tokio::task::yield_now().await;
        log.report(failed_sync());
        assert!(matches!(*waiting.await.unwrap(), ReplicaError::Sync(_)));
        assert!([&log, &one, &two].iter().all(|failure| matches!(*failure.get().unwrap(), ReplicaError::Sync(_))));
        log.clear();
        assert!(matches!(*one.get().unwrap(), ReplicaError::Damaged));
        assert!(two.get().is_none());
    }
}
