//! The engine against a plain `Vec` of samples: whatever is applied, flushed, sealed, rolled up, restarted, expired and deleted,
//! every answer is equal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod lacking;
mod partitions;
mod samples;
mod threads;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use proto::{Answer, Fold, Selection, SeriesAnswer, Tier};
use storage_engine::SelectError;

use answers::{Sums, may_match, model_sums, selection, sums_of};
use world::{Dropped, Row, Step, World, step};

/// The answer is the model's; or it is refused, and that is right.
fn check(world: &World, selection: &Selection) -> Result<(), TestCaseError> {
    let window = selection.fold.window();
    let answer = match world.engine().select(selection) {
        Err(SelectError::LeftOut { horizon_ns, .. } | SelectError::GaugeSummed { horizon_ns }) => {
            prop_assert!(window.start_ns < horizon_ns && horizon_ns <= world.horizon_ns(Tier::Raw), "{:?}", selection);
            // Nothing is refused for what other series lack.
            let touched = Tier::Day.window_start_ns(Tier::Day.window_of(window.start_ns.saturating_add(1)));
            let hit = |row: &Row| touched < row.time_ns && row.time_ns <= world.horizon_ns(Tier::Raw);
            prop_assert!(world.rows.iter().any(|row| hit(row) && may_match(row, selection)), "{:?}", selection);
            return Ok(());
        }
        answer => answer.unwrap(),
    };
    for missing in &answer.missing {
        prop_assert!(missing.window.end_ns <= world.horizon_ns(Tier::Raw), "{:?}", missing);
    }
    let read = Answer::from_wire(answer.to_wire(), &selection.fold).unwrap();
    prop_assert_eq!((&read.missing, read.windows_read), (&answer.missing, answer.windows_read));
    let wanted = model_sums(&world.rows, selection, &answer.missing);
    prop_assert_eq!(sums_of(&read, selection), wanted, "{:?}", selection);
    Ok(())
}

/// The series are the model's.
fn check_series(world: &World, selection: &Selection) -> Result<(), TestCaseError> {
    let window = selection.fold.window();
    let answer = match world.engine().series(&selection.tenant, &selection.matchers, window) {
        Err(SelectError::LeftOut { name, .. }) => {
            prop_assert!(selection.matchers.iter().any(|matcher| matcher.name == name), "{:?}", selection);
            return Ok(());
        }
        answer => answer.unwrap(),
    };
    prop_assert_eq!(&SeriesAnswer::from_wire(answer.to_wire()).unwrap(), &answer);
    let in_series =
        Selection { fold: Fold::Points(window), group_by_series: true, group_by: Vec::new(), ..selection.clone() };
    let sums: Sums = model_sums(&world.rows, &in_series, &answer.missing);
    let wanted: BTreeSet<_> = sums.into_keys().map(|(group, _, _)| group).collect();
    let got: BTreeSet<BTreeMap<String, String>> =
        answer.series.iter().map(|set| set.iter().map(|l| (l.name.clone(), l.value.clone())).collect()).collect();
    if answer.left_out.is_empty() {
        prop_assert_eq!(got, wanted, "series of {:?}", selection);
        return Ok(());
    }
    prop_assert!(window.start_ns < world.horizon_ns(Tier::Raw), "{:?}", answer.left_out);
    // Of each series what is left, and nothing else.
    let is_left = |whole: &BTreeMap<String, String>, left: &BTreeMap<String, String>| {
        let gone = |name: &String| answer.left_out.iter().any(|label| label.name == *name);
        whole.iter().all(|(name, value)| left.get(name).map_or_else(|| gone(name), |of_left| of_left == value))
            && left.keys().all(|name| whole.contains_key(name))
    };
    prop_assert!(wanted.iter().all(|whole| got.iter().any(|left| is_left(whole, left))), "{:?} {:?}", got, wanted);
    prop_assert!(got.iter().all(|left| wanted.iter().any(|whole| is_left(whole, left))), "{:?} {:?}", got, wanted);
    Ok(())
}

/// What happens, what is asked then, and whether the head is small and labels are dropped.
type Case = (Vec<Step>, Vec<Selection>, bool, bool);

fn run(&(ref steps, ref selections, small_head, drops): &Case) -> Result<(), TestCaseError> {
    let dropped: Dropped = if drops { [&["zone"], &["zone", "region"]] } else { [&[], &[]] };
    let mut world = World::with(small_head, dropped);
    for step in steps {
        world.step(step);
    }
    let verified = world.engine().verify().unwrap();
    prop_assert_eq!(&verified.described, &Vec::<String>::new());
    for selection in selections {
        check(&world, selection)?;
        check_series(&world, selection)?;
    }
    // Whatever was lost by a power cut now was in the log.
    world.step(&Step::Crash);
    for selection in selections {
        check(&world, selection)?;
    }
    Ok(())
}

/// `VARVE_MODEL_CASES` and `VARVE_MODEL_SEED` make it longer, and repeat it.
#[test]
fn every_answer_is_the_models() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = number("VARVE_MODEL_CASES").unwrap_or(2000);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("VARVE_MODEL_SEED").unwrap_or(now.as_nanos() as u64);
    println!("{cases} cases; again with VARVE_MODEL_SEED={seed} VARVE_MODEL_CASES={cases}");
    let workers = std::thread::available_parallelism().map_or(1, |workers| workers.get() as u64);
    let work = |worker: u64| {
        let config = ProptestConfig {
            cases: cases.div_ceil(workers) as u32,
            max_shrink_iters: 2000,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(seed.wrapping_add(worker)).to_le_bytes());
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        let steps = prop::collection::vec(step(), 1..25);
        let selections = prop::collection::vec(selection(), 1..6);
        let case = (steps, selections, prop::bool::weighted(0.3), prop::bool::weighted(0.3));
        runner.run(&case, |case| run(&case)).map_err(|error| error.to_string())
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
