//! The fleet: an iterator over the samples of each host, in the order of time.
//!
//! A life of a pod lasts from its start to its restart. The fleet has only the present life of each pod in memory, so a
//! year takes no more memory than a minute. Pod p is on host p / 8 and belongs to service p % 5.
//!
//! With [`Days::Daily`] load follows the hour, from 100 % of both CPUs at 14:00 UTC to 40 % at 2:00. A CPU is idle, and
//! not sampled, at random ticks. Pods end twice a day on average and restart at once, with another name and other
//! threads. With [`Days::Full`] no CPU is idle and no pod ends, so each mix of 15 minutes has a fixed number of
//! samples.

use super::corpus::Corpus;
use super::growth::StackKey;
use super::mix::{HOST_PODS, INTERVAL_NS, INTERVAL_TICKS, POD_CPUS, POD_SAMPLES, SERVICES};
use super::pod::Pod;
use super::random::Random;

const DAY_NS: u64 = 86_400 * 1_000_000_000;
const PEAK_NS: u64 = 14 * 3600 * 1_000_000_000;
const LOAD_MIN: f64 = 0.4;
/// Mean length of a pod's life, as a number of intervals of 5 s: half a day.
const LIFE_INTERVALS: usize = 8_640;

/// This number plus a CPU's number names the sequence of random numbers for that CPU's jitter.
const JITTER: usize = POD_CPUS;

/// Course of the load over a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Days {
    /// The load is always full, and no pod ends.
    Full,
    /// The load follows the hour of the day, and pods restart.
    Daily,
}

/// The part of a fleet to play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Index of the first pod to play: a multiple of the number of pods of a host.
    pub(crate) first_pod: usize,
    /// Number of pods to play: a multiple of the number of pods of a host.
    pub(crate) pods: usize,
    pub(crate) start_ns: u64,
    /// Number of intervals of 5 s.
    pub(crate) intervals: u64,
    /// Number of consecutive intervals of which only the first is played; 1 plays all intervals. With a larger number,
    /// the same number of samples covers a longer time. Skipped intervals do not add to the growth of the number of
    /// stacks.
    pub(crate) every: u64,
    pub(crate) days: Days,
}

/// One sample of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) time_ns: u64,
    pub(crate) stack: StackKey,
    /// Index into the threads of the service's recording.
    pub(crate) thread: u32,
    pub(crate) tid: u32,
    /// Number of the CPU in the pod. Requests do not contain it, as in the measurements of other databases.
    pub(crate) cpu: u32,
}

/// Samples of one pod in one interval.
#[derive(Debug)]
pub(crate) struct PodSamples {
    pub(crate) pod: Pod,
    /// Index of the recording that the pod plays.
    pub(crate) service: usize,
    /// Number of the service, if several services play the same recording. It is part of the service's name.
    pub(crate) number: Option<usize>,
    pub(crate) samples: Vec<Drawn>,
}

/// Samples that one host sends in one request.
#[derive(Debug)]
pub(crate) struct HostSamples {
    pub(crate) host: usize,
    pub(crate) start_ns: u64,
    /// Length of the time that the samples cover.
    pub(crate) duration_ns: u64,
    pub(crate) pods: Vec<PodSamples>,
}

/// A synthetic fleet: an iterator over its samples.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    corpus: &'a Corpus,
    plan: Plan,
    pods: Vec<Pod>,
    /// Index of the next played interval.
    interval: u64,
    /// Index of the next host in the plan.
    host: usize,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(corpus: &'a Corpus, plan: Plan) -> Self {
        let places = plan.first_pod..plan.first_pod + plan.pods;
        let pods = places.map(|place| Pod::new(plan.seed, place as u64, 0)).collect();
        Self { corpus, plan, pods, interval: 0, host: 0 }
    }

    fn pod_samples(&mut self, number: usize, start_ns: u64) -> PodSamples {
        let Plan { seed, days, .. } = self.plan;
        let pod = &mut self.pods[number];
        let service = pod.place as usize % SERVICES;
        let life = LIFE_INTERVALS.div_ceil(self.plan.every as usize);
        if days == Days::Daily && Random::of([seed, pod.place, self.interval, 1]).below(life) == 0 {
            *pod = Pod::new(seed, pod.place, pod.life + 1);
        }
        let load = if days == Days::Daily { load(start_ns) } else { 1.0 };
        let variants = self.corpus.services[service].growth.variants((self.interval + 1) * INTERVAL_NS);
        let end_ns = start_ns + INTERVAL_NS;
        let mut samples = Vec::with_capacity(POD_SAMPLES);
        let lanes = &self.corpus.services[service].lanes;
        for tick in 0..INTERVAL_TICKS {
            let tick_ns = start_ns + tick * INTERVAL_NS / INTERVAL_TICKS;
            let tick = self.interval * INTERVAL_TICKS + tick;
            for cpu in 0..POD_CPUS {
                let mut random = pod.random(tick, cpu);
                let unit = random.unit();
                if load < 1.0 && load <= random.unit() {
                    continue;
                }
                let (row, round) = lanes.row(pod.start, cpu, tick);
                let jitter_ns = lanes.jitter_ns(pod.random(round, JITTER + cpu), cpu, tick);
                let round = if lanes.threads[row.thread as usize].is_passing { round + 1 } else { 0 };
                let time_ns = (tick_ns + pod.ticks_at_ns[cpu]).saturating_add_signed(jitter_ns.into());
                samples.push(Drawn {
                    // A window excludes its start, so no sample may have that time.
                    time_ns: time_ns.clamp(start_ns + 1, end_ns - 1),
                    stack: self.corpus.services[service].growth.draw(row.stack, variants, unit),
                    thread: row.thread,
                    tid: pod.tid(row.thread, lanes.threads.len(), round),
                    cpu: cpu as u32,
                });
            }
        }
        PodSamples { pod: pod.clone(), service, number: None, samples }
    }
}

impl Iterator for Fleet<'_> {
    type Item = HostSamples;

    fn next(&mut self) -> Option<HostSamples> {
        if self.interval * self.plan.every >= self.plan.intervals {
            return None;
        }
        let interval = self.interval;
        let host = self.host;
        let start_ns = self.plan.start_ns + interval * self.plan.every * INTERVAL_NS;
        let pods = host * HOST_PODS..(host + 1) * HOST_PODS;
        let pods = pods.map(|number| self.pod_samples(number, start_ns)).collect();
        self.host += 1;
        if self.host == self.plan.pods / HOST_PODS {
            (self.host, self.interval) = (0, interval + 1);
        }
        let host = self.plan.first_pod / HOST_PODS + host;
        Some(HostSamples { host, start_ns, duration_ns: INTERVAL_NS, pods })
    }
}

/// Returns the share of ticks at which a CPU is busy at this time of the day.
fn load(time_ns: u64) -> f64 {
    let of_day = (time_ns + DAY_NS - PEAK_NS) % DAY_NS;
    let angle = of_day as f64 / DAY_NS as f64 * std::f64::consts::TAU;
    (1.0 + LOAD_MIN) / 2.0 + (1.0 - LOAD_MIN) / 2.0 * angle.cos()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::generator::{BatchBuilder, Mix};

    #[test]
    fn load_falls_at_night_and_restarted_pods_get_new_names() {
        let corpus = Corpus::load_with(Mix::L, None).unwrap();
        let plan = Plan { seed: 3, first_pod: 0, pods: 8, start_ns: 0, intervals: 17_280, every: 1, days: Days::Daily };
        let mut by_hour = [0_usize; 24];
        let mut pods = HashSet::new();
        let mut last_ns = 0;
        for host in Fleet::new(&corpus, plan) {
            assert!(last_ns <= host.start_ns);
            last_ns = host.start_ns;
            by_hour[(host.start_ns * 24 / DAY_NS) as usize] +=
                host.pods.iter().map(|pod| pod.samples.len()).sum::<usize>();
            pods.extend(host.pods.iter().map(|pod| (pod.pod.place, pod.pod.life, pod.pod.tid)));
        }
        let full = 720 * 8 * POD_SAMPLES;
        let part = |hour: usize| by_hour[hour] as f64 / full as f64;
        assert!((0.98..=1.0).contains(&part(14)) && (0.39..0.43).contains(&part(2)), "{} {}", part(14), part(2));
        // 8 pods, each with about 2 restarts in a day.
        assert!((14..40).contains(&pods.len()), "{}", pods.len());
    }

    #[test]
    fn only_what_is_new_to_a_partition_is_defined_and_the_hashes_are_the_same() {
        let corpus = Corpus::load_with(Mix::L, None).unwrap();
        let plan = Plan { seed: 3, first_pod: 0, pods: 8, start_ns: 0, intervals: 20, every: 1, days: Days::Full };
        let mut builder = BatchBuilder::new(&corpus);
        let mut defined = HashSet::new();
        for host in Fleet::new(&corpus, plan) {
            let all = builder.build(&host);
            let new = builder.build_new(&host);
            assert_eq!(
                all.dictionary.stacks.keys().collect::<Vec<_>>(),
                new.dictionary.stacks.keys().collect::<Vec<_>>()
            );
            assert!(all.dictionary.pairs.iter().eq(new.dictionary.pairs.iter()));
            assert!(all.dictionary.stacks.iter().all(|(_, stack)| stack.is_some()));
            let is_first = defined.is_empty();
            let (with, without): (Vec<_>, Vec<_>) =
                new.dictionary.stacks.iter().partition(|(_, stack)| stack.is_some());
            assert!(without.iter().all(|(hash, _)| defined.contains(*hash)));
            assert!(is_first || with.len() < without.len());
            defined.extend(with.into_iter().map(|(hash, _)| *hash));
        }
    }
}
