//! All requests of a measurement. They are encoded before the first is sent, so that encoding takes no CPU time during
//! the measurement.

use std::collections::HashSet;

use prost::Message as _;
use serde_json::{Value, json};

use super::batch::BatchBuilder;
use super::corpus::Corpus;
use super::fleet::{Days, Fleet, HostSamples, Plan};
use super::mix::{HOST_PODS, HOST_REQUESTS, Mix, REQUEST_SAMPLES, WORKLOAD_NS};
use super::request;
use super::wide::{self, WIDE_NS};

const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// Requests of one ingest, in the order of sending.
#[derive(Debug)]
pub(crate) struct Workload {
    seed: u64,
    /// Encoded requests, not compressed, as in the measurements of other databases.
    pub(crate) requests: Vec<Vec<u8>>,
    /// Number of samples in all requests together.
    pub(crate) samples: u64,
    /// Start of the time that the samples cover: the times of all samples are in `(start_ns, end_ns]`.
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// Number of distinct stacks in the requests.
    unique_stacks: usize,
    pub(crate) pods: usize,
    /// Number of services.
    pub(crate) services: usize,
    /// Name of one of the services in the workload.
    pub(crate) service: String,
    encoded_bytes: usize,
    corpus: Value,
}

impl Workload {
    /// Builds requests with at least `samples` samples, over the 15 minutes before `end_ns`.
    ///
    /// If 15 minutes of the mix have more samples, the requests cover a shorter time. If they have fewer, there are
    /// more hosts.
    ///
    /// # Errors
    /// The corpora cannot be read.
    pub(crate) fn new(mix: Mix, seed: u64, samples: u64, end_ns: u64) -> anyhow::Result<Self> {
        let corpus = Corpus::load(mix)?;
        let count = samples.div_ceil(REQUEST_SAMPLES as u64) as usize;
        let start_ns = end_ns - WORKLOAD_NS;
        let mut seen = HashSet::new();
        let mut hosts = HashSet::new();
        let builder = BatchBuilder::new(&corpus);
        let requests: Vec<Vec<u8>> = intervals(&corpus, seed, start_ns)
            .take(count)
            .map(|host| {
                hosts.insert(host.host);
                let drawn = host.pods.iter().flat_map(|pod| pod.samples.iter().map(|drawn| (pod.service, drawn.stack)));
                seen.extend(drawn);
                request::build(&builder.build(&host), &host).encode_to_vec()
            })
            .collect();
        Ok(Self {
            seed,
            samples: (count * REQUEST_SAMPLES) as u64,
            start_ns,
            end_ns,
            unique_stacks: seen.len(),
            pods: hosts.len() * HOST_PODS,
            services: corpus.services.len(),
            service: corpus.services[0].name.clone(),
            encoded_bytes: requests.iter().map(Vec::len).sum(),
            corpus: corpus.describe(),
            requests,
        })
    }

    /// Builds the requests of the wide fleet with this number of pods, over the minute before `end_ns`.
    ///
    /// # Errors
    /// The corpora cannot be read.
    pub(crate) fn wide(pods: usize, seed: u64, end_ns: u64) -> anyhow::Result<Self> {
        let corpus = Corpus::load(Mix::L)?;
        let start_ns = end_ns - WIDE_NS;
        let builder = BatchBuilder::new(&corpus);
        let mut seen = HashSet::new();
        let mut samples = 0;
        let mut service = None;
        let mut requests = Vec::new();
        for host in wide::requests(&corpus, seed, pods, start_ns) {
            seen.extend(host.pods.iter().flat_map(|pod| pod.samples.iter().map(|drawn| (pod.service, drawn.stack))));
            let batch = builder.build(&host);
            samples += batch.series.iter().map(|series| series.samples.len() as u64).sum::<u64>();
            let name = batch.series.first().and_then(|series| series.labels.as_ref());
            service = service.or_else(|| name.map(|labels| labels.get("service_name").to_owned()));
            requests.push(request::build(&batch, &host).encode_to_vec());
        }
        Ok(Self {
            seed,
            samples,
            start_ns,
            end_ns,
            unique_stacks: seen.len(),
            pods,
            services: wide::services(pods),
            service: service.unwrap_or_default(),
            encoded_bytes: requests.iter().map(Vec::len).sum(),
            corpus: corpus.describe(),
            requests,
        })
    }

    /// Describes the parameters of the workload for the report.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "corpus": self.corpus,
            "seed": self.seed,
            "requests": self.requests.len(),
            "samples": self.samples,
            "unique_stacks": self.unique_stacks,
            "pods": self.pods,
            "services": self.services,
            "encoded_bytes_per_sample": crate::report::rounded(self.encoded_bytes as f64 / self.samples as f64),
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
        })
    }
}

/// Returns the samples of each host and interval. First come all intervals of the mix's hosts, ordered by time, and
/// then those of further hosts.
fn intervals(corpus: &Corpus, seed: u64, start_ns: u64) -> impl Iterator<Item = HostSamples> {
    let pods = corpus.mix.pods();
    (0..).flat_map(move |round| {
        let first_pod = round * pods;
        Fleet::new(
            corpus,
            Plan { seed, first_pod, pods, start_ns, intervals: HOST_REQUESTS as u64, every: 1, days: Days::Full },
        )
    })
}

/// Returns the end of the last full hour in UTC. The 15 minutes before that are always in one partition.
pub(crate) fn last_full_hour_ns() -> u64 {
    let now_ns = jiff::Timestamp::now().as_nanosecond().max(0) as u64;
    now_ns - now_ns % HOUR_NS
}

#[cfg(test)]
mod tests {
    use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
    use proto::{Address, Batch, Location};

    use super::*;

    const END_NS: u64 = 1_767_225_600_000_000_000;

    /// Time, thread and frames of a sample, for comparisons.
    type Told = (u64, String, String);

    /// Reads a request as a receiver does.
    fn told(request: &ExportProfilesServiceRequest) -> Vec<Told> {
        let tables = request.dictionary.as_ref().unwrap();
        let frame = |&index: &i32| {
            let location = &tables.location_table[index as usize];
            let mapping = &tables.mapping_table[location.mapping_index as usize];
            let name = location.lines.first().map_or(String::new(), |line| {
                let function = &tables.function_table[line.function_index as usize];
                format!("{}:{}", tables.string_table[function.name_strindex as usize], line.line)
            });
            format!("{} {:x} {name}", tables.string_table[mapping.filename_strindex as usize], location.address)
        };
        let mut told = Vec::new();
        for resource in &request.resource_profiles {
            for sample in &resource.scope_profiles[0].profiles[0].samples {
                let frames: Vec<String> =
                    tables.stack_table[sample.stack_index as usize].location_indices.iter().map(frame).collect();
                let thread = sample.attribute_indices.iter().map(|&index| &tables.attribute_table[index as usize]);
                let thread: Vec<String> = thread
                    .map(|entry| match entry.value.as_ref().unwrap().value.as_ref().unwrap() {
                        proto::otlp::common::v1::any_value::Value::StringValue(text) => text.clone(),
                        proto::otlp::common::v1::any_value::Value::IntValue(number) => number.to_string(),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                let thread = thread.join(" ");
                let frames = frames.join(";");
                told.extend(sample.timestamps_unix_nano.iter().map(|&time| (time, thread.clone(), frames.clone())));
            }
        }
        told.sort();
        told
    }

    /// Returns the samples of a batch in the form of [`Told`].
    fn held(batch: &Batch) -> Vec<Told> {
        let dictionary = &batch.dictionary;
        let text = |id: u32| dictionary.strings.get(id);
        let frame = |&id: &u32| match &dictionary.locations[id as usize] {
            Location::Address {
                mapping, address: Address::Virtual(address) | Address::FileOffset(address), ..
            } => {
                format!("{} {address:x} ", dictionary.mapping(*mapping).1)
            }
            Location::Lines { mapping_file, lines, .. } => {
                let name = text(dictionary.functions[lines[0].function as usize].name);
                format!("{} 0 {name}:{}", text(*mapping_file), lines[0].line)
            }
        };
        let mut held = Vec::new();
        for series in &batch.series {
            let samples = &series.samples;
            for ((&time, &pair), &set) in samples.times_ns.iter().zip(&samples.pairs).zip(&samples.attribute_sets) {
                let pair = dictionary.pairs[pair as usize];
                let frames = dictionary.stack(pair.kernel).iter().chain(dictionary.stack(pair.user)).map(frame);
                // Attributes are ordered by key: `thread.id` comes before `thread.name`.
                let mut thread: Vec<String> =
                    dictionary.attribute_sets.get(set).map(|it| it.value.render(&dictionary.strings)).collect();
                assert_eq!(thread.len(), 2, "thread name and id");
                let thread = format!("{} {}", thread.remove(0), thread.remove(0));
                held.push((time as u64, thread, frames.collect::<Vec<_>>().join(";")));
            }
        }
        held.sort();
        held
    }

    #[test]
    fn fifteen_minutes_have_the_promised_samples_and_unique_stacks() {
        for (mix, samples, stacks) in [(Mix::H, 1_368_000, 42_000), (Mix::L, 820_800, 1_150)] {
            assert_eq!(mix.samples(), samples);
            let mut corpora = vec![Corpus::load_with(mix, None).unwrap()];
            corpora.extend(crate::generator::payload::folder().map(|_| Corpus::load(mix).unwrap()));
            for corpus in corpora {
                let mut count = 0;
                let mut unique = HashSet::new();
                let mut pods = HashSet::new();
                let mut builder = BatchBuilder::new(&corpus);
                for host in intervals(&corpus, 7, END_NS - WORKLOAD_NS).take(mix.pods() / HOST_PODS * HOST_REQUESTS) {
                    let batch = builder.build_new(&host);
                    for series in &batch.series {
                        pods.insert(series.fingerprint);
                        count += series.samples.len() as u64;
                        for (&pair, &time) in series.samples.pairs.iter().zip(&series.samples.times_ns) {
                            let pair = batch.dictionary.pairs[pair as usize];
                            let hash = |id: u32| batch.dictionary.stacks.hash(id);
                            unique.insert((hash(pair.user), hash(pair.kernel)));
                            let time = time as u64;
                            assert!(host.start_ns < time && time < host.start_ns + super::super::mix::INTERVAL_NS);
                        }
                    }
                }
                assert_eq!((count, pods.len()), (samples, mix.pods()));
                let part = unique.len() as f64 / f64::from(stacks);
                assert!((0.97..1.03).contains(&part), "{mix:?}: {} unique stacks", unique.len());
            }
        }
    }

    #[test]
    fn a_request_has_the_content_of_its_batch() {
        for mix in [Mix::H, Mix::L] {
            let corpus = Corpus::load(mix).unwrap();
            let builder = BatchBuilder::new(&corpus);
            // The fleet plays for so long that some stacks were not recorded.
            let plan = Plan {
                seed: 1,
                first_pod: 0,
                pods: 8,
                start_ns: END_NS,
                intervals: 20_000,
                every: 1,
                days: Days::Daily,
            };
            for host in Fleet::new(&corpus, plan).step_by(9_999).take(2) {
                let batch = builder.build(&host);
                let told = told(&request::build(&batch, &host));
                let held = held(&batch);
                assert!(held.len() > 300, "{}", held.len());
                assert_eq!(told, held);
            }
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_bytes_and_another_makes_others() {
        let requests = |seed, samples| Workload::new(Mix::L, seed, samples, END_NS).unwrap().requests;
        let first = requests(1, 15_200);
        assert_eq!(first, requests(1, 15_200));
        assert_ne!(first, requests(2, 15_200));
        // A longer workload begins with the requests of a shorter one.
        assert_eq!(first, requests(1, 30_400)[..10]);
    }

    #[test]
    fn more_samples_than_15_minutes_are_more_hosts() {
        let workload = Workload::new(Mix::L, 1, Mix::L.samples() + 3 * 1520, END_NS).unwrap();
        assert_eq!((workload.pods, workload.samples), (48, Mix::L.samples() + 3 * 1520));
        assert_eq!(workload.requests.iter().collect::<HashSet<_>>().len(), workload.requests.len());
    }
}
