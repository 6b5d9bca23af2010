//! Memory use of a process with one engine: at most 1.2 times the sum of the budgets of head, dictionary and cache, for
//! any number of samples.
//!
//! Peak memory is measured per process, so each load runs in a child process of this test.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

use std::process::Command as Process;
use std::sync::Arc;

use bytes::Bytes;
use proto::dictionary::stack_hash;
use proto::label::PROFILE_TYPE_LABEL;
use proto::{
    Batch, Command, Dictionary, Entry, Function, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair,
    TenantId, Tier,
};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Outcome, Position};

const CACHE_BYTES: usize = 32 << 20;

/// Size of a sample in the head, in bytes: time, stack, value and attributes.
const SAMPLE_BYTES: usize = 24;
/// Environment variable that tells the child process its load.
const LOAD: &str = "VARVE_TEST_MEMORY_LOAD";

/// Samples that a child process ingests, and the budgets of its engine.
#[derive(Clone, Copy, Debug)]
struct Load {
    series: usize,
    stacks: usize,
    /// Number of samples of each series in a batch. A batch covers one second.
    samples_of_series: usize,
    /// Number of series in a batch. Successive batches have different series.
    series_of_batch: usize,
    /// Time between two batches, in nanoseconds.
    step_ns: i64,
    /// Budget of the head, in bytes.
    head_bytes: usize,
    /// Budget of the dictionary, in bytes.
    dictionary_bytes: usize,
}

impl Load {
    fn peak_bytes_max(&self) -> usize {
        (self.head_bytes + self.dictionary_bytes + CACHE_BYTES) * 12 / 10
    }

    /// Returns the number of batches whose samples take ten times the budget of the head.
    fn batches(&self) -> usize {
        self.head_bytes * 10 / SAMPLE_BYTES / (self.series_of_batch * self.samples_of_series)
    }
}

/// Few series with many samples, like those of services on many cores.
const DENSE: Load = Load {
    series: 20,
    stacks: 5000,
    samples_of_series: 1000,
    series_of_batch: 20,
    step_ns: 10_000_000_000,
    head_bytes: 32 << 20,
    dictionary_bytes: 16 << 20,
};

/// Returns a dictionary of stacks with three functions each. The pairs of these stacks are numbered from 1 on.
fn dictionary(stacks: usize) -> Dictionary {
    let mut dictionary = Dictionary::default();
    let set = dictionary.intern_attributes(Vec::new());
    assert_eq!(set, 0);
    for stack in 0..stacks {
        let locations = [stack, stack / 10, stack / 100].map(|function| {
            let name = dictionary.strings.intern(&format!("function_{function}"));
            let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
            let lines = [Line { function, line: 1, column: 0 }].into();
            dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
        });
        let hash = stack_hash(&locations.map(|location| dictionary.location_hash(location)));
        let user = dictionary.intern_stack(hash, Some(&locations));
        dictionary.intern_pair(StackPair { user, kernel: 0 });
    }
    dictionary
}

fn labels(series: usize) -> LabelSet {
    LabelSet::new(vec![
        Label::new("pod", format!("pod-{series}")),
        Label::new("service_name", format!("service-{}", series % 100)),
        Label::new(PROFILE_TYPE_LABEL, "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
    ])
}

fn status_bytes(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Ingests batches as a node does: flushes when the head is over its budget.
fn ingest(load: Load) {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        directory: folder.path().join("state"),
        budgets: Budgets::new(BudgetSizes {
            engines: 1,
            head_bytes_max: load.head_bytes,
            dictionary_bytes_max: load.dictionary_bytes,
            cache_bytes: CACHE_BYTES,
        }),
        barrier: Default::default(),
    };
    let engine = Engine::open(config).unwrap();
    let tenant = TenantId::default_tenant();
    let dictionary = dictionary(load.stacks);
    // The start of a partition: all samples are in one or two partitions.
    let start_ns = Tier::Raw.partition_ns() * 83_000;
    let batches = load.batches();
    let mut state = 1_u64;
    for number in 0..batches {
        let time_ns = start_ns + number as i64 * load.step_ns;
        let first = number * load.series_of_batch % load.series;
        let series = (first..first + load.series_of_batch).map(|series| {
            let labels = labels(series);
            let mut samples = Samples::default();
            for sample in 0..load.samples_of_series {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pair = (state >> 33) as usize % load.stacks + 1;
                samples.push(time_ns + 1 + sample as i64 * 1_000_003, pair as u32, 10_000_000, 0);
            }
            SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }
        });
        let batch = Batch {
            tenant: tenant.clone(),
            id: None,
            retention_class: 0,
            dictionary: dictionary.clone(),
            series: series.collect(),
        };
        let position = Position { index: number as u64 + 1, log_id: Bytes::from_static(b"id") };
        let entry = Entry { proposed_at_ns: time_ns, command: Command::Append(Arc::new(batch)) };
        assert_eq!(engine.apply(position, &entry).unwrap(), Outcome::Applied);
        if engine.wants_flush() {
            engine.flush().unwrap();
        }
    }
    let peak = status_bytes("VmHWM");
    let dictionary = engine.dictionary_bytes();
    println!(
        "{} samples of {} series: peak {} MB of {} MB allowed; dictionary {} MB",
        batches * load.series_of_batch * load.samples_of_series,
        load.series,
        peak >> 20,
        load.peak_bytes_max() >> 20,
        dictionary >> 20
    );
    assert!(peak < load.peak_bytes_max());
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child_ingests() {
    if std::env::var_os(LOAD).is_some() {
        ingest(DENSE);
    }
}

#[test]
fn dense_series_of_ten_times_the_head_stay_within_the_budgets() {
    let mut child = Process::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child_ingests", "--ignored", "--nocapture"]).env(LOAD, "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures = text.lines().find(|line| line.contains("peak")).unwrap_or_default();
    println!("{figures}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!figures.is_empty(), "the child did nothing: {text}");
}
