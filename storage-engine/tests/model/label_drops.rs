//! Changes of the labels that sums drop: from when on they hold, and that they survive restarts and snapshots.

use proto::entry::Deletion;
use proto::selection::Operation;
use proto::{Command, Fold, LocationSets, Matcher, Selection, SeriesQuery, StackDetail, TenantId, Tier, Window};
use storage_engine::{Engine, Outcome, SelectError};
use storage_model::samples::{DAY, Drawn, SECOND, T0};
use storage_model::steps::Step;
use storage_model::world::{Dropped, World, drop_labels};

const PERIOD: i64 = 8 * DAY;

fn dropped(world: &World) -> [Vec<String>; 2] {
    (*world.engine().dropped_labels(&TenantId::default_tenant()).0).clone()
}

fn change(world: &mut World, dropped: Dropped, revision: u64) {
    world.propose(drop_labels(&TenantId::default_tenant(), dropped, revision));
}

/// Returns the zones of the series with samples in a period, counted from that of [`T0`]. They are read from hours.
fn zones(engine: &Engine, period: i64) -> Vec<String> {
    let start_ns = (T0.div_euclid(PERIOD) + period) * PERIOD;
    let window = Window { start_ns, end_ns: start_ns + PERIOD };
    let query = SeriesQuery { tenant: TenantId::default_tenant(), matchers: Vec::new(), window, label: None };
    let listed = engine.series(&query).unwrap();
    listed.series.iter().map(|series| series.get("zone").to_owned()).collect()
}

/// Appends a sample in a period, counted from that of [`T0`].
fn append(world: &mut World, period: i64) {
    world.step(&Step::Append(vec![Drawn::simple(1, period * PERIOD / SECOND, 1, 1)], None));
}

/// Returns the time from the begin of a period to that of another, counted from that of [`T0`].
fn window(first: i64, end: i64) -> Window {
    let start_ns = (T0.div_euclid(PERIOD) + first) * PERIOD;
    Window { start_ns, end_ns: start_ns + (end - first) * PERIOD }
}

fn zone() -> Vec<Matcher> {
    vec![Matcher { name: "zone".to_owned(), operation: Operation::Equal, value: "b".to_owned() }]
}

/// Returns the number of samples that a query selects.
fn select(
    world: &World,
    windows: Vec<Window>,
    matchers: Vec<Matcher>,
    group_by: &[&str],
    group_by_series: bool,
) -> Result<u64, SelectError> {
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers,
        fold: Fold::Sum(windows),
        group_by: group_by.iter().map(|&name| name.to_owned()).collect(),
        group_by_series,
        stacks: StackDetail::None,
        locations: LocationSets::default(),
    };
    world.engine().select(&selection).map(|answer| answer.samples)
}

#[test]
fn a_change_of_dropped_labels_holds_from_the_next_period_without_samples() {
    for restart in [Step::Restart, Step::Crash, Step::Checkpoint] {
        let mut world = World::default();
        append(&mut world, 0);
        change(&mut world, [&["zone"], &["zone"]], 3);
        append(&mut world, 0);
        world.step(&Step::Wait(PERIOD / SECOND));
        append(&mut world, 1);
        world.step(&restart);
        assert_eq!(dropped(&world), [["zone"], ["zone"]]);
        change(&mut world, [&[], &[]], 4);
        append(&mut world, 1);
        world.step(&Step::Wait(PERIOD / SECOND));
        append(&mut world, 2);
        world.step(&Step::Flush);
        world.step(&restart);
        assert_eq!(dropped(&world), [[""; 0], [""; 0]]);
        world.step(&Step::Compact);
        world.expire(Tier::Minute, T0 + 3 * PERIOD);
        assert_eq!([0, 1, 2].map(|period| zones(world.engine(), period)), [["b"], [""], ["b"]], "{restart:?}");
        assert_eq!(world.engine().verify().unwrap().faults, 0);
    }
}

#[test]
fn dropped_labels_of_a_tenant_without_samples_hold_from_the_beginning() {
    let mut world = World::default();
    change(&mut world, [&["zone"], &[]], 1);
    world.step(&Step::Flush);
    world.step(&Step::Crash);
    append(&mut world, 0);
    world.step(&Step::Wait(PERIOD / SECOND));
    world.step(&Step::Compact);
    world.expire(Tier::Minute, T0 + PERIOD);
    assert_eq!(zones(world.engine(), 0), [""]);
}

#[test]
fn late_samples_of_an_earlier_period_keep_the_labels_of_that_period() {
    let mut world = World::default();
    append(&mut world, 0);
    change(&mut world, [&["zone"], &["zone"]], 1);
    world.step(&Step::Wait(PERIOD / SECOND));
    append(&mut world, 1);
    world.step(&Step::Compact);
    world.step(&Step::Append(vec![Drawn::simple(2, 60, 1, 1)], None));
    world.step(&Step::Compact);
    world.expire(Tier::Minute, T0 + 2 * PERIOD);
    let mut old = zones(world.engine(), 0);
    old.sort();
    assert_eq!((old, zones(world.engine(), 1)), (vec!["b".to_owned(); 2], vec![String::new()]));
}

#[test]
fn an_older_revision_than_the_last_is_ignored() {
    let mut world = World::default();
    change(&mut world, [&["zone"], &[]], 7);
    change(&mut world, [&[], &["zone"]], 6);
    assert_eq!(dropped(&world), [vec!["zone".to_owned()], Vec::new()]);
    world.step(&Step::Flush);
    world.step(&Step::Crash);
    change(&mut world, [&[], &[]], 6);
    assert_eq!(dropped(&world), [vec!["zone".to_owned()], Vec::new()]);
    change(&mut world, [&[], &[]], 8);
    assert_eq!(dropped(&world), [[""; 0], [""; 0]]);
}

// A partition of days has sixteen periods, and those before a change still have the label.
#[test]
fn days_before_a_change_still_answer_by_the_label() {
    let mut world = World::default();
    append(&mut world, 0);
    change(&mut world, [&["zone"], &[]], 1);
    world.step(&Step::Wait(PERIOD / SECOND));
    append(&mut world, 1);
    change(&mut world, [&[], &[]], 2);
    world.step(&Step::Wait(PERIOD / SECOND));
    append(&mut world, 2);
    world.step(&Step::Wait(PERIOD / SECOND));
    world.step(&Step::Compact);
    world.expire(Tier::Minute, T0 + 3 * PERIOD);
    world.expire(Tier::Hour, T0 + 3 * PERIOD);
    let select = |windows: Vec<Window>, matchers: Vec<Matcher>, group_by: &[&str], group_by_series: bool| {
        select(&world, windows, matchers, group_by, group_by_series)
    };
    let [first, second, both] = [window(0, 1), window(1, 2), window(0, 2)].map(|window| vec![window]);
    // The period between these windows lacks the label, but they have it.
    let apart = vec![window(0, 1), window(2, 3)];
    for windows in [&first, &apart] {
        let samples = windows.len() as u64;
        assert_eq!(select(windows.clone(), zone(), &[], false).unwrap(), samples);
        assert_eq!(select(windows.clone(), Vec::new(), &["zone"], false).unwrap(), samples);
        assert_eq!(select(windows.clone(), Vec::new(), &[], true).unwrap(), samples);
    }
    assert_eq!([&first, &second, &both].map(|of| select(of.clone(), Vec::new(), &[], false).unwrap()), [1, 1, 2]);
    for windows in [&second, &both] {
        let by_zone = select(windows.clone(), zone(), &[], false);
        let grouped = select(windows.clone(), Vec::new(), &["zone"], false);
        for refused in [by_zone, grouped, select(windows.clone(), Vec::new(), &[], true)] {
            assert!(matches!(refused, Err(SelectError::DroppedName { ref name, .. }) if name == "zone"), "{refused:?}");
        }
    }
    let lacks = |period: i64| {
        let (tenant, window) = (TenantId::default_tenant(), window(period, period + 1));
        let query = SeriesQuery { tenant, matchers: Vec::new(), window, label: None };
        world.engine().series(&query).unwrap().dropped_labels.len()
    };
    assert_eq!([0, 1, 2].map(lacks), [0, 1, 0]);
    // Deletions are decided in the same way.
    let mut delete = |first: i64, end: i64| {
        let window = window(first, end);
        world.propose(Command::Delete(Deletion { tenant: TenantId::default_tenant(), matchers: zone(), window }))
    };
    for (first, end) in [(1, 2), (0, 2)] {
        assert!(matches!(delete(first, end), Outcome::Undecidable { tier: Tier::Day, .. }));
    }
    assert_eq!(delete(0, 1), Outcome::Deleted { samples: 0, windows: 1 });
}

#[test]
fn a_query_across_a_change_reads_finer_sums_where_the_label_is_missing() {
    let mut world = World::default();
    append(&mut world, 0);
    change(&mut world, [&["zone"], &[]], 1);
    world.step(&Step::Wait(PERIOD / SECOND));
    append(&mut world, 1);
    world.step(&Step::Wait(PERIOD / SECOND));
    world.step(&Step::Compact);
    // The first period has only days, which have the label. The second one has minutes, and lacks the label in hours.
    world.expire(Tier::Minute, window(0, 1).end_ns);
    world.expire(Tier::Hour, window(0, 1).end_ns);
    for windows in [vec![window(0, 2)], vec![window(0, 1), window(1, 2)]] {
        assert_eq!(select(&world, windows.clone(), zone(), &[], false).unwrap(), 2);
        assert_eq!(select(&world, windows.clone(), Vec::new(), &["zone"], false).unwrap(), 2);
        assert_eq!(select(&world, windows, Vec::new(), &[], true).unwrap(), 2);
    }
    // The same holds for deletions: in the second period, samples decide.
    let deletion = Deletion { tenant: TenantId::default_tenant(), matchers: zone(), window: window(0, 2) };
    assert_eq!(world.propose(Command::Delete(deletion)), Outcome::Deleted { samples: 1, windows: 1 });
}
