//! Memory use of the head: very many series with single samples stay within the head's budget.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and says what it measured")]

use std::sync::Arc;

use bytes::Bytes;
use proto::dictionary::stack_hash;
use proto::limits::PARTITION_SERIES_MAX;
use proto::{
    Batch, Command, Dictionary, Entry, Function, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair,
    TenantId,
};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Position};

const MINUTE_NS: u64 = 60_000_000_000;
const START_NS: u64 = 20_000 * 24 * 60 * MINUTE_NS;
const MIB: usize = 1 << 20;
const HEAD_BYTES: usize = 16 * MIB;
const CACHE_BYTES: usize = 8 * MIB;
/// Size of RocksDB's write buffers in bytes. There are two: one is filled while another is written.
const WRITE_BUFFERS_BYTES: usize = 2 * 32 * MIB;

/// Returns a batch with one sample of each of these series.
fn batch(series: std::ops::Range<usize>, time_ns: u64) -> Batch {
    let tenant = TenantId::default_tenant();
    let mut dictionary = Dictionary::default();
    let set = dictionary.intern_attributes(Vec::new());
    let name = dictionary.strings.intern("main");
    let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
    let lines = [Line { function, line: 1, column: 0 }].into();
    let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
    let user = dictionary.intern_stack(stack_hash(&[dictionary.location_hash(location)]), Some(&[location]));
    let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
    let series = series.map(|i| {
        let labels = LabelSet::new(vec![Label::new("service_name", "test"), Label::new("pod", format!("pod-{i}"))]);
        let mut samples = Samples::default();
        samples.push(time_ns.cast_signed(), pair, 50_000_000, set);
        SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }
    });
    let series = series.collect();
    Batch { tenant, id: None, retention_class: 0, dictionary, series }
}

/// Returns the value of a line of `/proc/self/status`, in bytes.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// An engine, and the log index of its last entry.
struct World {
    engine: Engine,
    index: u64,
    _directory: tempfile::TempDir,
}

impl World {
    fn with(head_bytes_max: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            directory: directory.path().to_owned(),
            budgets: Budgets::new(BudgetSizes {
                engines: 1,
                head_bytes_max,
                dictionary_bytes_max: 1 << 30,
                cache_bytes: CACHE_BYTES,
            }),
            barrier: Default::default(),
        };
        Self { engine: Engine::open(config).unwrap(), index: 0, _directory: directory }
    }

    /// Appends one sample of each series, in batches of 500 series, and calls `then` after each batch. Returns the
    /// bytes that the appends added to the head.
    fn append(&mut self, series: usize, minute: u64, mut then: impl FnMut(&Engine)) -> usize {
        let mut in_head = 0;
        for first in (0..series).step_by(500) {
            let mut batch = batch(first..first + 500, START_NS + minute * MINUTE_NS + first as u64);
            self.engine.strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
            let command = Command::Append(Arc::new(batch));
            let entry = Entry { proposed_at_ns: (START_NS + (minute + 1) * MINUTE_NS).cast_signed(), command };
            self.index += 1;
            let before = self.engine.head_bytes();
            self.engine.apply(Position { index: self.index, log_id: Bytes::new() }, &entry).unwrap();
            in_head += self.engine.head_bytes() - before;
            then(&self.engine);
        }
        in_head
    }
}

// There is only one test, because it measures the memory of the whole process.
#[test]
fn the_head_reports_its_memory_and_keeps_its_budget() {
    ten_times_the_budget_stays_within_the_budget();
    reported_memory_is_the_memory_taken();
}

fn ten_times_the_budget_stays_within_the_budget() {
    let before = memory("VmRSS");
    let mut world = World::with(HEAD_BYTES);
    let as_a_node_does = |engine: &Engine| {
        if engine.wants_flush() {
            engine.flush().unwrap();
        }
    };
    let in_head: usize = (0..14).map(|minute| world.append(50_000, minute, as_a_node_does)).sum();
    assert!(in_head >= 10 * HEAD_BYTES, "only {in_head} bytes went through the head");
    let dictionaries = world.engine.dictionary_bytes();
    let budget = HEAD_BYTES + dictionaries + CACHE_BYTES + WRITE_BUFFERS_BYTES;
    let taken = memory("VmHWM").saturating_sub(before);
    println!("{} MiB taken, {} of them dictionaries, of {} MiB", taken / MIB, dictionaries / MIB, budget / MIB);
    assert!(taken < budget / 5 * 6, "{} MiB of {} MiB", taken / MIB, budget / MIB);
}

fn reported_memory_is_the_memory_taken() {
    let mut world = World::with(1 << 30);
    // After this append all definitions are known, so only the head grows.
    world.append(100_000, 0, |_| {});
    let before = (memory("VmRSS"), world.engine.head_bytes());
    for window in 1..4 {
        world.append(100_000, window * 10, |_| {});
    }
    let taken = memory("VmRSS").saturating_sub(before.0);
    let reported = world.engine.head_bytes() - before.1;
    println!("{} MiB taken, {} MiB reported", taken / MIB, reported / MIB);
    assert!(taken < reported / 5 * 6, "{} MiB taken, {} MiB reported", taken / MIB, reported / MIB);
}
