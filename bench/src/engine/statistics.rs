//! Properties of a mix that determine the disk space of its samples: counts, and entropies in bits per sample.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use clap::Args;
use foldhash::fast::FixedState;
use proto::Batch;
use serde_json::{Value, json};

use crate::generator::{BatchBuilder, Corpus, Days, Drawn, Fleet, HOST_REQUESTS, HostSamples, Mix, Plan};
use crate::process::CoreTime;
use crate::report::{print, rounded};

/// Prints statistics of a mix of recorded programs: stacks, threads, times, entropies.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, value_enum, default_value_t = Mix::H)]
    mix: Mix,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Function that returns the group of a sample. The times of a group are analysed together.
type Key = fn(&Seen) -> (u64, u32);
type Set<T> = HashSet<T, FixedState>;
type Map<K, V> = HashMap<K, V, FixedState>;

const TEN_MINUTES_NS: u64 = 600_000_000_000;
const MINUTE_NS: u64 = 60_000_000_000;
const TEN_SECONDS_NS: u64 = 10_000_000_000;

/// One sample of the fleet. The ID of a stack is the same in all pods.
#[derive(Clone, Copy)]
struct Seen {
    pod: u64,
    stack: u32,
    /// ID of the thread, which is unique within the pod.
    thread: u32,
    cpu: u32,
    time_ns: u64,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let corpus = Corpus::load(arguments.mix)?;
    print(&json!({"measure": "corpus", "corpus": corpus.describe()}))?;
    let (samples, tree) = play(&corpus, arguments.seed);
    print(&json!({"measure": "stacks", "mix": format!("{:?}", arguments.mix), "figures": tree}))?;
    print(&json!({"measure": "generator", "figures": speed(&corpus, arguments.seed)?}))?;
    print(&json!({"measure": "rows", "figures": rows(&samples)}))?;
    print(&json!({"measure": "jitter_ns", "figures": jitter(&corpus)}))?;
    let keys: [(&str, Key); 3] = [
        ("times of a pod", |seen| (seen.pod, 0)),
        ("times of a CPU of a pod", |seen| (seen.pod, seen.cpu)),
        ("times of a thread of a pod", |seen| (seen.pod, seen.thread)),
    ];
    for (measure, key) in keys {
        print(&json!({"measure": measure, "figures": times(&samples, key)}))?;
    }
    Ok(())
}

/// Measures the number of samples that one core generates per second.
fn speed(corpus: &Corpus, seed: u64) -> anyhow::Result<Value> {
    let of = |build: &mut dyn FnMut(&HostSamples) -> Batch| {
        let began = CoreTime::now()?;
        let samples: usize = Fleet::new(corpus, fifteen_minutes(corpus, seed))
            .flat_map(|host| build(&host).series)
            .map(|series| series.samples.len())
            .sum();
        anyhow::Ok(rounded(samples as f64 / began.elapsed()?.as_secs_f64()))
    };
    let mut builder = BatchBuilder::new(corpus);
    let new = of(&mut |host| builder.build_new(host))?;
    let whole = of(&mut |host| builder.build(host))?;
    Ok(json!({"samples_per_s_core_whole_batches": whole, "samples_per_s_core_new_definitions_only": new}))
}

fn fifteen_minutes(corpus: &Corpus, seed: u64) -> Plan {
    let pods = corpus.mix.pods();
    let intervals = HOST_REQUESTS as u64;
    Plan { seed, first_pod: 0, pods, start_ns: 0, intervals, every: 1, days: Days::Full }
}

/// Plays 15 minutes of the fleet. Returns the samples, ordered by pod and time, and figures of their stacks.
fn play(corpus: &Corpus, seed: u64) -> (Vec<Seen>, Value) {
    let mut stacks: Map<_, u32> = Map::default();
    let mut threads: Map<(u64, u32), Set<u32>> = Map::default();
    let mut prefixes = Set::default();
    let mut locations = Set::default();
    let mut frames = 0;
    let mut samples = Vec::new();
    let mut buffer = Vec::new();
    for host in Fleet::new(corpus, fifteen_minutes(corpus, seed)) {
        for pod in &host.pods {
            for &Drawn { time_ns, stack, tid, cpu, .. } in &pod.samples {
                let next = stacks.len() as u32;
                let id = *stacks.entry((pod.service, stack)).or_insert(next);
                if id == next {
                    buffer.clear();
                    let leaf_shift = corpus.services[pod.service].push_locations(stack, &mut buffer);
                    frames += buffer.len();
                    let mut prefix = 0_u64;
                    for (depth, &location) in buffer.iter().enumerate().rev() {
                        let location = (location, if depth == 0 { leaf_shift } else { 0 });
                        locations.insert(location);
                        prefix = std::hash::BuildHasher::hash_one(&FixedState::default(), (prefix, location));
                        prefixes.insert(prefix);
                    }
                }
                let place = pod.pod.place;
                threads.entry((place, 0)).or_default().insert(tid);
                samples.push(Seen { pod: place, stack: id, thread: tid, cpu, time_ns });
            }
        }
    }
    samples.sort_by_key(|seen| (seen.pod, seen.time_ns));
    let pods = threads.len() as f64;
    let of_pods: Vec<usize> = threads.values().map(HashSet::len).collect();
    let figures = json!({
        "samples": samples.len(),
        "unique_stacks": stacks.len(),
        "mean_depth": rounded(frames as f64 / stacks.len() as f64),
        "nodes": prefixes.len(),
        "nodes_per_stack": rounded(prefixes.len() as f64 / stacks.len() as f64),
        "locations": locations.len(),
        "threads_per_pod_mean": rounded(of_pods.iter().sum::<usize>() as f64 / pods),
        "threads_per_pod_max": of_pods.iter().max(),
    });
    (samples, figures)
}

/// Counts the distinct stacks, and the distinct pairs of stack and thread, for each pod and span of time. Returns these
/// counts, and the entropies of stacks and threads.
fn rows(samples: &[Seen]) -> Value {
    let distinct = |span_ns: u64| {
        let mut stacks = Set::default();
        let mut pairs = Set::default();
        let mut spans = Set::default();
        for seen in samples {
            let span = (seen.pod, seen.time_ns / span_ns);
            spans.insert(span);
            stacks.insert((span, seen.stack));
            pairs.insert((span, seen.stack, seen.thread));
        }
        let mean = |count: usize| rounded(count as f64 / spans.len() as f64);
        json!({"rows": stacks.len(), "stacks_mean": mean(stacks.len()), "stacks_and_threads_mean": mean(pairs.len())})
    };
    let span = |seen: &Seen| (seen.pod, seen.time_ns / TEN_MINUTES_NS);
    let after_same_thread =
        |threads: &mut Map<(u64, u32), u32>, seen: &Seen| threads.insert((seen.pod, seen.thread), seen.stack);
    let mut threads = Map::default();
    let repeated = samples.iter().filter(|seen| after_same_thread(&mut threads, seen) == Some(seen.stack)).count();
    json!({
        "pod_10_s": distinct(TEN_SECONDS_NS),
        "pod_minute": distinct(MINUTE_NS),
        "pod_10_minutes": distinct(TEN_MINUTES_NS),
        "stack_bits_in_pod_10_minutes": entropy_within(samples, span, |seen| u64::from(seen.stack)),
        "thread_bits_in_pod_10_minutes": entropy_within(samples, span, |seen| u64::from(seen.thread)),
        "thread_bits_given_stack":
            entropy_within(samples, |seen| (span(seen), seen.stack), |seen| u64::from(seen.thread)),
        "stack_bits_in_fleet": entropy_within(samples, |_| 0, |seen| u64::from(seen.stack)),
        "same_stack_as_before_in_thread_part": rounded(repeated as f64 / samples.len() as f64),
    })
}

/// Returns the entropy of a value within groups of samples, in bits per sample. This is the mean size of an encoded
/// value if each group has an optimal code of its own. The size of the codes is not included.
fn entropy_within<K: Hash + Eq>(samples: &[Seen], group: impl Fn(&Seen) -> K, value: impl Fn(&Seen) -> u64) -> f64 {
    let (mut counts, mut sums): (Map<(K, u64), u64>, Map<K, u64>) = Default::default();
    for seen in samples {
        *counts.entry((group(seen), value(seen))).or_default() += 1;
        *sums.entry(group(seen)).or_default() += 1;
    }
    // The entropy is the sum of n log n over all groups, minus the sum of c log c over all values of all groups. Here n
    // counts the samples of a group, and c those with one value. Dividing by the number of samples gives bits per
    // sample.
    let log = |count: &u64| *count as f64 * (*count as f64).log2();
    rounded((sums.values().map(log).sum::<f64>() - counts.values().map(log).sum::<f64>()) / samples.len() as f64)
}

/// Returns figures of the timers' jitter in all recordings.
fn jitter(corpus: &Corpus) -> Value {
    let rows = corpus.services.iter().flat_map(|service| service.lanes.rows());
    let mut jitter: Vec<i32> = rows.map(|row| row.jitter_ns).collect();
    jitter.sort_unstable();
    let quantile = |q: f64| jitter[((jitter.len() - 1) as f64 * q) as usize];
    json!({
        "p1": quantile(0.01), "p10": quantile(0.1), "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99),
        "max": quantile(1.0),
        "entropy_bits": at_resolutions(&jitter.iter().map(|&ns| i64::from(ns)).collect::<Vec<_>>()),
    })
}

/// For each group, takes the differences between consecutive times, and then the differences between these differences.
/// Returns the entropies of both.
fn times(samples: &[Seen], key: Key) -> Value {
    let mut last: Map<(u64, u32), (u64, Option<i64>)> = Map::default();
    let mut deltas = Vec::new();
    let mut twice = Vec::new();
    for seen in samples {
        let before = last.get(&key(seen)).copied();
        let delta = before.map(|(time_ns, _)| (seen.time_ns - time_ns).cast_signed());
        deltas.extend(delta);
        twice.extend(delta.zip(before.and_then(|(_, delta)| delta)).map(|(delta, before)| delta - before));
        last.insert(key(seen), (seen.time_ns, delta));
    }
    let mut sorted = deltas.clone();
    sorted.sort_unstable();
    let quantile = |q: f64| sorted[((sorted.len() - 1) as f64 * q) as usize];
    json!({
        "series_of_times": last.len(),
        "delta_ns": {"p10": quantile(0.1), "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99)},
        "delta_bits": at_resolutions(&deltas),
        "delta_of_delta_bits": at_resolutions(&twice),
    })
}

/// Returns the entropy, in bits, of the values in nanoseconds, microseconds and milliseconds. A million values can show
/// at most 20 bits. If the entropy in nanoseconds is near 20 bits, a better estimate is the entropy in microseconds
/// plus 10 bits.
fn at_resolutions(values: &[i64]) -> Value {
    let entropy = |unit: i64| {
        let mut counts: Map<i64, u64> = Map::default();
        values.iter().for_each(|value| *counts.entry(value.div_euclid(unit)).or_default() += 1);
        let total = values.len() as f64;
        rounded(counts.values().map(|&count| count as f64 / total * (total / count as f64).log2()).sum())
    };
    json!({"ns": entropy(1), "us": entropy(1_000), "ms": entropy(1_000_000)})
}
