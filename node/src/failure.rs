//! The first error of a replica, which its parts report and for which others wait.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::ReplicaError;

/// The first error, kept forever: later errors are its consequences. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Failure(watch::Sender<Option<Arc<ReplicaError>>>);

impl Failure {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Keeps `error` unless there is one already; returns the one that is kept.
    pub(crate) fn report(&self, error: ReplicaError) -> Arc<ReplicaError> {
        let error = Arc::new(error);
        let first = self.0.send_if_modified(|kept| {
            let is_first = kept.is_none();
            if is_first {
                *kept = Some(Arc::clone(&error));
            }
            is_first
        });
        if first {
            tracing::error!(%error, "the replica stops");
        }
        self.get().unwrap_or(error)
    }

    /// As [`Failure::report`], as the error type of openraft's traits.
    pub(crate) fn io_error(&self, error: impl Into<ReplicaError>) -> std::io::Error {
        std::io::Error::other(self.report(error.into()))
    }

    pub(crate) fn get(&self) -> Option<Arc<ReplicaError>> {
        self.0.borrow().clone()
    }

    /// Returns when there is an error.
    pub(crate) async fn wait(&self) -> Arc<ReplicaError> {
        let mut receiver = self.0.subscribe();
        loop {
            if let Some(error) = receiver.borrow_and_update().clone() {
                return error;
            }
            // The sender lives in `self`: this returns only when there is news.
            if receiver.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
