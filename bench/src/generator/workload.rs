//! All requests of a run, made before the first is sent, so that making them takes no CPU from what is measured.

use prost::Message as _;
use serde_json::{Value, json};

use super::corpus::Corpus;
use super::random::{Random, Zipf};
use super::request::{Drawn, POD_THREADS, PodSamples, build};
use super::{
    HOST_PODS, HOST_REQUESTS, INTERVAL_NS, Mix, PERIOD_NS, POD_SAMPLES, REQUEST_SAMPLES, SERVICES, WORKLOAD_NS,
};

/// Every so many samples of a pod, one is the next of the service's stacks in turn: rare ones come up, too, and none is left out.
const TURN_SAMPLES: usize = 32;
const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// What is sent in one ingest, in this order.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) mix: Mix,
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
    encoded_bytes: usize,
}

impl Workload {
    /// At least `samples`, in whole requests, over the 15 minutes before `end_ns`.
    ///
    /// Up to 15 minutes of the mix, fewer samples are less time; beyond, more are more hosts.
    pub(crate) fn new(mix: Mix, seed: u64, samples: u64, end_ns: u64) -> Self {
        let generator = Generator {
            mix,
            corpus: Corpus::new(mix, seed),
            zipf: Zipf::new(mix.service_stacks(), mix.zipf_exponent()),
            seed,
        };
        let count = samples.div_ceil(REQUEST_SAMPLES as u64) as usize;
        let start_ns = end_ns - WORKLOAD_NS;
        let mut seen = vec![false; generator.corpus.stacks.len()];
        let requests: Vec<Vec<u8>> = (0..count)
            .map(|number| {
                let (host, interval) = generator.place(number);
                let pods = generator.pods(host, interval, start_ns);
                pods.iter().flat_map(|pod| &pod.samples).for_each(|drawn| seen[drawn.stack] = true);
                build(&generator.corpus, host, start_ns + interval as u64 * INTERVAL_NS, &pods).encode_to_vec()
            })
            .collect();
        let hosts = (0..count).map(|number| generator.place(number).0 + 1).max().unwrap_or(0);
        Self {
            mix,
            seed,
            samples: (count * REQUEST_SAMPLES) as u64,
            start_ns,
            end_ns,
            unique_stacks: seen.iter().filter(|&&seen| seen).count(),
            pods: hosts * HOST_PODS,
            encoded_bytes: requests.iter().map(Vec::len).sum(),
            requests,
        }
    }

    /// Its parameters.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "mix": format!("{:?}", self.mix),
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

/// The end of the last hour in UTC: 15 minutes before it lie in one partition, and the time of a run changes no figure.
pub(crate) fn last_full_hour_ns() -> u64 {
    let now_ns = jiff::Timestamp::now().as_nanosecond().max(0) as u64;
    now_ns - now_ns % HOUR_NS
}

struct Generator {
    mix: Mix,
    corpus: Corpus,
    zipf: Zipf,
    seed: u64,
}

impl Generator {
    /// Host and interval of a request: in the order of time, hosts of the mix in turn; then further hosts, likewise.
    fn place(&self, number: usize) -> (usize, usize) {
        let hosts = self.mix.pods() / HOST_PODS;
        let (round, within) = (number / (hosts * HOST_REQUESTS), number % (hosts * HOST_REQUESTS));
        (round * hosts + within % hosts, within / hosts)
    }

    fn pods(&self, host: usize, interval: usize, start_ns: u64) -> Vec<PodSamples> {
        let pods = (0..HOST_PODS).map(|on_host| {
            let pod = host * HOST_PODS + on_host;
            // Stream 1 of the seed; a pod's interval has a sequence of its own, so requests can be made in any order.
            let mut random = Random::new(self.seed.wrapping_add(1 << 32), (pod * HOST_REQUESTS + interval) as u64);
            let interval_ns = start_ns + interval as u64 * INTERVAL_NS;
            let samples = (0..POD_SAMPLES).map(|i| self.sample(pod, interval, i, interval_ns, &mut random)).collect();
            PodSamples { pod, service: pod % SERVICES, samples }
        });
        pods.collect()
    }

    fn sample(&self, pod: usize, interval: usize, number: usize, interval_ns: u64, random: &mut Random) -> Drawn {
        let stacks = &self.corpus.services[pod % SERVICES].stacks;
        let of_pod = interval * POD_SAMPLES + number;
        let within = if of_pod.is_multiple_of(TURN_SAMPLES) {
            let pods_of_service = self.mix.pods().div_ceil(SERVICES);
            (of_pod / TURN_SAMPLES * pods_of_service + pod / SERVICES) % stacks.len()
        } else {
            self.zipf.draw(random)
        };
        let thread = random.below(POD_THREADS as usize) as u32;
        // Two CPUs, each on its own timer; at least 1 ns after the start, because windows leave their start out.
        let tick_ns = (number / 2) as u64 * PERIOD_NS;
        let time_ns = interval_ns + tick_ns + 1 + random.below(PERIOD_NS as usize - 1) as u64;
        Drawn { stack: stacks.start + within, thread, time_ns: time_ns.min(interval_ns + INTERVAL_NS - 1) }
    }
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
