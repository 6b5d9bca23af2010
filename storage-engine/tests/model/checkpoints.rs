//! A checkpoint holds the state as of one position, and an engine that is opened on it continues like the original.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proto::Selection;
use storage_engine::{Config, Engine, EngineError, LogBarrier, Position, stored_position};
use storage_model::answers::{Conditions, conditions, selection};
use storage_model::samples::{Drawn, SECOND, T0, batch_of};
use storage_model::steps::{Step, step};
use storage_model::world::{World, config, listing};

use crate::{check, check_series};

#[derive(Clone, Debug)]
struct Case {
    before: Vec<Step>,
    after: Vec<Step>,
    selections: Vec<(Selection, Conditions)>,
    has_small_head: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let before = prop::collection::vec(step(), 0..12);
    let after = prop::collection::vec(step(), 0..12);
    let selections = prop::collection::vec((selection(), conditions()), 1..4);
    (before, after, selections, prop::bool::weighted(0.3))
        .prop_map(|(before, after, selections, has_small_head)| Case { before, after, selections, has_small_head })
}

fn check_all(world: &World, case: &Case) -> Result<(), TestCaseError> {
    for (selection, conditions) in &case.selections {
        check(world, selection, conditions)?;
        check_series(world, selection)?;
    }
    Ok(())
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let mut world = World::with(case.has_small_head, [&[], &[]]);
    case.before.iter().for_each(|step| world.step(step));
    let mut copy = world.at_checkpoint();
    let of_original = world.engine().content().unwrap();
    // The original goes on before the checkpoint is opened: its files must not change under the checkpoint.
    case.after.iter().for_each(|step| world.step(step));
    copy.reopen();
    prop_assert_eq!(copy.engine().content().unwrap(), of_original);
    check_all(&copy, case)?;
    copy.continue_as(&world);
    check_all(&copy, case)?;
    prop_assert_eq!(copy.engine().content().unwrap(), world.engine().content().unwrap());
    prop_assert_eq!(copy.engine().verify().unwrap().described, Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_checkpoint_equals_the_model_and_continues_like_the_original(case in case()) {
        run(&case)?;
    }
}

#[test]
fn the_position_of_a_checkpoint_is_read_without_changing_a_file() {
    let mut world = World::default();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint");
    assert!(stored_position(&folder.path().join("absent")).is_err());
    world.step(&Step::Append(vec![Drawn::simple(0, 1, 1, 5)], None));
    world.step(&Step::Append(vec![Drawn::simple(1, 2, 1, 5)], None));
    let written = world.engine().checkpoint(&checkpoint).unwrap();
    let before = listing(&checkpoint);
    let read = stored_position(&checkpoint).unwrap();
    assert_eq!(read, written);
    assert_eq!(read.position.unwrap().index, 2);
    assert_eq!(listing(&checkpoint), before);
}

#[test]
fn the_content_differs_if_one_value_does() {
    let with = |value: i64| {
        let mut world = World::default();
        world.step(&Step::Append(vec![Drawn::simple(0, 1, 1, value), Drawn::simple(1, 900, 1, 5)], Some(1)));
        world.engine().content().unwrap()
    };
    assert_eq!(with(7), with(7));
    assert_eq!((with(7).samples, with(7).position), (2, with(8).position));
    assert_ne!(with(7).signature, with(8).signature);
}

/// A log that has synced the entries up to an index. Waiting for a later one fails, as if the log had failed.
fn log(synced: &Arc<AtomicU64>) -> LogBarrier {
    let synced = Arc::clone(synced);
    LogBarrier::new(move |index| {
        let synced = synced.load(Ordering::Relaxed);
        if index <= synced { Ok(()) } else { Err(format!("synced up to {synced}").into()) }
    })
}

fn index(position: Option<Position>) -> u64 {
    position.map_or(0, |position| position.index)
}

#[test]
fn nothing_is_written_before_the_log_has_synced_it() {
    let folder = tempfile::tempdir().unwrap();
    let synced = Arc::new(AtomicU64::new(1));
    let config = Config { barrier: log(&synced), ..config(folder.path()) };
    let engine = Engine::open(config.clone()).unwrap();
    let append = |index: u64| {
        let batch = batch_of(&[Drawn::simple(0, index as i64, 1, 5)], None);
        let entry = proto::Entry { proposed_at_ns: T0, command: proto::Command::Append(Arc::new(batch)) };
        engine.apply(Position { index, log_id: vec![index as u8].into() }, &entry)
    };
    let unsynced = |error: EngineError| matches!(error, EngineError::Unsynced { index: 2.., .. });
    append(1).unwrap();
    assert_eq!(index(engine.flush().unwrap().position), 1);
    // A majority without this replica has synced entry 2, so the entry is applied.
    append(2).unwrap();
    assert!(unsynced(engine.flush().unwrap_err()));
    assert!(unsynced(engine.compact().unwrap_err()));
    assert!(unsynced(engine.checkpoint(&folder.path().join("checkpoint")).unwrap_err()));
    assert!(unsynced(engine.content().unwrap_err()));
    assert_eq!(index(engine.flushed()), 1);
    let position = || Position { index: 3, log_id: vec![3].into() };
    let command =
        proto::Command::Expire { tier: proto::Tier::Raw, retention_class: 0, before_ns: T0 + 86_400 * SECOND };
    let expiry = proto::Entry { proposed_at_ns: T0, command };
    assert!(unsynced(engine.apply(position(), &expiry).unwrap_err()));
    drop(engine);
    assert_eq!(index(stored_position(folder.path()).unwrap().position), 1, "the state is as of the synced entry");
    synced.store(3, Ordering::Relaxed);
    let engine = Engine::open(config).unwrap();
    assert_eq!(index(engine.applied()), 1);
}
