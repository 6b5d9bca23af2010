//! Servers of a process, the signals that stop them, and the threads that they run on.

use std::future::Future;
use std::time::{Duration, Instant};

use ::router::connection::{Listener, service};
use anyhow::Context as _;
use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::process::{exit, log};

/// Longest wait for requests in flight when the process stops. Before this wait, the agent may take 5 s to stop. After
/// the wait, the node may take 10 s to flush and close.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for running threads after all parts have stopped. With all these waits, the process stops in less than
/// 30 s. After 30 s, supervisors kill a process.
const THREADS_PATIENCE: Duration = Duration::from_secs(3);

/// Starts logging and runs a role.
pub(crate) fn block_on(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    log::start()?;
    block_on_runtime(role)
}

/// Runs a role or a command on a new runtime. Logging must have been started.
pub(crate) fn block_on_runtime(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting threads")?;
    let result = runtime.block_on(role);
    // `shutdown_timeout` returns before the timeout only if all threads of the runtime have ended.
    let began = Instant::now();
    runtime.shutdown_timeout(THREADS_PATIENCE);
    if began.elapsed() >= THREADS_PATIENCE {
        tracing::warn!("threads still work after {THREADS_PATIENCE:?}: the process ends without them");
        exit::at_once(&result);
    }
    result
}

/// Catcher of SIGTERM and SIGINT, which works from its construction on. A role constructs it before it does anything
/// that takes long.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).context("SIGINT")? })
    }

    /// Returns when SIGTERM or SIGINT arrives, and logs that the process stops.
    pub(super) async fn stop_requested(&mut self) {
        self.next().await;
        tracing::info!("stopping: requests in flight are finished");
    }

    /// Returns the result of `start`, or `None` if the process must stop before `start` ends. Work that `start` left
    /// running then ends with the process (see [`block_on_runtime`]).
    pub(super) async fn unless_stopped<T>(&mut self, start: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop_requested() => None,
            started = start => Some(started),
        }
    }

    /// Returns when the next signal arrives.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Servers of this process, which are stopped together.
#[derive(Debug, Default)]
pub(super) struct Servers {
    tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Servers {
    pub(super) fn http(&self, listener: TcpListener, routes: Router) {
        let stop = self.stop.clone().cancelled_owned();
        // Without this option, the end of a response waits until the client has acknowledged its beginning.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "the system may delay a connection's responses");
            }
        });
        let server = axum::serve(Listener::new(listener), service(routes)).with_graceful_shutdown(stop);
        self.spawn(async move { server.await.context("HTTP") });
    }

    pub(super) fn spawn(&self, server: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Err(error) = server.await {
                tracing::error!("{error:#}");
                // If one of its servers has failed, the process must stop.
                stop.cancel();
            }
        });
    }

    /// Returns when a server has ended by itself, which is an error.
    pub(super) async fn failed(&self) {
        self.stop.cancelled().await;
    }

    /// Refuses new connections, and waits for the requests in flight.
    pub(super) async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_PATIENCE, self.tasks.wait()).await.is_err() {
            tracing::warn!("requests in flight took longer than {STOP_PATIENCE:?} and are aborted");
        }
    }
}
