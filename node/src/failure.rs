//! The error of a replica. Parts of the replica report the error; other tasks wait for it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::ReplicaError;

/// The error that is kept for a replica: its first, because later errors are consequences. Only a failed sync of the
/// log replaces an earlier error, because a failed sync must end the process. Clones share the error.
#[derive(Clone, Debug)]
pub(crate) struct Failure(watch::Sender<Option<Arc<ReplicaError>>>);

impl Failure {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Keeps `error` if it is the first error, or the first failed sync. Returns the error that is kept.
    pub(crate) fn report(&self, error: ReplicaError) -> Arc<ReplicaError> {
        let error = Arc::new(error);
        let is_kept = self.0.send_if_modified(|kept| {
            let is_new = kept.as_ref().is_none_or(|kept| is_sync(&error) && !is_sync(kept));
            if is_new {
                *kept = Some(Arc::clone(&error));
            }
            is_new
        });
        if is_kept {
            tracing::error!(%error, "the replica stops");
        }
        self.get().unwrap_or(error)
    }

    /// Reports `error` as [`Failure::report`] does. Returns the kept error as the error type that openraft's traits
    /// require.
    pub(crate) fn io_error(&self, error: impl Into<ReplicaError>) -> std::io::Error {
        std::io::Error::other(self.report(error.into()))
    }

    pub(crate) fn get(&self) -> Option<Arc<ReplicaError>> {
        self.0.borrow().clone()
    }

    /// Returns the error if it is a failed sync of the log; otherwise `None`.
    pub(crate) fn failed_sync(&self) -> Option<Arc<ReplicaError>> {
        self.get().filter(|error| is_sync(error))
    }

    /// Waits until an error is reported, and returns the kept error.
    pub(crate) async fn wait(&self) -> Arc<ReplicaError> {
        self.wait_for(|_error| true).await
    }

    /// Waits until an error is kept that must end the process, and returns this error.
    pub(crate) async fn wait_for_final(&self) -> Arc<ReplicaError> {
        self.wait_for(ReplicaError::is_final).await
    }

    async fn wait_for(&self, is_wanted: impl Fn(&ReplicaError) -> bool) -> Arc<ReplicaError> {
        let mut receiver = self.0.subscribe();
        loop {
            let kept = receiver.borrow_and_update().clone();
            if let Some(error) = kept.filter(|error| is_wanted(error)) {
                return error;
            }
            // `self` holds the sender, so this returns only when another error is kept.
            if receiver.changed().await.is_err() {
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
        let failure = Failure::new();
        failure.report(ReplicaError::Damaged);
        failure.report(ReplicaError::Consensus("openraft stopped".into()));
        assert!(matches!(*failure.get().unwrap(), ReplicaError::Damaged));
        assert!(failure.failed_sync().is_none());
        failure.report(failed_sync());
        failure.report(ReplicaError::Damaged);
        assert!(failure.failed_sync().is_some());
    }
}
