//! Changes of the labels that sums drop: from when on they hold, and that they survive restarts and snapshots.

use proto::entry::Deletion;
use proto::selection::Operation;
use proto::{Command, Fold, LocationSets, Matcher, Selection, SeriesQuery, StackDetail, TenantId, Tier, Window};
use storage_engine::{Engine, Outcome, SelectError};
use storage_model::samples::{DAY, Drawn, SECOND, T0};
use storage_model::world::{Dropped, Step, World, drop_labels};

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
    world.step(&Step::Wait(PERIOD / SECOND));
    world.step(&Step::Compact);
    world.expire(Tier::Minute, T0 + 2 * PERIOD);
    world.expire(Tier::Hour, T0 + 2 * PERIOD);
    let zone = || vec![Matcher { name: "zone".to_owned(), operation: Operation::Equal, value: "b".to_owned() }];
    let select = |period: i64, matchers: Vec<Matcher>, group_by_series: bool| {
        let start_ns = (T0.div_euclid(PERIOD) + period) * PERIOD;
        let selection = Selection {
            tenant: TenantId::default_tenant(),
            matchers,
            fold: Fold::Sum(vec![Window { start_ns, end_ns: start_ns + PERIOD }]),
            group_by: Vec::new(),
            group_by_series,
            stacks: StackDetail::None,
            locations: LocationSets::default(),
        };
        world.engine().select(&selection).map(|answer| answer.samples)
    };
    assert_eq!(select(0, zone(), false).unwrap(), 1);
    assert_eq!(select(0, Vec::new(), true).unwrap(), 1);
    assert_eq!([0, 1].map(|period| select(period, Vec::new(), false).unwrap()), [1, 1]);
    for refused in [select(1, zone(), false), select(1, Vec::new(), true)] {
        assert!(matches!(refused, Err(SelectError::DroppedName { ref name, .. }) if name == "zone"), "{refused:?}");
    }
    // Deletions are decided in the same way.
    let delete = |world: &mut World, period: i64| {
        let start_ns = (T0.div_euclid(PERIOD) + period) * PERIOD;
        let window = Window { start_ns, end_ns: start_ns + PERIOD };
        world.propose(Command::Delete(Deletion { tenant: TenantId::default_tenant(), matchers: zone(), window }))
    };
    assert!(matches!(delete(&mut world, 1), Outcome::Undecidable { tier: Tier::Day, .. }));
    assert_eq!(delete(&mut world, 0), Outcome::Deleted { samples: 0, windows: 1 });
}
