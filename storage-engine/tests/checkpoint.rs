//! Stalls of entries while checkpoints are written. The test measures time, so it runs alone.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test's helpers may")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::dictionary::stack_hash;
use proto::limits::PARTITION_SERIES_MAX;
use proto::{
    Batch, Command, Dictionary, Entry, Function, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair,
    TenantId,
};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Position};
use testkit::random::Random;

/// Time of the first sample.
const START_NS: i64 = 20_717 * 86_400 * 1_000_000_000;
/// Time that one batch covers before the first checkpoint, and afterwards.
const BATCH_NS: [i64; 2] = [5_000_000_000, 500_000_000];
/// Interval of entries while checkpoints are written. The shard then gets 200,000 samples per second.
const ENTRY_INTERVAL: Duration = Duration::from_millis(10);
const SERIES: usize = 50;
const SAMPLES_OF_SERIES: usize = 40;
const STACKS: usize = 2000;
/// Number of batches in the state before the first checkpoint: two hours of samples.
const BATCHES_BEFORE: u64 = 1500;
const CHECKPOINTS: usize = 100;
/// Largest stall at the 99th percentile.
const STALL_MAX: Duration = Duration::from_millis(100);

/// A fleet whose batches all have the same series and stacks.
struct Fleet {
    random: Random,
    dictionary: Dictionary,
    pairs: Vec<u32>,
    labels: Vec<LabelSet>,
    now_ns: i64,
}

impl Fleet {
    fn new() -> Self {
        let mut dictionary = Dictionary::default();
        dictionary.intern_attributes(Vec::new());
        let pair = |i: usize| {
            let name = dictionary.strings.intern(&format!("function {i}"));
            let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
            let lines = [Line { function, line: 1, column: 0 }].into();
            let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
            let hash = stack_hash(&[dictionary.location_hash(location)]);
            let user = dictionary.intern_stack(hash, Some(&[location]));
            dictionary.intern_pair(StackPair { user, kernel: 0 })
        };
        let pairs = (0..STACKS).map(pair).collect();
        let labels = |i| LabelSet::new(vec![Label::new("service_name", format!("service {i}"))]);
        let labels = (0..SERIES).map(labels).collect();
        Self { random: Random::new(1), dictionary, pairs, labels, now_ns: START_NS }
    }

    /// Returns a batch with the samples of the next `length_ns`.
    fn batch(&mut self, length_ns: i64) -> Batch {
        let start_ns = self.now_ns;
        self.now_ns += length_ns;
        let mut series = Vec::new();
        for labels in &self.labels {
            let mut samples = Samples::default();
            for _ in 0..SAMPLES_OF_SERIES {
                let time_ns = start_ns + 1 + self.random.below(length_ns as usize) as i64;
                samples.push(time_ns, self.pairs[self.random.below(STACKS)], self.random.below(1 << 30) as i64, 0);
            }
            let fingerprint = labels.fingerprint(&TenantId::default_tenant());
            series.push(SeriesSamples { fingerprint, labels: Some(labels.clone()), samples });
        }
        Batch {
            tenant: TenantId::default_tenant(),
            retention_class: 0,
            id: None,
            dictionary: self.dictionary.clone(),
            series,
        }
    }
}

/// Applies an entry, and returns the time that it took.
fn apply(engine: &Engine, fleet: &mut Fleet, index: u64) -> Duration {
    let mut batch = fleet.batch(BATCH_NS[usize::from(index > BATCHES_BEFORE)]);
    engine.strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
    let entry = Entry { proposed_at_ns: fleet.now_ns, command: Command::Append(Arc::new(batch)) };
    let start = Instant::now();
    engine.apply(Position { index, log_id: Bytes::from_static(b"id") }, &entry).unwrap();
    if engine.is_overfull() {
        engine.flush().unwrap();
    }
    start.elapsed()
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

#[test]
fn a_checkpoint_stalls_entries_for_at_most_100_ms_at_p99() {
    let folder = tempfile::tempdir().unwrap();
    let budgets = Budgets::new(BudgetSizes {
        engines: 1,
        head_bytes_max: 64 << 20,
        dictionary_bytes_max: proto::limits::DICTIONARY_BYTES_MAX,
        cache_bytes: 64 << 20,
    });
    let engine =
        Engine::open(Config { directory: folder.path().join("state"), budgets, barrier: Default::default() }).unwrap();
    let mut fleet = Fleet::new();
    for index in 1..=BATCHES_BEFORE {
        apply(&engine, &mut fleet, index);
        if index % 120 == 0 {
            engine.flush().unwrap();
        }
    }
    engine.flush().unwrap();
    // The longest time that an entry took since the last checkpoint began, in nanoseconds.
    let longest_ns = AtomicU64::new(0);
    let is_done = AtomicBool::new(false);
    let mut stalls = Vec::new();
    let mut took = Vec::new();
    let entries = std::thread::scope(|scope| {
        let (engine, longest_ns, is_done) = (&engine, &longest_ns, &is_done);
        let applier = scope.spawn(move || {
            let mut index = BATCHES_BEFORE;
            while !is_done.load(Ordering::Relaxed) {
                index += 1;
                let stall_ns = apply(engine, &mut fleet, index).as_nanos() as u64;
                longest_ns.fetch_max(stall_ns, Ordering::Relaxed);
                std::thread::sleep(ENTRY_INTERVAL.saturating_sub(Duration::from_nanos(stall_ns)));
            }
            index - BATCHES_BEFORE
        });
        for number in 0..CHECKPOINTS {
            std::thread::sleep(Duration::from_millis(20));
            longest_ns.store(0, Ordering::Relaxed);
            let checkpoint = folder.path().join(format!("checkpoint-{number}"));
            let start = Instant::now();
            engine.checkpoint(&checkpoint).unwrap();
            took.push(start.elapsed());
            // The entry that waited longest may end a moment later.
            std::thread::sleep(Duration::from_millis(20));
            stalls.push(Duration::from_nanos(longest_ns.load(Ordering::Relaxed)));
            std::fs::remove_dir_all(&checkpoint).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        applier.join().unwrap()
    });
    stalls.sort();
    took.sort();
    let bytes = engine.statistics().unwrap().file_bytes;
    println!(
        "{entries} entries of {} samples, {CHECKPOINTS} checkpoints of {} MiB: longest entry during one p50 {:?}, p99 \
         {:?}, max {:?}; a checkpoint takes p50 {:?}, p99 {:?}",
        SERIES * SAMPLES_OF_SERIES,
        bytes >> 20,
        percentile(&stalls, 50),
        percentile(&stalls, 99),
        percentile(&stalls, 100),
        percentile(&took, 50),
        percentile(&took, 99),
    );
    assert!(entries > CHECKPOINTS as u64, "{entries} entries are no load");
    assert!(percentile(&stalls, 99) <= STALL_MAX, "{:?}", percentile(&stalls, 99));
}
