//! The engine, compared with a plain `Vec` of samples.
//!
//! After any sequence of appends, flushes, sealing, rollups, restarts, expiries and deletions, every response equals
//! the model's.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

mod cases;
mod checkpoints;
mod classes;
mod fleet;
mod known_samples;
mod label_drops;
mod missing;
mod partitions;
mod references;
mod replicas;
mod shared_budgets;
mod threads;
mod timelines;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto::label::PROFILE_TYPE_LABEL;
use proto::{
    Answer, Dictionary, Fold, KnownLocations, LocationSets, Selection, SeriesAnswer, SeriesQuery, StackDetail,
    StackFilter, Tier,
};
use storage_engine::SelectError;
use storage_model::answers::{
    Condition, Conditions, Sums, conditions, function_of, may_match, model_sums, selection, sums_of, unpassed_of,
};
use storage_model::rows::Row;
use storage_model::steps::{Step, step};
use storage_model::world::{Dropped, World};

/// Checks that the engine's answer equals the model's, or that the engine has a reason to refuse the selection.
fn check(world: &World, selection: &Selection, conditions: &Conditions) -> Result<(), TestCaseError> {
    let window = selection.fold.window();
    let (conditions, hundredths) = conditions;
    let known = Known::of(world, selection);
    let request = known.request(selection, conditions, known.count() * hundredths / 100);
    let (known, request, answer) = match world.engine().select(&request) {
        // The first request loads the missing locations into memory.
        Ok(answer) if answer.lacks_locations => {
            let known_before = request.locations.known;
            let known = Known::of(world, selection);
            prop_assert!(known_before != known.numbers(), "no location was missing: {:?}", selection);
            let request = known.request(selection, conditions, known.count());
            let answer = world.engine().select(&request);
            prop_assert!(!answer.as_ref().is_ok_and(|answer| answer.lacks_locations), "{:?}", selection);
            (known, request, answer)
        }
        answer => (known, request, answer),
    };
    let answer = match answer {
        Err(SelectError::DroppedName { horizon_ns, .. } | SelectError::GaugeSummed { horizon_ns }) => {
            prop_assert!(window.start_ns < horizon_ns && horizon_ns <= world.horizon_ns(Tier::Raw), "{:?}", selection);
            // The engine refuses a query only because of samples that the query itself could match.
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
    let read = Answer::from_wire(answer.to_wire(), &request).unwrap();
    prop_assert_eq!((&read.missing, read.windows_read), (&answer.missing, answer.windows_read));
    let (wanted, unpassed) = model_sums(&world.rows, &world.horizons, selection, conditions, &answer.missing);
    prop_assert_eq!(sums_of(&read, &request, &known.dictionary), wanted, "{:?} {:?}", selection, conditions);
    prop_assert_eq!(unpassed_of(&read, &request), unpassed, "{:?} {:?}", selection, conditions);
    if !conditions.is_empty() {
        // Stacks that do not meet the conditions are not in the response.
        prop_assert!(selection.stacks != StackDetail::None || read.nodes.len() == 1);
    }
    Ok(())
}

/// Locations that the engine has in memory.
struct Known {
    generation: u64,
    dictionary: Dictionary,
}

impl Known {
    fn of(world: &World, selection: &Selection) -> Self {
        let page = world.engine().locations(&selection.tenant, KnownLocations::default());
        assert_eq!((page.first, page.count as usize), (0, page.dictionary.locations.len()), "all are on one page");
        let half = KnownLocations { generation: page.generation, count: page.count / 2 };
        let rest = world.engine().locations(&selection.tenant, half);
        assert_eq!((rest.generation, rest.first, rest.count), (page.generation, half.count, page.count));
        let functions = |dictionary: &Dictionary| -> Vec<String> {
            (0..dictionary.locations.len()).map(|one| function_of(dictionary, one as u32).to_owned()).collect()
        };
        assert_eq!(
            functions(&rest.dictionary),
            functions(&page.dictionary)[half.count as usize..],
            "only the unknown locations"
        );
        Self { generation: page.generation, dictionary: page.dictionary }
    }

    fn count(&self) -> u32 {
        self.dictionary.locations.len() as u32
    }

    fn numbers(&self) -> KnownLocations {
        KnownLocations { generation: self.generation, count: self.count() }
    }

    /// Returns the selection of a client that knows the first `count` locations.
    fn request(&self, selection: &Selection, conditions: &[Condition], count: u32) -> Selection {
        let filter = |condition: &Condition| {
            let mut filter = StackFilter::new(condition.place, condition.is_negated, false);
            let named = |location: &u32| {
                condition.functions.iter().any(|name| name == function_of(&self.dictionary, *location))
            };
            (0..count).filter(named).for_each(|location| filter.insert(location));
            filter
        };
        let known = KnownLocations { generation: self.generation, count };
        let locations = LocationSets { known, filters: conditions.iter().map(filter).collect() };
        Selection { locations, ..selection.clone() }
    }
}

/// Checks that the engine lists the same series and label values as the model.
fn check_series(world: &World, selection: &Selection) -> Result<(), TestCaseError> {
    let window = selection.fold.window();
    let query =
        SeriesQuery { tenant: selection.tenant.clone(), matchers: selection.matchers.clone(), window, label: None };
    let answer = match world.engine().series(&query) {
        Err(SelectError::DroppedName { name, .. }) => {
            prop_assert!(selection.matchers.iter().any(|matcher| matcher.name == name), "{:?}", selection);
            return Ok(());
        }
        answer => answer.unwrap(),
    };
    prop_assert_eq!(&SeriesAnswer::from_wire(answer.to_wire()).unwrap(), &answer);
    let wanted = model_series(world, selection, &answer);
    let got: BTreeSet<BTreeMap<String, String>> = answer
        .series
        .iter()
        .map(|set| set.iter().map(|l| (l.name.to_string(), l.value.to_string())).collect())
        .collect();
    for name in ["service_name", "region", "zone", PROFILE_TYPE_LABEL, "thread_name", "no_such_label"] {
        check_values(world, selection, &SeriesQuery { label: Some(name.to_owned()), ..query.clone() })?;
    }
    if answer.dropped_labels.is_empty() {
        prop_assert_eq!(got, wanted, "series of {:?}", selection);
        return Ok(());
    }
    prop_assert!(window.start_ns < world.horizon_ns(Tier::Raw), "{:?}", answer.dropped_labels);
    // A listed series is a series of the model, possibly without labels that the answer reports as dropped.
    let is_left = |whole: &BTreeMap<String, String>, left: &BTreeMap<String, String>| {
        let gone = |name: &String| answer.dropped_labels.iter().any(|label| label.name == *name);
        whole.iter().all(|(name, value)| left.get(name).map_or_else(|| gone(name), |of_left| of_left == value))
            && left.keys().all(|name| whole.contains_key(name))
    };
    prop_assert!(wanted.iter().all(|whole| got.iter().any(|left| is_left(whole, left))), "{:?} {:?}", got, wanted);
    prop_assert!(got.iter().all(|left| wanted.iter().any(|whole| is_left(whole, left))), "{:?} {:?}", got, wanted);
    Ok(())
}

/// Returns the series of the model that match, outside the times that the answer reports as missing.
fn model_series(world: &World, selection: &Selection, answer: &SeriesAnswer) -> BTreeSet<BTreeMap<String, String>> {
    let fold = Fold::Points(selection.fold.window());
    let in_series = Selection { fold, group_by_series: true, group_by: Vec::new(), ..selection.clone() };
    let (sums, _): (Sums, _) = model_sums(&world.rows, &world.horizons, &in_series, &[], &answer.missing);
    sums.into_keys().map(|(group, _, _)| group).collect()
}

/// Checks that the engine lists all values of a label, or reports that a tier dropped the label.
fn check_values(world: &World, selection: &Selection, query: &SeriesQuery) -> Result<(), TestCaseError> {
    let name = query.label.as_ref().unwrap();
    let answer = world.engine().series(query).unwrap();
    prop_assert_eq!(&SeriesAnswer::from_wire(answer.to_wire()).unwrap(), &answer);
    prop_assert!(answer.series.is_empty());
    let series = model_series(world, selection, &answer);
    let wanted: BTreeSet<&str> = series.iter().filter_map(|series| series.get(name)).map(String::as_str).collect();
    if answer.dropped_labels.is_empty() {
        prop_assert!(answer.values.iter().eq(wanted), "values of {} in {:?}", name, selection);
        return Ok(());
    }
    prop_assert!(query.window.start_ns < world.horizon_ns(Tier::Raw), "{:?}", answer.dropped_labels);
    prop_assert!(answer.dropped_labels.iter().all(|label| label.name == *name), "{:?}", answer.dropped_labels);
    prop_assert!(
        answer.values.iter().all(|value| wanted.contains(value.as_str())),
        "values of {} in {:?}",
        name,
        selection
    );
    prop_assert!(answer.values.is_sorted());
    Ok(())
}

/// A generated test case.
#[derive(Clone, Debug)]
struct Case {
    steps: Vec<Step>,
    selections: Vec<(Selection, Conditions)>,
    has_small_head: bool,
    drops_labels: bool,
    /// True if series are listed after each step.
    lists_between: bool,
}

impl Case {
    fn any() -> impl Strategy<Value = Self> {
        let steps = prop::collection::vec(step(), 1..25);
        let selections = prop::collection::vec((selection(), conditions()), 1..6);
        let [rarely, also_rarely] = [prop::bool::weighted(0.3); 2];
        (steps, selections, rarely, also_rarely, prop::bool::ANY).prop_map(
            |(steps, selections, has_small_head, drops_labels, lists_between)| Self {
                steps,
                selections,
                has_small_head,
                drops_labels,
                lists_between,
            },
        )
    }
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let dropped: Dropped = if case.drops_labels { [&["zone"], &["zone", "region"]] } else { [&[], &[]] };
    let mut world = World::with(case.has_small_head, dropped);
    for (step, (selection, _)) in case.steps.iter().zip(case.selections.iter().cycle()) {
        world.step(step);
        // Later lists use what earlier ones have read.
        if case.lists_between {
            check_series(&world, selection)?;
        }
    }
    let verified = world.engine().verify().unwrap();
    prop_assert_eq!(&verified.described, &Vec::<String>::new());
    for (selection, conditions) in &case.selections {
        check(&world, selection, conditions)?;
        check_series(&world, selection)?;
    }
    // A power cut loses what is not flushed, and the log still has all of it.
    world.step(&Step::Crash);
    for (selection, conditions) in &case.selections {
        check(&world, selection, conditions)?;
        check_series(&world, selection)?;
    }
    Ok(())
}

#[test]
fn every_response_equals_that_of_the_model() {
    cases::check_all(2000, Case::any, run);
}
