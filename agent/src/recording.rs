//! What is sampled in a while, for a file: as one OTLP request, as pprof or as folded stacks.
//!
//! Samples are collected as those that are sent, in requests of five seconds each, and merged as they come ([`merge`]). OTLP leaves as
//! it is; pprof and folded stacks need names, which a symbol store finds on this host ([`names`], [`pprof`], [`folded`]).
//!
//! Invariants: every sample is in the recording once or counted as dropped; a recording that is full ends, and keeps what it has.

mod folded;
mod merge;
mod names;
mod pprof;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::{AnyValue, any_value::Value};
use proto::otlp::profiles::v1development::{Profile, ResourceProfiles};
use symbol_store::SymbolStore;
use tokio_util::sync::CancellationToken;

use crate::config::RecordConfig;
use crate::export::queue::ExportQueue;
use crate::export::sender::SHUTDOWN_TIMEOUT;
use crate::status::{DropReason, State, Status};
use crate::{AgentError, causes, end_of, look_at_machine, spawn_sampler};

use merge::Merge;
pub use names::{NamedRecording, Unnamed};

/// Bytes of requests that wait to be merged: those of one interval, at once, as large as it may become.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// A recording that takes about so much memory is full: a million samples that are all different, or thirty million of a few stacks.
const RECORDING_BYTES_MAX: usize = 256 << 20;

/// What was sampled in a while.
#[derive(Debug)]
pub struct Recording {
    request: ExportProfilesServiceRequest,
    started: SystemTime,
    duration: Duration,
    off_cpu: bool,
    is_full: bool,
    fault: Option<String>,
}

/// Samples this host for so long, or until `stop` is cancelled, or until the recording is full. `status` counts the samples meanwhile.
///
/// # Errors
/// Any [`AgentError`]: nothing is recorded. What ends a recording that has something already is its [`Recording::fault`].
pub async fn record(
    config: &RecordConfig,
    duration: Duration,
    stop: &CancellationToken,
    status: &Status,
) -> Result<Recording, AgentError> {
    let result = record_checked(config, duration, stop, status).await;
    match &result {
        Ok(_) => status.set(State::Off, "stopped"),
        Err(error) => status.set(State::Failed, causes(error)),
    }
    result
}

async fn record_checked(
    config: &RecordConfig,
    duration: Duration,
    stop: &CancellationToken,
    status: &Status,
) -> Result<Recording, AgentError> {
    let sampled = config.check().map_err(AgentError::Config)?;
    look_at_machine(status).await?;
    let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
    // Also cancelled when this future is dropped, so that no thread is left behind.
    let stop = stop.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let sampler = spawn_sampler(sampled, &queue, &stop, status).map_err(AgentError::Thread)?;
    let begin = async {
        // The thread of one that does not start ends, and tells why itself.
        let _never = sampler.started.await;
        let began = (SystemTime::now(), Instant::now());
        tokio::select! {
            () = tokio::time::sleep(duration) => stop.cancel(),
            () = stop.cancelled() => {}
        }
        began
    };
    let end = async {
        let result = end_of(sampler.ended, &stop, SHUTDOWN_TIMEOUT).await;
        // A thread that is held up may never do it.
        queue.close();
        (result, Instant::now())
    };
    let (merge, (started, began), (result, ended)) = tokio::join!(merge_all(&queue, &stop, status), begin, end);
    let fault = match result {
        Err(error) if merge.is_empty() => return Err(error),
        result => result.err().map(|error| causes(&error)),
    };
    let is_full = merge.is_full();
    Ok(Recording {
        request: merge.finish(),
        started,
        duration: ended.saturating_duration_since(began),
        off_cpu: config.off_cpu,
        is_full,
        fault,
    })
}

/// Everything that comes until the queue is closed; one that is full stops the sampler, and takes what it still hands on.
async fn merge_all(queue: &ExportQueue, stop: &CancellationToken, status: &Status) -> Merge {
    let mut merge = Merge::new(RECORDING_BYTES_MAX);
    while let Some(request) = queue.pop().await {
        match ExportProfilesServiceRequest::decode(request.bytes.clone()) {
            Ok(decoded) => merge.add(decoded),
            Err(error) => {
                tracing::error!("a request of our own cannot be read: {error}");
                status.count_dropped(DropReason::MalformedRecord, request.samples());
            }
        }
        if merge.is_full() {
            stop.cancel();
        }
    }
    merge
}

impl Recording {
    /// An `ExportProfilesServiceRequest` with all that was recorded, which any OTLP receiver takes: without names of native frames.
    #[must_use]
    pub fn otlp(&self) -> Vec<u8> {
        self.request.encode_to_vec()
    }

    /// The recording with the names that `symbols` finds on this host. Blocks, until `stop` is cancelled: what is not named by then keeps
    /// its address. `progress` is told how many files there are, and how many are done.
    pub fn named(
        &self,
        symbols: &SymbolStore,
        stop: &CancellationToken,
        progress: impl FnMut(usize, usize),
    ) -> NamedRecording<'_> {
        NamedRecording::new(self, symbols, stop, progress)
    }

    /// How long was sampled.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// Whether it ended because it was full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// What ended it early, if anything went wrong.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// How many samples it has, those of waits included.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let samples = self.profiles().flat_map(|(_, profile)| &profile.samples);
        samples.map(|sample| sample.timestamps_unix_nano.len() as u64).sum()
    }

    /// Of how many processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        let pid = |profiles: &ResourceProfiles| {
            let mut attributes = profiles.resource.as_ref()?.attributes.iter();
            attributes.find(|attribute| attribute.key == "process.pid").and_then(|it| number(it.value.as_ref()))
        };
        self.request.resource_profiles.iter().filter_map(pid).collect::<HashSet<_>>().len()
    }

    fn profiles(&self) -> impl Iterator<Item = (&ResourceProfiles, &Profile)> {
        self.request.resource_profiles.iter().flat_map(|of_resource| {
            let profiles = of_resource.scope_profiles.iter().flat_map(|scope| &scope.profiles);
            profiles.map(move |profile| (of_resource, profile))
        })
    }

    /// Whether the values of this profile are waits and not CPU time, which has none.
    fn is_of_waits(profile: &Profile) -> bool {
        profile.period == 0
    }
}

fn text(value: Option<&AnyValue>) -> Option<&str> {
    match value?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn number(value: Option<&AnyValue>) -> Option<i64> {
    match value?.value.as_ref()? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
