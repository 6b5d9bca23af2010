//! A script that ran on an engine: its entries, the model after each entry, and the recorded file operations.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as ProptestConfig, RngAlgorithm, TestRng, TestRunner};
use proto::{Entry, Fold, Selection, StackDetail, TenantId, Window};
use storage_engine::Engine;
use storage_model::answers::selection;
use storage_model::samples::{DAY, T0};
use storage_model::world::{Horizons, Row, Step, World, step};

use super::disk::{Disk, Inode, Loss, Operation};
use super::recorder;
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

/// A script that ran, with the recorded file operations.
pub(crate) struct History {
    pub(crate) log: Vec<Entry>,
    /// State of the model after each entry, by log index. The first one is before all entries.
    pub(crate) moments: Vec<Moment>,
    pub(crate) operations: Vec<Operation>,
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
        recorder::start();
        let parent = recorder::directory(checkpoints.path());
        let mut world = World::with(has_small_head, [&[], &[]]);
        let root = recorder::directory(world.directory.path());
        let mut moments = vec![moment(&world)];
        for (number, step) in steps(seed).iter().enumerate() {
            world.step(step);
            moments.resize(world.log.len() + 1, moment(&world));
            recorder::note(Operation::Durable(flushed(world.engine())));
            if random.chance(CHECKPOINTS_PERCENT) {
                let name = format!("{number}");
                let taken = world.engine().checkpoint(&checkpoints.path().join(&name)).unwrap();
                let index = taken.position.map_or(0, |position| position.index as usize);
                recorder::note(Operation::Durable(index));
                recorder::note(Operation::Checkpoint { entry: (parent, name.into()), index });
            }
        }
        // Closing the engine ends its background work.
        world.engine = None;
        let operations = recorder::stop();
        assert_is_whole(&operations, root, world.directory.path());
        let log = std::mem::take(&mut world.log);
        Self { log, moments, operations, root, has_small_head, selections: selections(seed) }
    }

    /// Draws the number of operations before a power cut. The cut is likely to be near an operation that is not a
    /// write.
    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        let count = self.operations.len() + 1;
        let at = random.below(count);
        let matters = |operation: &Operation| !matches!(operation, Operation::Write { .. });
        let near = self.operations[at.min(count - 2)..].iter().position(matters).unwrap_or_default();
        if random.chance(50) { (at + near + random.below(3)).min(count - 1) } else { at }
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

/// Asserts that the recorded operations produce the present directory, so that no operation was missed.
fn assert_is_whole(operations: &[Operation], root: Inode, path: &Path) {
    for operation in operations {
        assert!(!matches!(operation, Operation::Unknown), "a file was changed in a way that is not recorded");
    }
    let disk = Disk::after(operations, Loss::Nothing, &mut Random::new(0));
    let replayed = disk.files(root);
    let mut names = 0;
    for file in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
        names += 1;
        let content = std::fs::read(file.path()).unwrap();
        assert!(replayed.get(&file.file_name()).is_some_and(|replayed| *replayed == content), "{:?}", file.path());
    }
    assert_eq!(names, replayed.len(), "{:?}", replayed.keys());
    assert!(operations.iter().any(|operation| matches!(operation, Operation::Sync(_))), "no sync was recorded");
}
