//! A script that ran on an engine: its entries, the model after each entry, and the recorded file operations.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as ProptestConfig, RngAlgorithm, TestRng, TestRunner};
use proto::{Entry, Fold, Selection, StackDetail, TenantId, Window};
use storage_engine::Engine;
use storage_model::answers::selection;
use storage_model::rows::{Horizons, Row};
use storage_model::samples::{DAY, T0};
use storage_model::steps::{Step, step};
use storage_model::world::World;

use testkit::power_cut::disk::{EntryName, Inode, Operation, assert_is_whole};
use testkit::power_cut::recorder;
use testkit::random::Random;

/// Number of steps of a script: the least, and the most plus one.
const STEPS: std::ops::Range<usize> = 30..70;
/// Percentage of the steps after which a checkpoint is taken.
const CHECKPOINTS_PERCENT: usize = 4;

/// The model's samples after an entry.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) rows: Arc<Vec<Row>>,
    /// Times up to which data was dropped.
    pub(crate) horizons: Horizons,
}

/// A promise that the engine has made.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    /// Everything up to this log index is durable.
    Durable(usize),
    /// A checkpoint as of this log index was taken.
    Checkpoint { entry: EntryName, index: usize },
}

/// A script that ran, with the recorded file operations.
pub(crate) struct History {
    pub(crate) log: Vec<Entry>,
    /// State of the model after each entry, by log index. The first one is before all entries.
    pub(crate) moments: Vec<Moment>,
    pub(crate) operations: Vec<Operation>,
    /// Promises, each with the number of operations before it.
    promises: Vec<(usize, Promise)>,
    /// Number of the engine's directory.
    pub(crate) root: Inode,
    pub(crate) has_small_head: bool,
    pub(crate) selections: Vec<Selection>,
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(ProptestConfig::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn steps(seed: u64) -> Vec<Step> {
    // The test cuts the power itself, and `record` takes the checkpoints.
    let step =
        step().prop_map(|step| if matches!(step, Step::Crash | Step::Checkpoint) { Step::Restart } else { step });
    let steps = prop::collection::vec(step, STEPS);
    steps.new_tree(&mut runner(seed)).unwrap().current()
}

fn selections(seed: u64) -> Vec<Selection> {
    let every_sample = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Points(Window { start_ns: T0 - 5 * DAY, end_ns: T0 + 5 * DAY }),
        group_by: vec!["thread_name".to_owned()],
        group_by_series: true,
        stacks: StackDetail::Full,
        locations: proto::LocationSets::default(),
    };
    let mut selections = prop::collection::vec(selection(), 8).new_tree(&mut runner(seed)).unwrap().current();
    selections.insert(0, every_sample);
    selections
}

impl History {
    /// Generates the script of a seed, runs it, and records it.
    pub(crate) fn record(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let has_small_head = random.chance(30);
        let checkpoints = directory();
        recorder::start(Path::new("/"), None);
        let mut promises = Vec::new();
        let mut note = |promise| promises.push((recorder::count(), promise));
        let parent = recorder::directory(checkpoints.path());
        let mut world = World::with(has_small_head, [&[], &[]]);
        let root = recorder::directory(world.directory.path());
        let mut moments = vec![moment(&world)];
        for (number, step) in steps(seed).iter().enumerate() {
            world.step(step);
            moments.resize(world.log.len() + 1, moment(&world));
            note(Promise::Durable(flushed(world.engine())));
            if random.chance(CHECKPOINTS_PERCENT) {
                let name = format!("{number}");
                let taken = world.engine().checkpoint(&checkpoints.path().join(&name)).unwrap();
                let index = taken.position.map_or(0, |position| position.index as usize);
                note(Promise::Durable(index));
                note(Promise::Checkpoint { entry: (parent, name.into()), index });
            }
        }
        // Closing the engine ends its background work.
        world.engine = None;
        let operations = recorder::stop();
        assert_is_whole(&operations, root, world.directory.path());
        let log = std::mem::take(&mut world.log);
        Self { log, moments, operations, promises, root, has_small_head, selections: selections(seed) }
    }

    /// Returns the promises before a power cut after `at` operations, the last one first.
    pub(crate) fn promises(&self, at: usize) -> impl Iterator<Item = &Promise> {
        self.promises.iter().rev().filter(move |(before, _)| *before <= at).map(|(_, promise)| promise)
    }
}

/// Creates a directory in memory, because the disk under it is not tested.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir()).unwrap()
}

fn moment(world: &World) -> Moment {
    Moment { rows: Arc::new(world.rows.clone()), horizons: world.horizons.clone() }
}

/// Returns the log index up to which the engine reports everything as durable.
pub(crate) fn flushed(engine: &Engine) -> usize {
    engine.flushed().map_or(0, |position| position.index as usize)
}
