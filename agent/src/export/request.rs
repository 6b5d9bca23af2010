//! Conversion of the samples of one interval to OTLP export requests.
//!
//! Each process has a profile of CPU samples and a profile of waits. A CPU sample has only a time. A wait also has a
//! duration.
//!
//! Invariants:
//! - A request is smaller than [`REQUEST_BYTES_MAX`].
//! - Within a profile, each sample identity occurs once.
//! - Every time lies in `[time_unix_nano, time_unix_nano + duration_nano)`.
//! - Every sample of the interval is in exactly one request.

use ebpf::{KERNEL_FRAMES_MAX, USER_FRAMES_MAX};
use prost::Message as _;
use prost::bytes::Bytes;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use proto::otlp::profiles::v1development::{Profile, ResourceProfiles, Sample, ScopeProfiles};
use proto::otlp::resource::v1::Resource as OtlpResource;

use crate::export::dictionary::{AttributeValue, DictionaryBuilder, INDEX_BYTES, LINK_BYTES, LOCATION_BYTES};
use crate::names::location::{LINES_BYTES_MAX, LocationTable, NAME_BYTES_MAX};
use crate::process::file::FILE_NAME_BYTES_MAX;
use crate::process::file::table::FileTable;
use crate::process::resource::{self, Resource};
use crate::sampling::aggregate::{Aggregate, Identity};
use crate::sampling::interval::Interval;
use crate::sampling::label;

/// Largest request, encoded and not compressed, in bytes: the default limit of gRPC servers.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Length at which a request is finished, in bytes. The sample that reaches it is included.
const REQUEST_BYTES_FULL: usize = 3 << 19;
/// Largest number of bytes that one sample adds to a request: the deepest stack, of locations that all have long names
/// and are all new to the request.
const SAMPLE_BYTES_MAX: usize = (KERNEL_FRAMES_MAX + USER_FRAMES_MAX)
    * (LOCATION_BYTES + max(FILE_NAME_BYTES_MAX, max(NAME_BYTES_MAX, LINES_BYTES_MAX)));
/// Largest number of bytes that a new profile adds, without the stack and the labels of its first sample. It has room
/// for all attributes that a process can set, and for the times of five seconds.
const PROFILE_BYTES_MAX: usize = 128 << 10;
const _: () = assert!(
    REQUEST_BYTES_FULL + SAMPLE_BYTES_MAX + LABELS_BYTES_MAX + LINK_BYTES + PROFILE_BYTES_MAX <= REQUEST_BYTES_MAX
);
/// Largest number of bytes that a profile and its resource take in fields of fixed size.
const PROFILE_BYTES: usize = 128;
/// Largest number of bytes that the labels of a sample add, if all are long and new to the request.
const LABELS_BYTES_MAX: usize = 2 << 10;
/// Largest number of bytes of a sample without its times and labels: three attributes, a stack, a link, tags and
/// lengths.
const SAMPLE_BYTES: usize = 40 + INDEX_BYTES;
/// Largest number of bytes of an encoded value below 2^63.
const VALUE_BYTES: usize = 9;
/// Largest number of waits that one profile has for one sample identity.
const WAITS_MAX: usize = 2048;

/// A request, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct EncodedRequest {
    pub(crate) bytes: Bytes,
    /// Number of samples of each profile, in ascending order.
    pub(crate) profile_samples: Box<[u64]>,
}

impl EncodedRequest {
    /// Returns the number of samples.
    pub(crate) fn samples(&self) -> u64 {
        self.profile_samples.iter().sum()
    }

    /// Returns the smallest number of samples that any `profiles` profiles of the request have together.
    pub(crate) fn samples_of(&self, profiles: u64) -> u64 {
        let profiles = usize::try_from(profiles).unwrap_or(usize::MAX);
        self.profile_samples.iter().take(profiles).sum()
    }
}

/// Builds the requests of an interval. Removes the samples from `aggregate`.
pub(crate) fn encode(
    aggregate: &mut Aggregate,
    interval: &Interval,
    files: &FileTable,
    locations: &LocationTable,
) -> Vec<EncodedRequest> {
    let samples = aggregate.take_sorted();
    let waits = aggregate.take_sorted_waits();
    let samples = samples.chunk_by(|(a, _), (b, _)| a == b).map(|samples| {
        let times = samples.iter().map(|(_, ktime_ns)| interval.clock.unix_ns(*ktime_ns)).collect();
        Sampled { identity: samples[0].0, kind: ProfileKind::Cpu, times, values: Vec::new() }
    });
    // The waits of one identity are split, so that each part fits a request together with all else.
    let alike = waits.chunk_by(|(a, ..), (b, ..)| a == b).flat_map(|waits| waits.chunks(WAITS_MAX));
    let waits = alike.map(|waits| {
        let times = waits.iter().map(|(_, ktime_ns, _)| interval.clock.unix_ns(*ktime_ns)).collect();
        let values = waits.iter().map(|(_, _, waited_ns)| i64::try_from(*waited_ns).unwrap_or(i64::MAX)).collect();
        Sampled { identity: waits[0].0, kind: ProfileKind::OffCpu, times, values }
    });
    let mut requests = Vec::new();
    let mut builder = RequestBuilder::new(files, locations, aggregate, interval);
    for sampled in samples.chain(waits) {
        if REQUEST_BYTES_FULL <= builder.bytes() {
            requests.push(builder.finish());
            builder = RequestBuilder::new(files, locations, aggregate, interval);
        }
        builder.add(sampled);
    }
    if builder.kind.is_some() {
        requests.push(builder.finish());
    }
    requests
}

/// Kind of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProfileKind {
    Cpu,
    OffCpu,
}

/// All samples that have one identity and one kind.
struct Sampled {
    identity: Identity,
    kind: ProfileKind,
    times: Vec<u64>,
    /// Values of the samples, one per time; empty if each value is 1.
    values: Vec<i64>,
}

const fn max(a: usize, b: usize) -> usize {
    if a < b { b } else { a }
}

struct RequestBuilder<'a> {
    dictionary: DictionaryBuilder<'a>,
    aggregate: &'a Aggregate,
    interval: &'a Interval,
    profiles: Vec<ResourceProfiles>,
    /// Index of the resource of the last profile.
    resource: u32,
    /// Kind of the last profile.
    kind: Option<ProfileKind>,
    /// Identity of the last sample of the last profile.
    identity: Option<Identity>,
    bytes: usize,
    profile_samples: Vec<u64>,
}

impl<'a> RequestBuilder<'a> {
    fn new(
        files: &'a FileTable,
        locations: &'a LocationTable,
        aggregate: &'a Aggregate,
        interval: &'a Interval,
    ) -> Self {
        let dictionary = DictionaryBuilder::new(files, locations);
        Self {
            dictionary,
            aggregate,
            interval,
            profiles: Vec::new(),
            resource: 0,
            kind: None,
            identity: None,
            bytes: 0,
            profile_samples: Vec::new(),
        }
    }

    /// Returns an upper bound of the encoded length of the request, in bytes.
    fn bytes(&self) -> usize {
        self.bytes + self.dictionary.bytes()
    }

    /// Adds samples. Calls must be sorted by kind and identity, and so by resource. A call with the same identity and
    /// kind as the call before begins another profile.
    fn add(&mut self, sampled: Sampled) {
        let Sampled { identity, kind, times, values } = sampled;
        if (self.kind, self.resource) != (Some(kind), identity.resource) || self.identity == Some(identity) {
            let Some(resource) = self.aggregate.resource_at(identity.resource) else { return };
            (self.kind, self.resource) = (Some(kind), identity.resource);
            self.start_profile(resource, kind);
        }
        self.identity = Some(identity);
        self.bytes += SAMPLE_BYTES + size_of::<u64>() * times.len() + VALUE_BYTES * values.len();
        if let Some(count) = self.profile_samples.last_mut() {
            *count += times.len() as u64;
        }
        let sample = Sample {
            stack_index: self.dictionary.stack(identity.stack, self.aggregate),
            attribute_indices: self.sample_attributes(&identity),
            link_index: self.aggregate.link(identity.link).map_or(0, |link| self.dictionary.link(link)),
            timestamps_unix_nano: times,
            values,
        };
        let profile =
            self.profiles.last_mut().and_then(|profiles| profiles.scope_profiles.last_mut()?.profiles.last_mut());
        if let Some(profile) = profile {
            cover(profile, &sample.timestamps_unix_nano);
            profile.samples.push(sample);
        }
    }

    fn sample_attributes(&mut self, identity: &Identity) -> Vec<i32> {
        let name = resource::text(&identity.comm);
        let mut attributes = vec![
            self.dictionary.attribute(label::THREAD_NAME, AttributeValue::Text(name)),
            self.dictionary.attribute(label::THREAD_ID, AttributeValue::Number(identity.tid.into())),
            self.dictionary.attribute(label::CPU, AttributeValue::Number(identity.cpu.into())),
        ];
        let labels = self.aggregate.labels(identity.labels);
        self.bytes += INDEX_BYTES * labels.len();
        let texts = labels.iter().map(|(name, value)| (name, AttributeValue::Text(value.as_ref().to_owned())));
        attributes.extend(texts.map(|(name, value)| self.dictionary.attribute(name, value)));
        attributes
    }

    fn start_profile(&mut self, resource: &Resource, kind: ProfileKind) {
        let Interval { start_ktime_ns, end_ktime_ns, clock, period_ns, host_name } = self.interval;
        let time_unix_nano = clock.unix_ns(*start_ktime_ns);
        let (sample_type, period_type, period) = match kind {
            ProfileKind::Cpu => (("samples", "count"), ("cpu", "nanoseconds"), *period_ns),
            // Waits have no period.
            ProfileKind::OffCpu => (("off_cpu", "nanoseconds"), ("", ""), 0),
        };
        let profile = Profile {
            sample_type: Some(self.dictionary.value_type(sample_type.0, sample_type.1)),
            period_type: Some(self.dictionary.value_type(period_type.0, period_type.1)),
            period,
            time_unix_nano,
            duration_nano: clock.unix_ns(*end_ktime_ns).saturating_sub(time_unix_nano),
            ..Profile::default()
        };
        let scope = InstrumentationScope {
            name: "varve-agent".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let attributes = resource_attributes(resource, host_name);
        self.bytes += PROFILE_BYTES + attributes.iter().map(|attribute| 6 + attribute.encoded_len()).sum::<usize>();
        self.profile_samples.push(0);
        self.profiles.push(ResourceProfiles {
            resource: Some(OtlpResource { attributes, ..OtlpResource::default() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        });
    }

    fn finish(mut self) -> EncodedRequest {
        self.profile_samples.sort_unstable();
        let request = ExportProfilesServiceRequest {
            resource_profiles: self.profiles,
            dictionary: Some(self.dictionary.finish()),
        };
        EncodedRequest { bytes: request.encode_to_vec().into(), profile_samples: self.profile_samples.into() }
    }
}

/// Extends the time range of the profile so that it covers `times`. A sample is taken shortly before it can be read, so
/// its time may be before the interval.
fn cover(profile: &mut Profile, times: &[u64]) {
    for &time in times {
        let start = profile.time_unix_nano.min(time);
        let end = (profile.time_unix_nano + profile.duration_nano).max(time + 1);
        (profile.time_unix_nano, profile.duration_nano) = (start, end - start);
    }
}

fn resource_attributes(resource: &Resource, host_name: &str) -> Vec<KeyValue> {
    let attribute = |key: &str, value| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    let mut attributes = vec![attribute("process.pid", Value::IntValue(resource.pid.into()))];
    if !host_name.is_empty() {
        attributes.push(attribute("host.name", Value::StringValue(host_name.to_owned())));
    }
    attributes.extend(resource.attributes.iter().map(|(key, value)| attribute(key, Value::StringValue(value.clone()))));
    attributes
}

#[cfg(test)]
mod tests;
