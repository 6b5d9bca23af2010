//! The thread that samples: its start, and its end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::aggregate::Aggregate;
use super::capability::{Missing, probe};
use super::collector::Collector;
use super::error::AgentError;
use super::interval::Interval;
use super::sampler::SamplerError;
use crate::config::Sampling;
use crate::names::shared_tables::SharedTables;
use crate::status::{State, Status};

/// The thread of a running sampler.
pub(crate) struct SamplerThread {
    /// Receives a message when every CPU is sampled. Closed if sampling could not start.
    pub(crate) started: oneshot::Receiver<()>,
    /// Receives the result of the thread.
    pub(crate) ended: oneshot::Receiver<Result<(), SamplerError>>,
}

impl SamplerThread {
    /// Starts the thread. It calls `export` with the samples of each interval.
    ///
    /// However the thread ends, it drops `export` and then cancels `stop`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn spawn(
        sampling: Sampling,
        environment: Arc<[String]>,
        stop: &CancellationToken,
        status: &Status,
        export: impl FnMut(&mut Aggregate, &Interval, &SharedTables) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = stop.clone();
        let status = status.clone();
        let (has_started, started) = oneshot::channel();
        let (has_ended, ended) = oneshot::channel();
        std::thread::Builder::new().name("varve-sampler".to_owned()).spawn(move || {
            let stop_at_end = stop.clone().drop_guard();
            let result = Collector::start(sampling, environment, status.clone(), export).and_then(|collector| {
                status.sampler_is_awake();
                status.set(State::Running, "");
                tracing::info!(sampling.period_ns, sampling.off_cpu, "sampling every CPU");
                // Only a recording waits for this message, so nobody may receive it.
                let _unheard = has_started.send(());
                collector.run(&stop)
            });
            drop(stop_at_end);
            // The receiver is gone if nobody waits any more.
            let _unheard = has_ended.send(result);
        })?;
        Ok(Self { started, ended })
    }
}

/// Waits for the end of the sampler's thread. Once `stop` is cancelled, waits no longer than `timeout`: the thread may
/// be blocked by a file or a process that it reads.
///
/// # Errors
/// The thread failed, or did not end in time.
pub(crate) async fn wait_for_end(
    ended: oneshot::Receiver<Result<(), SamplerError>>,
    stop: &CancellationToken,
    timeout: Duration,
) -> Result<(), AgentError> {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(timeout).await;
    };
    tokio::select! {
        result = ended => match result {
            Ok(result) => result.map_err(AgentError::Sampler),
            Err(_closed) => Err(AgentError::Thread(io::Error::other("it panicked"))),
        },
        () = too_late => Err(AgentError::Thread(io::Error::new(io::ErrorKind::TimedOut, "it did not end in time"))),
    }
}

/// Checks the requirements of sampling on this machine, and shows the missing ones in `status`.
///
/// # Errors
/// [`AgentError::Missing`] if nothing can be sampled, because a requirement is missing.
pub(crate) async fn check_machine(status: &Status) -> Result<(), AgentError> {
    let missing = tokio::task::spawn_blocking(probe).await.map_err(|error| AgentError::Thread(error.into()))?;
    status.set_missing(missing.iter().map(Missing::to_string).collect());
    let (required, optional): (Vec<_>, Vec<_>) = missing.into_iter().partition(|missing| missing.is_required);
    for missing in &optional {
        tracing::warn!("the agent runs without {missing}");
    }
    if required.is_empty() { Ok(()) } else { Err(AgentError::Missing(required)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::causes;

    #[tokio::test]
    async fn a_thread_that_does_not_end_is_waited_for_only_so_long() {
        let (ended, end) = oneshot::channel();
        let stop = CancellationToken::new();
        let waiting = wait_for_end(end, &stop, Duration::from_millis(50));
        tokio::pin!(waiting);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(),
            "stop is not cancelled yet"
        );
        stop.cancel();
        let error = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap_err();
        assert_eq!(causes(&error), "the sampler's thread cannot run: it did not end in time");
        drop(ended);
    }

    #[tokio::test]
    async fn the_result_of_the_thread_is_returned() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (ended, end) = oneshot::channel();
        ended.send(Ok(())).unwrap();
        assert!(wait_for_end(end, &stop, Duration::from_secs(5)).await.is_ok());
        let (gone, end) = oneshot::channel();
        drop(gone);
        assert!(wait_for_end(end, &stop, Duration::from_secs(5)).await.is_err());
    }
}
