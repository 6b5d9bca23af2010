//! The agent: it samples every CPU of this host with BPF, and exports OTLP profiles or records them for a file.
//!
//! # Promise
//! - Every sample that BPF took arrives at the endpoint, is counted as dropped with its reason, or waits in a bounded
//!   queue or a bounded spool on disk.
//! - The weight of a sample is never hidden. Where frames cannot be unwound or mapped, there is a marker frame such as
//!   `[unwinding failed]` or `[process exited]`.
//! - Native frames are exported as build ID and ELF address, without names, except for a few functions of runtimes and
//!   of stripped programs. Frames of the kernel, of Go, of language runtimes and of perf maps have names. Only
//!   recordings in pprof or folded stacks get names of native frames on this host, from a
//!   [`symbol_store::SymbolStore`].
//!
//! # Limits
//! The agent does not raise limits, mount anything, or need kprobes or tracefs. It never follows a path out of a
//! process's root. It keeps nothing on disk except requests that it could not send.
//!
//! # Memory
//! All memory is bounded: processes and their data, files, locations, perf maps, functions and scripts of language
//! runtimes, published contexts, the samples of one interval, the export queue, and a recording.
//!
//! # Read in this order
//! `config` and `status`, then `process`, `names`, `unwind`, `runtimes`, `sampling`, `export`. [`probe`] reports
//! missing requirements of a machine, and [`Status`] the state of the agent.

mod config;
mod export;
mod names;
mod process;
mod runtimes;
mod sampling;
mod status;
mod unwind;

use std::io;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

pub use config::{Compression, Config, ConfigError, FREQUENCY_HZ_MAX, RecordConfig, SpoolConfig, Token};
pub use export::recording::{NamedRecording, Recording, Unnamed, record};
pub use runtimes::survey::{RunningRuntime, survey};
pub use sampling::capability::{Finding, Missing, examine, probe};
pub use sampling::error::AgentError;
pub use sampling::sampler::SamplerError;
pub use status::{State, Status, StatusSnapshot};

use config::Sampling;
use export::queue::{ExportQueue, QUEUE_BYTES_MAX};
use export::sender::{SHUTDOWN_TIMEOUT, Sender};
use export::spool::Spool;
use export::writer::QueueWriter;
use sampling::sampler::Sampler;
use sampling::thread::{SamplerThread, check_machine, wait_for_end};
use status::causes;

/// Tests count the memory that a part of the agent takes.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: testkit::cost::CountingAllocator = testkit::cost::CountingAllocator;

/// Loads and attaches the BPF programs as [`run`] does, and detaches them. This finds faults that no list of
/// requirements shows. The programs that record waits are loaded only if `off_cpu` is true.
///
/// # Errors
/// The reason why sampling cannot start.
pub fn rehearse(off_cpu: bool) -> Result<(), AgentError> {
    let sampling = Sampling { period_ns: 1_000_000_000, off_cpu, java_parameters: false };
    let status = Status::new(&mut Registry::default());
    Sampler::start(sampling, runtimes::Runtimes::default(), status)
        .and_then(|mut sampler| sampler.detach())
        .map_err(AgentError::Sampler)
}

/// Samples and exports until `shutdown` is cancelled. Then exports the remaining samples, which takes at most five
/// seconds.
///
/// `status` shows the state, also after the end. An unreachable endpoint is not an error: the agent retries for ever.
///
/// # Errors
/// Any [`AgentError`]. The agent has ended then, as `status` shows. A restart helps only after the cause was removed.
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
    check_machine(status).await?;

    let spool = open_spool(spool_config, status).await.map_err(AgentError::Thread)?;
    let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
    // `stop` is also cancelled when this future is dropped, so that the sampler's thread ends.
    let stop = shutdown.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let sampling = config.sampling;
    let environment = Arc::clone(&config.environment);
    let sampler = SamplerThread::spawn(sampling, environment, &stop, status, QueueWriter::into(&queue));
    let sampler = sampler.map_err(AgentError::Thread)?;
    let sender = Sender::new(&config, spool, status.clone());
    let ((), result) = tokio::join!(sender.run(&queue, &stop), wait_for_end(sampler.ended, &stop, SHUTDOWN_TIMEOUT));
    result
}

/// Opens the spool, if one is configured. If the spool cannot be used, the agent samples without it.
async fn open_spool(config: Option<SpoolConfig>, status: &Status) -> io::Result<Option<Spool>> {
    let Some(config) = config else { return Ok(None) };
    let counters = status.clone();
    match tokio::task::spawn_blocking(move || Spool::open(&config, counters)).await? {
        Ok(spool) => Ok(Some(spool)),
        Err(error) => {
            status.count_spool_error();
            let reason = causes(&error);
            tracing::warn!(
                "the spool cannot be used; unsent profiles wait in memory and are lost if the agent dies: {reason}"
            );
            Ok(None)
        }
    }
}
