//! Receives the requests of the agent, and keeps them in memory. The samples are counted only after the measurement, so
//! that counting does not disturb it.

use std::ops::Range;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use proto::otlp::profiles::v1development::{ProfilesDictionary, Sample};
use testkit::sink::ANY_PORT;
use tokio::runtime::Runtime;

/// An OTLP server that keeps all received requests in memory.
pub(crate) struct Sink {
    runtime: Runtime,
    requests: testkit::sink::Sink,
    pub(crate) endpoint: String,
}

/// Numbers of samples of several kinds in a span of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Number of samples of CPU time.
    pub(crate) samples: u64,
    /// Number of samples of CPU time whose stacks have frames of a process.
    pub(crate) user: u64,
    /// Number of those `user` samples whose stacks are complete.
    pub(crate) whole: u64,
    /// Number of samples of waiting time.
    pub(crate) waits: u64,
}

impl Sink {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let requests = testkit::sink::Sink::default();
        let endpoint = format!("http://{}", runtime.block_on(requests.listen(ANY_PORT)));
        Ok(Self { runtime, requests, endpoint })
    }

    /// Returns the time at which the first request arrived; `None` if no request has arrived.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.requests.first_arrival()
    }

    /// Counts the samples whose times are in `span`, which is in nanoseconds since 1970.
    pub(crate) fn count(self, span: &Range<u64>) -> anyhow::Result<Counts> {
        self.runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        let mut counts = Counts::default();
        for request in &self.requests.take_requests() {
            let dictionary = request.dictionary.as_ref().context("a request without a dictionary")?;
            let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
            for sample in scopes.flat_map(|scope| &scope.profiles).flat_map(|profile| &profile.samples) {
                let times = sample.timestamps_unix_nano.iter().filter(|time| span.contains(time)).count() as u64;
                if !sample.values.is_empty() {
                    counts.waits += times;
                    continue;
                }
                counts.samples += times;
                let (is_user, is_whole) = kind(dictionary, sample)?;
                counts.user += if is_user { times } else { 0 };
                counts.whole += if is_user && is_whole { times } else { 0 };
            }
        }
        ensure!(0 < counts.samples, "the agent sent no samples of the time in which it was measured");
        Ok(counts)
    }
}

/// Returns two properties of a sample's stack. The first is true if the stack has frames of a process. The second is
/// true if the stack is complete, which means that it has no marker frame in brackets.
fn kind(dictionary: &ProfilesDictionary, sample: &Sample) -> anyhow::Result<(bool, bool)> {
    let at = |index: i32| usize::try_from(index).unwrap_or(usize::MAX);
    let text = |index: i32| dictionary.string_table.get(at(index)).map_or("", String::as_str);
    let stack = dictionary.stack_table.get(at(sample.stack_index)).context("a sample without a stack")?;
    let mut is_user = false;
    let mut is_whole = true;
    for location in &stack.location_indices {
        let location = dictionary.location_table.get(at(*location)).context("a stack without its locations")?;
        let attributes =
            location.attribute_indices.iter().filter_map(|index| dictionary.attribute_table.get(at(*index)));
        let mut values = attributes.filter_map(|attribute| attribute.value.as_ref()?.value.as_ref());
        let kernel = proto::otlp::common::v1::any_value::Value::StringValue("kernel".to_owned());
        is_user |= !values.any(|value| *value == kernel);
        let functions = location.lines.iter().filter_map(|line| dictionary.function_table.get(at(line.function_index)));
        is_whole &= !functions.map(|function| text(function.name_strindex)).any(|name| name.starts_with('['));
    }
    Ok((is_user, is_whole))
}
