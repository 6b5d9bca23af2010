//! All requests of a run, made before the first is sent, so that making them takes no CPU from what is measured.

use std::collections::HashSet;

use prost::Message as _;
use serde_json::{Value, json};

use super::batch::BatchBuilder;
use super::fleet::{Days, Fleet, HostSamples, Plan};
use super::{Corpus, HOST_PODS, HOST_REQUESTS, Mix, REQUEST_SAMPLES, WORKLOAD_NS, request};

const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// What is sent in one ingest, in this order.
#[derive(Debug)]
pub(crate) struct Workload {
    seed: u64,
    /// Encoded, not compressed: as the peers were sent theirs.
    pub(crate) requests: Vec<Vec<u8>>,
    /// In all requests together.
    pub(crate) samples: u64,
    /// All samples are in `(start_ns, end_ns]`.
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// Different stacks, and pods, that were really drawn.
    unique_stacks: usize,
    pub(crate) pods: usize,
    /// Name of a service that is in it.
    pub(crate) service: String,
    encoded_bytes: usize,
    corpus: Value,
}

impl Workload {
    /// At least `samples`, in whole requests, over the 15 minutes before `end_ns`.
    ///
    /// Up to 15 minutes of the mix, fewer samples are less time; beyond, more are more hosts.
    ///
    /// # Errors
    /// The corpora cannot be read.
    pub(crate) fn new(mix: Mix, seed: u64, samples: u64, end_ns: u64) -> anyhow::Result<Self> {
        let corpus = Corpus::load(mix)?;
        let count = samples.div_ceil(REQUEST_SAMPLES as u64) as usize;
        let start_ns = end_ns - WORKLOAD_NS;
        let (mut seen, mut hosts) = (HashSet::new(), HashSet::new());
        let builder = BatchBuilder::new(&corpus);
        let requests: Vec<Vec<u8>> = intervals(&corpus, seed, start_ns)
            .take(count)
            .map(|host| {
                hosts.insert(host.host);
                let drawn = host.pods.iter().flat_map(|pod| pod.samples.iter().map(|drawn| (pod.service, drawn.stack)));
                seen.extend(drawn);
                request::build(&builder.build(&host), host.start_ns).encode_to_vec()
            })
            .collect();
        Ok(Self {
            seed,
            samples: (count * REQUEST_SAMPLES) as u64,
            start_ns,
            end_ns,
            unique_stacks: seen.len(),
            pods: hosts.len() * HOST_PODS,
            service: corpus.services[0].name.clone(),
            encoded_bytes: requests.iter().map(Vec::len).sum(),
            corpus: corpus.describe(),
            requests,
        })
    }

    /// Its parameters.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "corpus": self.corpus,
            "seed": self.seed,
            "requests": self.requests.len(),
            "samples": self.samples,
            "unique_stacks": self.unique_stacks,
            "pods": self.pods,
            "encoded_bytes_per_sample": crate::report::rounded(self.encoded_bytes as f64 / self.samples as f64),
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
        })
    }
}

/// In the order of time, hosts of the mix in turn; then further hosts, likewise.
fn intervals(corpus: &Corpus, seed: u64, start_ns: u64) -> impl Iterator<Item = HostSamples> {
    let pods = corpus.mix.pods();
    (0..).flat_map(move |round| {
        let first_pod = round * pods;
        Fleet::new(corpus, Plan { seed, first_pod, pods, start_ns, intervals: HOST_REQUESTS as u64, days: Days::Full })
    })
}

/// The end of the last hour in UTC: 15 minutes before it lie in one partition, and the time of a run changes no figure.
pub(crate) fn last_full_hour_ns() -> u64 {
    let now_ns = jiff::Timestamp::now().as_nanosecond().max(0) as u64;
    now_ns - now_ns % HOUR_NS
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;

    use super::*;

    const END_NS: u64 = 1_767_225_600_000_000_000;

    /// Reads the requests as a receiver does; returns the number of samples, and stacks by their frames.
    fn read(workload: &Workload) -> (u64, HashSet<String>) {
        let (mut samples, mut stacks) = (0, HashSet::new());
        for request in &workload.requests {
            let request = ExportProfilesServiceRequest::decode(request.as_slice()).unwrap();
            let tables = request.dictionary.unwrap();
            let frame = |&index: &i32| {
                let location = &tables.location_table[index as usize];
                let name = location.lines.first().map_or("", |line| {
                    let function = &tables.function_table[line.function_index as usize];
                    &tables.string_table[function.name_strindex as usize]
                });
                let mapping = &tables.mapping_table[location.mapping_index as usize];
                let file = &tables.string_table[mapping.filename_strindex as usize];
                format!("{file} {:x} {name}", location.address)
            };
            let texts: Vec<String> = tables
                .stack_table
                .iter()
                .map(|stack| stack.location_indices.iter().map(frame).collect::<Vec<_>>().join(";"))
                .collect();
            for resource in &request.resource_profiles {
                for sample in &resource.scope_profiles[0].profiles[0].samples {
                    assert_eq!(sample.attribute_indices.len(), 2, "thread name and id");
                    samples += sample.timestamps_unix_nano.len() as u64;
                    stacks.insert(texts[sample.stack_index as usize].clone());
                    for &time in &sample.timestamps_unix_nano {
                        assert!(time > workload.start_ns && time <= workload.end_ns);
                    }
                }
            }
        }
        (samples, stacks)
    }

    #[test]
    fn fifteen_minutes_have_the_promised_samples_and_unique_stacks() {
        for (mix, samples, stacks) in [(Mix::H, 1_368_000, 42_000), (Mix::L, 820_800, 1_150)] {
            assert_eq!(mix.samples(), samples);
            let workload = Workload::new(mix, 7, samples, END_NS);
            let (read_samples, read_stacks) = read(&workload);
            assert_eq!((read_samples, read_stacks.len()), (samples, stacks));
            assert_eq!((workload.samples, workload.unique_stacks), (samples, stacks));
            assert_eq!(workload.pods, mix.pods());
        }
    }

    #[test]
    fn a_pod_has_as_many_different_stacks_in_10_s_as_real_ones_had() {
        for (mix, rows_real) in [(Mix::H, 750_815), (Mix::L, 262_725)] {
            let generator = Generator {
                mix,
                corpus: Corpus::new(mix, 1),
                zipf: Zipf::new(mix.service_stacks(), mix.zipf_exponent()),
                seed: 1,
            };
            let mut rows = 0;
            for (host, interval) in
                (0..mix.pods() / HOST_PODS).flat_map(|host| (0..HOST_REQUESTS).step_by(2).map(move |i| (host, i)))
            {
                let halves = [generator.pods(host, interval, 0), generator.pods(host, interval + 1, 0)];
                for pod in 0..HOST_PODS {
                    let drawn = halves.iter().flat_map(|pods| &pods[pod].samples);
                    rows += drawn.map(|drawn| drawn.stack).collect::<HashSet<_>>().len();
                }
            }
            let part = rows as f64 / f64::from(rows_real);
            assert!((0.95..1.05).contains(&part), "{mix:?}: {rows} rows");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_bytes_and_another_makes_others() {
        let requests = |seed| Workload::new(Mix::L, seed, 15_200, END_NS).requests;
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
        // A longer run starts as a shorter one does.
        assert_eq!(requests(1), Workload::new(Mix::L, 1, 30_400, END_NS).requests[..10]);
    }

    #[test]
    fn more_samples_than_15_minutes_are_more_hosts() {
        let workload = Workload::new(Mix::L, 1, Mix::L.samples() + 3 * 1520, END_NS);
        assert_eq!(workload.pods, 48);
        assert_eq!(workload.requests.iter().collect::<HashSet<_>>().len(), workload.requests.len());
    }
}
