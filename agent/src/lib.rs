//! The user-space half of the profiler: samples every CPU of this host with BPF and exports OTLP profiles, or records them for a file.
//!
//! # Promise
//! Every sample that BPF took arrives at the endpoint, is counted as dropped with its reason, or waits in a bounded queue or a
//! bounded spool on disk. The weight of a sample is never hidden: what cannot be unwound or mapped stands under a frame that says so, such as
//! `[unwinding failed]` or `[process exited]`. Native frames leave as build ID and ELF address, never as names; Go's with both. Only a
//! recording that is written as pprof or folded stacks is named here, by a [`symbol_store::SymbolStore`].
//! # Does not
//! Raise limits, mount anything, need kprobes or tracefs, follow a path out of a process's root, or keep anything on disk but what it
//! could not send.
//! # Memory
//! Bounded everywhere: processes and what each makes us keep, files, locations, perf maps, one interval's samples, the export queue, a
//! recording.
//! # Read in this order
//! `collect` (the thread) → `sampler` → `off_cpu` → `aggregate` → `locator` → `process`, `kernel`, `jit` → `maps`, `file`, `go`,
//! `kallsyms`, `perf_map` → `export` → `recording`. [`probe`] says what a machine lacks, [`Status`] how the agent is doing.

mod aggregate;
mod capability;
mod cgroup;
mod clock;
mod collect;
mod config;
#[cfg(test)]
#[path = "../tests/support/conformance.rs"]
mod conformance;
mod environ;
mod export;
mod file;
mod go;
mod jit;
mod kallsyms;
mod kernel;
mod label;
mod location;
mod locator;
mod maps;
mod off_cpu;
mod pace;
mod perf_map;
mod process;
mod procfs;
mod recording;
#[cfg(test)]
#[path = "../tests/support/report.rs"]
mod report;
mod resource;
mod sampler;
mod status;
mod sys;
#[cfg(test)]
mod test_record;
mod unwind;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use capability::{Finding, Missing, examine, probe};
pub use config::{Compression, Config, ConfigError, FREQUENCY_HZ_MAX, RecordConfig, SpoolConfig, Token};
pub use recording::{NamedRecording, Recording, Unnamed, record};
pub use sampler::SamplerError;
pub use status::{State, Status, StatusSnapshot};

use collect::Collector;
use config::Sampling;
use export::queue::{ExportQueue, QUEUE_BYTES_MAX};
use export::sender::{SHUTDOWN_TIMEOUT, Sender};
use export::spool::Spool;

/// Why the agent ended, or never began. The text of each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(ConfigError),
    /// The machine lacks something.
    #[error("this machine lacks what sampling needs: {}", list(.0))]
    Missing(Vec<Missing>),
    /// Sampling failed.
    #[error(transparent)]
    Sampler(SamplerError),
    /// The sampler's thread could not be started, is gone, or did not end in time.
    #[error("the sampler's thread cannot run")]
    Thread(#[source] io::Error),
}

fn list(missing: &[Missing]) -> String {
    let texts: Vec<_> = missing.iter().map(Missing::to_string).collect();
    texts.join("; ")
}

/// Loads and attaches the programs, as [`run`] does, and takes them away again: what no list of requirements tells. Those that record waits
/// only with `off_cpu`.
///
/// # Errors
/// Why sampling cannot start.
pub fn rehearse(off_cpu: bool) -> Result<(), AgentError> {
    let sampling = Sampling { period_ns: 1_000_000_000, off_cpu };
    let status = Status::new(&mut Registry::default());
    sampler::Sampler::start(sampling, status).and_then(|mut sampler| sampler.detach()).map_err(AgentError::Sampler)
}

/// Samples and exports until `shutdown` is cancelled; then exports what is left, for five seconds at most, and returns.
///
/// `status` shows how it goes, also after the end. An endpoint that cannot be reached is no error: it is tried for ever.
///
/// # Errors
/// Any [`AgentError`]: the agent has ended, and `status` says so; trying again helps only if something changed.
pub async fn run(config: Config, shutdown: CancellationToken, status: Status) -> Result<(), AgentError> {
    let result = run_checked(&config, &shutdown, &status).await;
    match &result {
        Ok(()) => status.set(State::Off, "stopped"),
        Err(error) => status.set(State::Failed, causes(error)),
    }
    result
}

async fn run_checked(config: &Config, shutdown: &CancellationToken, status: &Status) -> Result<(), AgentError> {
    let spool_config = config.spool.clone();
    let config = config.check().map_err(AgentError::Config)?;
    look_at_machine(status).await?;

    let spool = open_spool(spool_config, status).await.map_err(AgentError::Thread)?;
    let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
    // Also cancelled when this future is dropped, so that no thread is left behind.
    let stop = shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let sampled = (config.sampling, Arc::clone(&config.environment));
    let sampler = spawn_sampler(sampled, &queue, &stop, status).map_err(AgentError::Thread)?;
    let sender = Sender::new(&config, spool, status.clone());
    let ((), result) = tokio::join!(sender.run(&queue, &stop), end_of(sampler.ended, &stop, SHUTDOWN_TIMEOUT));
    result
}

/// Finds out what the machine lacks; the error is that it lacks what sampling cannot do without.
async fn look_at_machine(status: &Status) -> Result<(), AgentError> {
    let missing = tokio::task::spawn_blocking(probe).await.map_err(|error| AgentError::Thread(error.into()))?;
    status.set_missing(missing.iter().map(Missing::to_string).collect());
    let (required, optional): (Vec<_>, Vec<_>) = missing.into_iter().partition(|missing| missing.is_required);
    for missing in &optional {
        tracing::warn!("the agent does without {missing}");
    }
    if required.is_empty() { Ok(()) } else { Err(AgentError::Missing(required)) }
}

/// The spool, where one is wanted and can be used. Without it the agent samples all the same.
async fn open_spool(config: Option<SpoolConfig>, status: &Status) -> io::Result<Option<Spool>> {
    let Some(config) = config else { return Ok(None) };
    let counted = status.clone();
    match tokio::task::spawn_blocking(move || Spool::open(&config, counted)).await? {
        Ok(spool) => Ok(Some(spool)),
        Err(error) => {
            status.count_spool_error();
            let reason = causes(&error);
            tracing::warn!("what cannot be sent waits in memory only, and is lost if the agent is killed: {reason}");
            Ok(None)
        }
    }
}

/// How the sampler's thread ended; once `stop` is cancelled, it has no more than `timeout`. It may be held up by whatever it looks at,
/// and what it still exports then is counted by the queue.
async fn end_of(
    sampler: oneshot::Receiver<Result<(), SamplerError>>,
    stop: &CancellationToken,
    timeout: Duration,
) -> Result<(), AgentError> {
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(timeout).await;
    };
    tokio::select! {
        result = sampler => match result {
            Ok(result) => result.map_err(AgentError::Sampler),
            Err(_gone) => Err(AgentError::Thread(io::Error::other("it ended without a word"))),
        },
        () = too_late => Err(AgentError::Thread(io::Error::new(io::ErrorKind::TimedOut, "it did not end in time"))),
    }
}

/// A sampler's thread.
struct SamplerThread {
    /// Told when every CPU is sampled; gone where that could not be.
    started: oneshot::Receiver<()>,
    /// How it ended.
    ended: oneshot::Receiver<Result<(), SamplerError>>,
}

/// Starts the sampler's thread. When it ends, for whatever reason, whoever empties the queue takes what is left, and ends too.
fn spawn_sampler(
    (sampling, environment): (Sampling, Arc<[String]>),
    queue: &Arc<ExportQueue>,
    stop: &CancellationToken,
    status: &Status,
) -> io::Result<SamplerThread> {
    let (queue, stop, status) = (Arc::clone(queue), stop.clone(), status.clone());
    let (has_started, started) = oneshot::channel();
    let (has_ended, ended) = oneshot::channel();
    std::thread::Builder::new().name("varve-sampler".to_owned()).spawn(move || {
        let ending = EndSending { queue: Arc::clone(&queue), stop: stop.clone() };
        let result = Collector::start(sampling, environment, queue, status.clone()).and_then(|collector| {
            status.sampler_is_awake(sys::clock_ns(sys::Clock::Monotonic));
            status.set(State::Running, "");
            tracing::info!(sampling.period_ns, sampling.off_cpu, "sampling every CPU");
            // Only a recording asks.
            let _unheard = has_started.send(());
            collector.run(&stop)
        });
        drop(ending);
        // The receiver is gone only where nobody asks any more.
        let _unheard = has_ended.send(result);
    })?;
    Ok(SamplerThread { started, ended })
}

/// Lets the sender end on drop.
struct EndSending {
    queue: Arc<ExportQueue>,
    stop: CancellationToken,
}

impl Drop for EndSending {
    fn drop(&mut self) {
        self.queue.close();
        self.stop.cancel();
    }
}

/// What an error says, and what its causes say.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // An error that shows its cause in its own text need not be followed by it.
        if !text.ends_with(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_does_not_end_is_not_waited_for() {
        let (ended, end) = oneshot::channel();
        let stop = CancellationToken::new();
        let waiting = end_of(end, &stop, Duration::from_millis(50));
        tokio::pin!(waiting);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(),
            "nobody asked it to end"
        );
        stop.cancel();
        let error = tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap_err();
        assert_eq!(causes(&error), "the sampler's thread cannot run: it did not end in time");
        drop(ended);
    }

    #[tokio::test]
    async fn the_end_of_the_thread_is_the_answer() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (ended, end) = oneshot::channel();
        ended.send(Ok(())).unwrap();
        assert!(end_of(end, &stop, Duration::from_secs(5)).await.is_ok());
        let (gone, end) = oneshot::channel();
        drop(gone);
        assert!(end_of(end, &stop, Duration::from_secs(5)).await.is_err());
    }
}
