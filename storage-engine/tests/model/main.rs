//! The engine against a plain `Vec` of samples: whatever is applied, flushed, sealed, rolled up, restarted, expired and deleted,
//! every answer is equal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod answers;
mod partitions;
mod samples;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto::{Answer, Fold, Selection, Tier};
use storage_engine::SelectError;

use answers::{Sums, model_sums, selection, sums_of};
use world::{Dropped, Step, World, step};

/// Cases in one run, `VARVE_MODEL_CASES` for more.
fn cases() -> u32 {
    std::env::var("VARVE_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2000)
}

/// The answer is the model's; or it is refused, and that is right.
fn check(world: &World, selection: &Selection) -> Result<(), TestCaseError> {
    let window = selection.fold.window();
    let answer = match world.engine().select(selection) {
        Err(SelectError::LeftOut { horizon_ns, .. } | SelectError::GaugeSummed { horizon_ns }) => {
            prop_assert!(window.start_ns < horizon_ns && horizon_ns <= world.horizon_ns(Tier::Raw), "{:?}", selection);
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
    // Of times that are partly gone, only the sums say what is missing.
    if window.start_ns < world.horizon_ns(Tier::Raw) {
        return Ok(());
    }
    let series = world.engine().series(&selection.tenant, &selection.matchers, window).unwrap().series;
    let in_series =
        Selection { fold: Fold::Points(window), group_by_series: true, group_by: Vec::new(), ..selection.clone() };
    let sums: Sums = model_sums(&world.rows, &in_series, &[]);
    let wanted: BTreeSet<_> = sums.into_keys().map(|(group, _, _)| group).collect();
    let got: BTreeSet<BTreeMap<String, String>> =
        series.iter().map(|set| set.iter().map(|l| (l.name.clone(), l.value.clone())).collect()).collect();
    prop_assert_eq!(got, wanted, "series of {:?}", selection);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn every_answer_is_the_models(
        steps in prop::collection::vec(step(), 1..25),
        selections in prop::collection::vec(selection(), 1..6),
        small_head in prop::bool::weighted(0.3),
        drops in prop::bool::weighted(0.3),
    ) {
        let dropped: Dropped = if drops { [&["zone"], &["zone", "region"]] } else { [&[], &[]] };
        let mut world = World::with(small_head, dropped);
        for step in &steps {
            world.step(step);
        }
        for selection in &selections {
            check(&world, selection)?;
            if !drops {
                check_series(&world, selection)?;
            }
        }
        // Whatever was lost by a power cut now was in the log.
        world.step(&Step::Crash);
        for selection in &selections {
            check(&world, selection)?;
        }
    }
}
