//! The wide fleet: many pods with few samples each, as a collector in front of a large fleet sends them.
//!
//! Every 10 s, each pod has 10 samples, and a request carries the samples of 100 pods. A service has at most 100 pods.
//! Each service plays one of the recordings of a mix, from another position for each pod.

use super::corpus::Corpus;
use super::fleet::{Drawn, HostSamples, PodSamples};
use super::mix::SERVICES;
use super::pod::Pod;

/// Number of pods in one request.
pub(crate) const REQUEST_PODS: usize = 100;
/// Largest number of pods. All requests are in memory before the first is sent.
pub(crate) const PODS_MAX: usize = 200_000;
/// Number of pods of a service.
const SERVICE_PODS: usize = 100;
/// Number of samples of a pod in one interval, and so in one request.
const POD_SAMPLES: usize = 10;
/// Length of the interval of one request, in nanoseconds.
const INTERVAL_NS: u64 = 10_000_000_000;
/// Number of intervals that the fleet plays: one minute.
const INTERVALS: u64 = 6;

/// Time that the fleet plays, in nanoseconds.
pub(crate) const WIDE_NS: u64 = INTERVALS * INTERVAL_NS;

/// Returns the number of services of this number of pods.
pub(crate) fn services(pods: usize) -> usize {
    pods.div_ceil(SERVICE_PODS)
}

/// Returns the samples of each request, in the order of time.
pub(crate) fn requests(corpus: &Corpus, seed: u64, pods: usize, start_ns: u64) -> impl Iterator<Item = HostSamples> {
    (0..INTERVALS).flat_map(move |interval| {
        (0..pods.div_ceil(REQUEST_PODS)).map(move |host| {
            let start_ns = start_ns + interval * INTERVAL_NS;
            let places = host * REQUEST_PODS..((host + 1) * REQUEST_PODS).min(pods);
            let pod = |place| samples_of(corpus, Pod::new(seed, place as u64, 0), services(pods), interval, start_ns);
            HostSamples { host, start_ns, duration_ns: INTERVAL_NS, pods: places.map(pod).collect() }
        })
    })
}

fn samples_of(corpus: &Corpus, pod: Pod, services: usize, interval: u64, start_ns: u64) -> PodSamples {
    let number = pod.place as usize % services;
    let program = number % SERVICES;
    let service = &corpus.services[program];
    let variants = service.growth.variants((interval + 1) * INTERVAL_NS);
    let threads = &service.lanes.threads;
    let period_ns = INTERVAL_NS / POD_SAMPLES as u64;
    let draw = |tick: u64| {
        let tick_of_fleet = interval * POD_SAMPLES as u64 + tick;
        let mut random = pod.random(tick_of_fleet, 0);
        let (row, _) = service.lanes.row(pod.start, 0, tick_of_fleet);
        // A window excludes its start, so no sample may have that time.
        let within_ns = 1 + random.below(period_ns as usize - 1) as u64;
        Drawn {
            time_ns: start_ns + tick * period_ns + within_ns,
            stack: service.growth.draw(row.stack, variants, random.unit()),
            thread: row.thread,
            tid: pod.tid(row.thread, threads.len(), 0),
            cpu: 0,
        }
    };
    let samples = (0..POD_SAMPLES as u64).map(draw).collect();
    PodSamples { service: program, number: Some(number), samples, pod }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::generator::{BatchBuilder, Mix};

    #[test]
    fn each_pod_is_a_series_with_ten_samples_in_each_interval() {
        let corpus = Corpus::load_with(Mix::L, None).unwrap();
        let builder = BatchBuilder::new(&corpus);
        let mut series = HashSet::new();
        let mut names = HashSet::new();
        let mut samples = 0;
        for host in requests(&corpus, 1, 250, 0) {
            for one in &builder.build(&host).series {
                let times = &one.samples.times_ns;
                assert_eq!(times.len(), POD_SAMPLES);
                let interval = host.start_ns as i64..(host.start_ns + INTERVAL_NS) as i64;
                assert!(times.is_sorted() && times.iter().all(|time| interval.contains(time)));
                samples += times.len();
                series.insert(one.fingerprint);
                names.insert(one.labels.as_ref().unwrap().get("service_name").to_owned());
            }
        }
        assert_eq!((series.len(), names.len(), samples), (250, services(250), 250 * 60));
    }
}
