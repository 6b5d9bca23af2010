//! Times and labels that expired: answers report them as missing, and are computed from the tiers that are kept.

use proto::answer::DroppedLabel;
use proto::selection::Operation;
use proto::{ArcStr, Fold, Matcher, Selection, SeriesAnswer, SeriesQuery, StackDetail, TenantId, Tier, Window};
use storage_engine::SelectError;
use storage_model::samples::{DAY, Drawn, SECOND, T0, batch_of};
use storage_model::steps::Step;
use storage_model::world::{Dropped, World};

/// Returns a world with samples of a service in the first half minute, and a sample of another service much later.
fn world(service: u8, dropped: Dropped) -> World {
    let mut world = World::with(false, dropped);
    world.step(&Step::Append((0..30).map(|second| Drawn::simple(service, second, 1, 5)).collect(), None));
    world.step(&Step::Wait(100_000));
    world.step(&Step::Append(vec![Drawn::simple(1, 100_000, 1, 1)], None));
    world.step(&Step::Compact);
    world
}

fn of_service(service: u8) -> Vec<Matcher> {
    vec![Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value: format!("s{service}") }]
}

fn seconds(start: i64, end: i64) -> Window {
    Window { start_ns: T0 + start * SECOND, end_ns: T0 + end * SECOND }
}

fn list(world: &World, service: u8, window: Window) -> SeriesAnswer {
    let tenant = TenantId::default_tenant();
    world.engine().series(&SeriesQuery { tenant, matchers: of_service(service), window, label: None }).unwrap()
}

fn values(world: &World, label: &str, matchers: Vec<Matcher>, window: Window) -> SeriesAnswer {
    let tenant = TenantId::default_tenant();
    world.engine().series(&SeriesQuery { tenant, matchers, window, label: Some(label.to_owned()) }).unwrap()
}

fn selection(service: u8, fold: Fold, group_by: &[&str]) -> Selection {
    Selection {
        tenant: TenantId::default_tenant(),
        matchers: of_service(service),
        fold,
        group_by: group_by.iter().map(|&name| name.to_owned()).collect(),
        group_by_series: false,
        stacks: StackDetail::Full,
        locations: proto::LocationSets::default(),
    }
}

// Regression: a query for half a minute of which only minutes were kept listed no series and gave no reason.
#[test]
fn a_list_reports_missing_times_only_if_they_have_more_series() {
    let mut world = world(0, [&[], &[]]);
    world.expire(Tier::Raw, T0 + 90_000 * SECOND);
    let part = list(&world, 0, seconds(5, 20));
    assert_eq!((part.series.len(), part.missing.len()), (0, 1));
    assert_eq!((part.missing[0].window, part.missing[0].finest), (seconds(5, 20), Tier::Minute));
    // The other service has no samples at that time, so nothing is missing for it.
    let other = list(&world, 1, seconds(5, 20));
    assert_eq!((other.series.len(), other.missing.len()), (0, 0));
    let whole = list(&world, 0, Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + DAY / 4 });
    assert_eq!((whole.series.len(), whole.missing.len()), (1, 0));
}

#[test]
fn a_list_has_labels_that_any_tier_keeps_and_reports_the_dropped() {
    let mut world = world(0, [&["zone"], &["zone", "region"]]);
    world.expire(Tier::Raw, T0 + 90_000 * SECOND);
    let day = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + DAY };
    let kept = list(&world, 0, day);
    assert_eq!((kept.series[0].get("zone"), kept.dropped_labels.len()), ("a", 0));
    world.expire(Tier::Minute, T0 + 90_000 * SECOND);
    let lost = list(&world, 0, day);
    assert_eq!((lost.series[0].get("zone"), lost.series[0].get("service_name")), ("", "s0"));
    assert!(lost.dropped_labels.contains(&DroppedLabel { tier: Tier::Day, name: "zone".to_owned() }), "{lost:?}");
    // Regression: the values of a label that every remaining tier dropped were an empty list without a reason.
    let of_zone = values(&world, "zone", of_service(0), day);
    assert_eq!((of_zone.values, of_zone.missing.len()), (Vec::<ArcStr>::new(), 0));
    assert_eq!(of_zone.dropped_labels, [DroppedLabel { tier: Tier::Day, name: "zone".to_owned() }]);
    let of_other = values(&world, "zone", of_service(1), day);
    assert_eq!(of_other.dropped_labels, [], "the other service has no samples on this day");
    let services = values(&world, "service_name", of_service(0), day);
    assert_eq!((services.values, services.dropped_labels.len()), (vec![ArcStr::from("s0")], 0));
}

// Regression: the list was refused because of a matcher, although hours have the label of this matcher.
#[test]
fn values_are_listed_from_the_tiers_that_have_the_labels_of_matchers() {
    let mut world = world(0, [&["zone"], &["zone", "region"]]);
    world.expire(Tier::Minute, T0 + 90_000 * SECOND);
    // The last hour is read first, from the hours. They lack the zone, so the days are tried.
    let window = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + DAY + DAY / 24 };
    let matcher = Matcher { name: "region".to_owned(), operation: Operation::Equal, value: "eu".to_owned() };
    let of_zone = values(&world, "zone", vec![matcher], window);
    assert_eq!((of_zone.values, of_zone.missing.len()), (Vec::<ArcStr>::new(), 0));
    assert_eq!(of_zone.dropped_labels, [DroppedLabel { tier: Tier::Hour, name: "zone".to_owned() }]);
}

// Regression: a dropped label was an error if another matcher was about attributes of samples.
#[test]
fn a_matcher_on_attributes_does_not_turn_an_incomplete_list_into_an_error() {
    let mut world = World::with(false, [&["zone"], &["zone"]]);
    // No old sample has a thread name.
    world.step(&Step::Append(vec![Drawn { thread: 0, ..Drawn::simple(0, 0, 1, 5) }], None));
    world.step(&Step::Wait(100_000));
    world.step(&Step::Append(vec![Drawn::simple(1, 100_000, 1, 1)], None));
    world.step(&Step::Compact);
    world.expire(Tier::Minute, T0 + 90_000 * SECOND);
    let matchers = |value: &str| {
        vec![Matcher { name: "thread_name".to_owned(), operation: Operation::NotEqual, value: value.to_owned() }]
    };
    let all = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + 2 * DAY };
    let listed = values(&world, "zone", matchers("x"), all);
    assert_eq!((listed.values, listed.dropped_labels.len(), listed.missing.len()), (vec![ArcStr::from("b")], 1, 0));
    let listed = values(&world, "zone", matchers("t1"), all);
    assert_eq!((listed.values.len(), listed.dropped_labels.len()), (0, 1), "the only thread is excluded");
    let listed = values(&world, "service_name", matchers("t1"), all);
    assert_eq!((listed.values, listed.dropped_labels.len()), (vec![ArcStr::from("s0")], 0));
}

// Regression: the stacks of all partitions were loaded to list the values of an attribute, which no list has.
#[test]
fn values_of_an_attribute_name_are_listed_without_dictionaries() {
    let mut world = world(0, [&[], &[]]);
    world.step(&Step::Restart);
    let all = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + 2 * DAY };
    let services = values(&world, "service_name", Vec::new(), all);
    assert_eq!(services.values.len(), 2);
    let before = world.engine().dictionary_bytes();
    let listed = values(&world, "thread_name", Vec::new(), all);
    assert_eq!((listed.values.len(), listed.attribute_names), (0, vec!["thread_name".to_owned()]));
    assert_eq!(world.engine().dictionary_bytes(), before);
}

// Regression: windows of gauges were kept but never read.
#[test]
fn a_gauges_last_point_comes_from_windows_once_samples_expired() {
    let mut world = world(3, [&[], &[]]);
    world.expire(Tier::Raw, T0 + 90_000 * SECOND);
    let day = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + DAY };
    let last = world.engine().select(&selection(3, Fold::Last(day), &[])).unwrap();
    assert_eq!((last.bucket_times_ns, last.cells[0].sum, last.missing.len()), (vec![T0 + 29 * SECOND], 5, 0));
    assert_eq!((last.windows_read.days, last.samples, last.series), (1, 1, 1));
    // Only the last point is kept, so a query for all points reports that it needs raw samples.
    let points = world.engine().select(&selection(3, Fold::Points(day), &[])).unwrap();
    assert_eq!((points.cells.len(), points.missing[0].finest), (0, Tier::Raw));
}

// Regression: a query was refused because samples of another series were missing.
#[test]
fn a_query_is_refused_only_if_its_own_series_miss_samples() {
    let mut world = world(0, [&[], &[]]);
    world.expire(Tier::Raw, T0 + 90_000 * SECOND);
    let all = Window { start_ns: T0 - DAY, end_ns: T0 + 2 * DAY };
    let fold = || Fold::Sum(vec![all]);
    let recent = world.engine().select(&selection(1, fold(), &["thread_name"])).unwrap();
    assert_eq!((recent.samples, recent.missing.len(), recent.groups[0].get("thread_name")), (1, 0, "t1"));
    let old = world.engine().select(&selection(0, fold(), &["thread_name"]));
    assert!(matches!(old, Err(SelectError::DroppedName { ref name, .. }) if name == "thread_name"), "{old:?}");

    // Regression: with many windows and gaps between them, all samples counted as missing.
    let part_ns = (all.end_ns - all.start_ns) / 200;
    let windows = || {
        let starts = (0..200).map(|part| all.start_ns + part * part_ns);
        Fold::Sum(starts.map(|start_ns| Window { start_ns, end_ns: start_ns + part_ns - SECOND }).collect())
    };
    let recent = world.engine().select(&selection(1, windows(), &["thread_name"])).unwrap();
    assert_eq!((recent.samples, recent.missing.len(), recent.groups[0].get("thread_name")), (1, 0, "t1"));
    let old = world.engine().select(&selection(0, windows(), &["thread_name"]));
    assert!(matches!(old, Err(SelectError::DroppedName { ref name, .. }) if name == "thread_name"), "{old:?}");
}

// Regression: the class with the higher number was taken for the one with the newer points.
#[test]
fn the_last_point_is_the_newest_of_all_retention_classes() {
    let mut world = World::default();
    let mut old = batch_of(&[Drawn::simple(3, 0, 1, 7)], None);
    old.retention_class = 1;
    world.append_whole(old);
    world.append_whole(batch_of(&[Drawn::simple(3, 100, 2, 8)], None));
    let last = world.engine().select(&selection(3, Fold::Last(seconds(-10, 200)), &[])).unwrap();
    assert_eq!((last.bucket_times_ns, last.cells.len(), last.cells[0].sum), (vec![T0 + 100 * SECOND], 1, 8));
    // Two points of the same time, in two classes, are both the last, so they add up.
    let mut same = batch_of(&[Drawn::simple(3, 100, 2, 30)], None);
    same.retention_class = 1;
    world.append_whole(same);
    let last = world.engine().select(&selection(3, Fold::Last(seconds(-10, 200)), &[])).unwrap();
    assert_eq!((last.cells.len(), last.cells[0].sum, last.series), (1, 38, 1));
}
