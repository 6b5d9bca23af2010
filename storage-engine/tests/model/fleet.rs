//! A partition with so many series that several threads read it. Sums and lists equal those of a plain loop over the
//! samples, from the head and from sealed chunks, whichever part of the series has samples in the window.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::label::PROFILE_TYPE_LABEL;
use proto::{
    Batch, Dictionary, Fold, FramePlace, Label, LabelSet, LocationSets, Samples, Selection, SeriesQuery, SeriesSamples,
    StackDetail, StackFilter, StackPair, TenantId, Window,
};
use storage_engine::SelectError;
use storage_model::samples::{SECOND, T0};
use storage_model::steps::Step;
use storage_model::world::World;

/// Enough series for several threads.
const PODS: i64 = 20_000;
const SERVICES: i64 = 7;
const MINUTE: i64 = 60 * SECOND;

/// Samples of a pod, with their times in nanoseconds since 1970 and their values. Each pod has other times in a minute.
fn samples_of(pod: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..1 + pod % 3).map(move |i| (T0 - MINUTE + (pod * 7_919 + i * 20_011) % 60_000 * 1_000_000, 1 + (pod + i) % 5))
}

fn service_of(pod: i64) -> String {
    format!("service-{}", pod % SERVICES)
}

fn name_of(pod: i64) -> String {
    // Their order is not that of the series.
    format!("pod-{}", pod * 7_919 % PODS)
}

fn batch(pods: std::ops::Range<i64>) -> Batch {
    let tenant = TenantId::default_tenant();
    let mut dictionary = Dictionary::default();
    let pair = dictionary.intern_pair(StackPair { user: 0, kernel: 0 });
    let set = dictionary.intern_attributes(Vec::new());
    let of_pod = |pod: i64| {
        let labels = LabelSet::new(vec![
            Label::new(PROFILE_TYPE_LABEL, "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
            Label::new("service_name", service_of(pod)),
            Label::new("pod", name_of(pod)),
        ]);
        let mut samples = Samples::default();
        samples_of(pod).for_each(|(time, value)| samples.push(time, pair, value, set));
        samples.sort_by_time();
        SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }
    };
    let series = pods.map(of_pod).collect();
    Batch { tenant, id: None, retention_class: 0, dictionary, series }
}

/// Windows that have samples of all pods, of some, and of none.
fn windows() -> Vec<Window> {
    let window = |(from, to): (i64, i64)| Window { start_ns: T0 - MINUTE + from, end_ns: T0 - MINUTE + to };
    let edges = [(-SECOND, MINUTE), (0, 30 * SECOND), (7 * SECOND + 1, 8 * SECOND), (20 * SECOND, 20 * SECOND + 1)];
    edges.into_iter().chain([(-MINUTE, -SECOND)]).map(window).collect()
}

/// Filters of stacks. All stacks are empty, so a filter says whether they pass.
const FILTERS: [Option<bool>; 3] = [None, Some(true), Some(false)];

fn selection(window: Window, label: Option<&str>, stacks: StackDetail, passes: Option<bool>) -> Selection {
    let filter = |has_empty| StackFilter::new(FramePlace::Leaf, false, has_empty);
    Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![window]),
        group_by: label.into_iter().map(str::to_owned).collect(),
        group_by_series: false,
        stacks,
        locations: LocationSets { filters: passes.map(filter).into_iter().collect(), ..LocationSets::default() },
    }
}

fn is_in(window: Window, time: i64) -> bool {
    window.start_ns < time && time <= window.end_ns
}

/// Checks the sums by service, by pod, and of all pods together.
fn check_sums(world: &World, window: Window) {
    for label in [None, Some("service_name"), Some("pod")] {
        let mut expected: BTreeMap<String, i128> = BTreeMap::new();
        for pod in 0..PODS {
            let group = match label {
                None => String::new(),
                Some("pod") => name_of(pod),
                Some(_) => service_of(pod),
            };
            for (_, value) in samples_of(pod).filter(|(time, _)| is_in(window, *time)) {
                *expected.entry(group.clone()).or_default() += i128::from(value);
            }
        }
        let in_window = |pod: i64| samples_of(pod).filter(|(time, _)| is_in(window, *time)).count() as u64;
        let stacks = [StackDetail::None, StackDetail::Full];
        for (stacks, filter) in stacks.into_iter().flat_map(|stacks| FILTERS.map(|filter| (stacks, filter))) {
            let answer = world.engine().select(&selection(window, label, stacks, filter)).unwrap();
            let group = |group: u32| answer.groups[group as usize].get(label.unwrap_or_default()).to_owned();
            let sums: BTreeMap<String, i128> = answer.cells.iter().map(|cell| (group(cell.group), cell.sum)).collect();
            let unpassed: BTreeSet<String> = answer.unpassed.iter().map(|unpassed| group(unpassed.group)).collect();
            assert_eq!((sums.len(), unpassed.len()), (answer.cells.len(), answer.unpassed.len()));
            let case = format!("{label:?}, {stacks:?}, {filter:?}, {window:?}");
            match filter {
                Some(false) => {
                    assert_eq!((sums.len(), unpassed.iter().eq(expected.keys())), (0, true), "{case}");
                }
                _ => assert_eq!((&sums, unpassed.len()), (&expected, 0), "{case}"),
            }
            assert_eq!(answer.samples, (0..PODS).map(in_window).sum::<u64>(), "{case}");
            assert_eq!(answer.series, (0..PODS).filter(|pod| in_window(*pod) > 0).count() as u64, "{case}");
        }
    }
}

/// Checks the list of series, and of the values of each label.
fn check_lists(world: &World, window: Window) {
    let has_samples = |pod: &i64| samples_of(*pod).any(|(time, _)| is_in(window, time));
    let list = |label: Option<&str>| {
        let label = label.map(str::to_owned);
        let query = SeriesQuery { tenant: TenantId::default_tenant(), matchers: Vec::new(), window, label };
        world.engine().series(&query).unwrap()
    };
    let pods: BTreeSet<String> = (0..PODS).filter(has_samples).map(name_of).collect();
    let services: BTreeSet<String> = (0..PODS).filter(has_samples).map(service_of).collect();
    let series = list(None).series;
    let listed: BTreeSet<String> = series.iter().map(|labels| labels.get("pod").to_owned()).collect();
    assert!(series.is_sorted());
    assert_eq!((listed.len(), &listed), (series.len(), &pods), "{window:?}");
    for (label, expected) in [("pod", pods), ("service_name", services)] {
        let values: Vec<String> = list(Some(label)).values.iter().map(ToString::to_string).collect();
        assert_eq!(values, expected.into_iter().collect::<Vec<_>>(), "{label}, {window:?}");
    }
}

#[test]
fn a_fleet_read_by_several_threads_has_the_sums_of_its_samples() {
    let mut world = World::default();
    for first in (0..PODS).step_by(500) {
        world.append_whole(batch(first..first + 500));
    }
    for step in [None, Some(Step::Flush), Some(Step::Compact), Some(Step::Restart)] {
        step.iter().for_each(|step| world.step(step));
        for window in windows() {
            check_sums(&world, window);
            check_lists(&world, window);
        }
        // A caller that goes away ends the work of all threads.
        let looks = AtomicUsize::new(0);
        let is_wanted = || looks.fetch_add(1, Ordering::Relaxed) < 9000;
        let of_pods = selection(windows()[0], Some("pod"), StackDetail::None, None);
        let cancelled = world.engine().select_while(&of_pods, &is_wanted);
        assert!(matches!(cancelled, Err(SelectError::Cancelled)), "{cancelled:?}");
        assert!(looks.into_inner() < 9000 + 10, "work goes on without a caller");
    }
}
