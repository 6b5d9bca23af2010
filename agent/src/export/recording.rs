//! Recordings: the samples of a period of time, as one OTLP request, as pprof or as folded stacks.
//!
//! Samples are collected in requests of five seconds each, as for sending, and merged as they arrive ([`merge`]). The
//! OTLP format needs nothing else. pprof and folded stacks need names, which a symbol store finds on this host
//! ([`names`], [`pprof`], [`folded`]).
//!
//! Invariants: every sample is in the recording once, or counted as dropped. A full recording ends, and keeps its
//! samples.

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
use crate::export::writer::QueueWriter;
use crate::sampling::error::AgentError;
use crate::sampling::thread::{SamplerThread, check_machine, wait_for_end};
use crate::status::{DropReason, State, Status, causes};

use merge::Merge;
pub use names::{NamedRecording, Unnamed};

/// Largest total size of the requests that wait to be merged, in bytes: that of the largest possible interval.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Approximate memory at which a recording is full, in bytes: a million distinct samples, or thirty million samples of
/// a few stacks.
const RECORDING_BYTES_MAX: usize = 256 << 20;

/// The samples of a period of time.
#[derive(Debug)]
pub struct Recording {
    request: ExportProfilesServiceRequest,
    started: SystemTime,
    duration: Duration,
    off_cpu: bool,
    is_full: bool,
    fault: Option<String>,
}

/// Samples this host for `duration`, until `stop` is cancelled, or until the recording is full. `status` counts the
/// samples.
///
/// # Errors
/// Any [`AgentError`] if nothing was recorded. If an error ends a recording that has samples, the error is in
/// [`Recording::fault`].
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
    let (sampling, environment) = config.check().map_err(AgentError::Config)?;
    check_machine(status).await?;
    let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
    // `stop` is also cancelled when this future is dropped, so that the sampler's thread ends.
    let stop = stop.child_token();
    let _stop_on_drop = stop.clone().drop_guard();
    let sampler = SamplerThread::spawn(sampling, environment, &stop, status, QueueWriter::into(&queue));
    let sampler = sampler.map_err(AgentError::Thread)?;
    let begin = async {
        // If sampling does not start, the wait ends with an error, and `ended` has the reason.
        let _never = sampler.started.await;
        let began = (SystemTime::now(), Instant::now());
        tokio::select! {
            () = tokio::time::sleep(duration) => stop.cancel(),
            () = stop.cancelled() => {}
        }
        began
    };
    let end = async {
        let result = wait_for_end(sampler.ended, &stop, SHUTDOWN_TIMEOUT).await;
        // A blocked thread may never close the queue.
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

/// Merges all requests until the queue is closed. When the recording is full, stops the sampler, and still merges its
/// last requests.
async fn merge_all(queue: &ExportQueue, stop: &CancellationToken, status: &Status) -> Merge {
    let mut merge = Merge::new(RECORDING_BYTES_MAX);
    while let Some(request) = queue.pop().await {
        match ExportProfilesServiceRequest::decode(request.bytes.clone()) {
            Ok(decoded) => merge.add(decoded),
            Err(error) => {
                tracing::error!("cannot decode a request of the agent: {error}");
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
    /// Encodes the recording as an `ExportProfilesServiceRequest`, which any OTLP receiver accepts. Native frames have
    /// no names.
    #[must_use]
    pub fn otlp(&self) -> Vec<u8> {
        self.request.encode_to_vec()
    }

    /// Names the recording with the symbols that `symbols` finds on this host. Blocks until all files are done or
    /// `stop` is cancelled. Frames without a name keep their address. `progress` is called with the number of files
    /// done and the number of files.
    pub fn named(
        &self,
        symbols: &SymbolStore,
        stop: &CancellationToken,
        progress: impl FnMut(usize, usize),
    ) -> NamedRecording<'_> {
        NamedRecording::new(self, symbols, stop, progress)
    }

    /// Returns the time for which samples were taken.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// True if the recording ended because it was full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the error that ended the recording early, if there was one.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns the number of samples, including those of waits.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let samples = self.profiles().flat_map(|(_, profile)| &profile.samples);
        samples.map(|sample| sample.timestamps_unix_nano.len() as u64).sum()
    }

    /// Returns the number of processes that were sampled.
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

    /// True for a profile of waits. Such a profile has no period.
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
