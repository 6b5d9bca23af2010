//! The roles: each binds its ports, opens its parts in the order in which data flows, serves until SIGTERM, and stops in the
//! opposite order, so that what is in flight finishes or is refused.

pub(crate) mod agent;
pub(crate) mod node;
mod receiver;
pub(crate) mod router;
pub(crate) mod up;

pub(crate) use receiver::open_symbols;

use std::future::Future;
use std::time::{Duration, Instant};

use ::router::connection::{Fault, Listener};
use anyhow::Context as _;
use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{ending, log};

/// How long requests in flight may take when the process is asked to stop. The agent has 5 s before that, and the node 10 s after it to
/// flush and close.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long threads that still work then may take. All of it is less than the 30 s after which supervisors kill.
const THREADS_PATIENCE: Duration = Duration::from_secs(3);

/// Runs a role on a runtime of its own.
pub(crate) fn block_on(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    log::start()?;
    block_on_runtime(role)
}

/// Runs a role, or a command that is like one, where logging has been started.
pub(crate) fn block_on_runtime(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting threads")?;
    let result = runtime.block_on(role);
    // Returns before the time is over only when all threads of the runtime have ended.
    let began = Instant::now();
    runtime.shutdown_timeout(THREADS_PATIENCE);
    if began.elapsed() >= THREADS_PATIENCE {
        tracing::warn!("threads still work after {THREADS_PATIENCE:?}: the process ends without them");
        ending::at_once(&result);
    }
    result
}

/// SIGTERM and SIGINT, caught from when this is made: a role makes it before anything that takes long.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).context("SIGINT")? })
    }

    /// Returns when the process is asked to stop.
    async fn asked(&mut self) {
        self.next().await;
        tracing::info!("stopping: requests in flight are finished");
    }

    /// Returns with the next of the signals.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Servers of this process, stopped together.
#[derive(Debug, Default)]
struct Servers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Servers {
    fn http(&self, listener: TcpListener, routes: Router) {
        let stop = self.stop.clone().cancelled_owned();
        // The end of an answer must not wait until its beginning is acknowledged.
        let listener = listener.tap_io(|connection| {
            if let Err(error) = connection.set_nodelay(true) {
                tracing::debug!(%error, "a connection's answers may be held back by the system");
            }
        });
        let service = routes.into_make_service_with_connect_info::<Fault>();
        let server = axum::serve(Listener::new(listener), service).with_graceful_shutdown(stop);
        self.spawn(async move { server.await.context("HTTP") });
    }

    fn spawn(&self, server: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            if let Err(error) = server.await {
                tracing::error!("{error:#}");
                // Half a process is worse than none.
                stop.cancel();
            }
        });
    }

    /// Returns when a server ended by itself, which is an error.
    async fn failed(&self) {
        self.stop.cancelled().await;
    }

    /// Takes no new connections, and waits for the requests in flight.
    async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_PATIENCE, self.tasks.wait()).await.is_err() {
            tracing::warn!("requests in flight took longer than {STOP_PATIENCE:?} and are given up");
        }
    }
}
