//! Tests of partitions: expiry, refused entries, deletions and memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use proto::entry::Deletion;
use proto::limits::PARTITION_SERIES_MAX;
use proto::selection::Operation;
use proto::{Command, Entry, Fold, Matcher, Samples, Selection, SeriesQuery, StackDetail, TenantId, Tier, Window};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Outcome, Position, SelectError, StripError};
use storage_model::samples::{DAY, Drawn, SECOND, T0, batch_of};
use storage_model::steps::Step;
use storage_model::world::{BUDGETS, World, config, listing};

/// Returns the request for all series with samples in a window.
fn every_series(window: Window) -> SeriesQuery {
    SeriesQuery { tenant: TenantId::default_tenant(), matchers: Vec::new(), window, label: None }
}

#[test]
fn a_batch_with_unknown_definitions_is_refused_and_changes_nothing() {
    let mut knows = World::default();
    let samples = [Drawn::simple(0, 0, 1, 5)];
    knows.step(&Step::Append(samples.to_vec(), None));
    let mut stripped = batch_of(&samples, None);
    let removed = knows.engine().strip(&mut stripped, PARTITION_SERIES_MAX).unwrap().unwrap();
    assert!(stripped.series[0].labels.is_none());
    let stacks = stripped.dictionary.stacks.iter().skip(1);
    assert!({ stacks }.all(|(_, stack)| stack.is_none()), "every stack was known");
    let mut world = World::default();
    assert_eq!(world.append_whole(stripped.clone()), Outcome::Dangling);
    assert_eq!(world.engine().head_bytes(), 0);
    // Such a batch is refused before it is proposed. First the shard has no such partition, then the partition has no
    // such stack.
    assert!(matches!(world.engine().strip(&mut stripped.clone(), PARTITION_SERIES_MAX), Err(StripError::Dangling)));
    world.step(&Step::Append(vec![Drawn::simple(0, 1, 2, 5)], None));
    assert!(matches!(world.engine().strip(&mut stripped.clone(), PARTITION_SERIES_MAX), Err(StripError::Dangling)));
    knows.engine().strip(&mut stripped.clone(), PARTITION_SERIES_MAX).unwrap();
    // The complete batch is applied.
    stripped.restore(removed);
    assert_eq!(world.append_whole(stripped), Outcome::Applied);
    assert_eq!(world.append_whole(batch_of(&samples, None)), Outcome::Applied);
}

// If the late sample were stored, its chunk would replace the sums of its minute, hour and day.
#[test]
fn a_sample_before_the_horizon_of_raw_samples_changes_no_sum() {
    let mut world = World::default();
    let in_time: Vec<Drawn> = (0..30).map(|second| Drawn::simple(0, second, 1, 5)).collect();
    world.step(&Step::Append(in_time, None));
    world.step(&Step::Wait(40_000));
    world.step(&Step::Append(vec![Drawn::simple(0, 40_000, 1, 1)], None));
    world.expire(Tier::Raw, T0 + 30_000 * SECOND);
    world.step(&Step::Append(vec![Drawn::simple(0, 31, 1, 1000)], None));
    world.step(&Step::Compact);
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(Window::between(&[(T0 / DAY) * DAY, (T0 / DAY) * DAY + DAY / 4])),
        group_by: Vec::new(),
        group_by_series: true,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    let answer = world.engine().select(&selection).unwrap();
    assert_eq!((answer.samples, answer.cells[0].sum, answer.missing.len()), (30, 150, 0));
}

#[test]
fn windows_of_a_shard_without_new_samples_are_rolled_up_to_days() {
    let mut world = World::default();
    world.step(&Step::Append(vec![Drawn::simple(0, 0, 1, 5), Drawn::simple(0, 7_000, 1, 5)], None));
    world.step(&Step::Flush);
    assert!(!world.engine().wants_flush());
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(Window::between(&[(T0 / DAY) * DAY, (T0 / DAY + 1) * DAY])),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    for (after_s, head_is_empty, days) in [(8_000, true, 0), (10_000, true, 0), (2 * 86_400, true, 1)] {
        world.engine().pass_time(T0 + after_s * SECOND);
        assert!(world.engine().wants_flush(), "after {after_s} s");
        world.engine().flush().unwrap();
        assert!(!world.engine().wants_flush(), "after {after_s} s");
        assert_eq!(world.engine().head_bytes() == 0, head_is_empty);
        let answer = world.engine().select(&selection).unwrap();
        assert_eq!((answer.cells[0].sum, answer.windows_read.days), (10, days), "after {after_s} s");
    }
}

#[test]
fn nothing_is_deleted_if_labels_cannot_decide_what_matches() {
    let drawn = || vec![Drawn::simple(0, 0, 1, 5), Drawn::simple(1, 5, 1, 7)];
    let delete = |world: &mut World, name: &str, operation, value: &str| {
        let matchers = vec![Matcher { name: name.to_owned(), operation, value: value.to_owned() }];
        let window = Window { start_ns: T0 - DAY, end_ns: T0 + DAY };
        world.propose(Command::Delete(Deletion { tenant: TenantId::default_tenant(), matchers, window }))
    };
    // The name is that of an attribute, and no series has it as a label. A decision by labels would delete all series.
    let mut world = World::default();
    world.step(&Step::Append(drawn(), None));
    let outcome = delete(&mut world, "thread_name", Operation::NotEqual, "t9");
    assert_eq!(outcome, Outcome::Undecidable { tier: Tier::Raw, matcher: 0 });
    assert_eq!(
        delete(&mut world, "region", Operation::NotEqual, "us"),
        Outcome::Deleted { samples: 1, windows: 0 },
        "service 0 is in the other region"
    );
    // Hours drop the zone, and nothing finer is kept.
    let mut world = World::with(false, [&["zone"], &["zone"]]);
    world.step(&Step::Append(drawn(), None));
    world.step(&Step::Wait(40_000));
    world.step(&Step::Append(vec![Drawn::simple(0, 40_000, 1, 1)], None));
    world.expire(Tier::Minute, T0 + 30_000 * SECOND);
    for (operation, value) in [(Operation::Equal, "a"), (Operation::NotEqual, "a")] {
        let outcome = delete(&mut world, "zone", operation, value);
        assert_eq!(outcome, Outcome::Undecidable { tier: Tier::Hour, matcher: 0 });
    }
    let outcome = delete(&mut world, "service_name", Operation::Equal, "s1");
    assert_eq!(outcome, Outcome::Deleted { samples: 0, windows: 1 });
}

#[test]
fn an_entry_out_of_order_is_refused() {
    let mut world = World::default();
    world.step(&Step::Append(vec![Drawn::simple(0, 0, 1, 5)], None));
    let position = Position { index: 3, log_id: Bytes::new() };
    assert!(world.engine().apply(position, &world.log[0]).is_err());
}

// Regression: files were deleted before the state that no longer needs them was on disk.
#[test]
fn a_dropped_partition_stays_on_disk_until_the_drop_is_flushed() {
    let mut world = World::default();
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random.cast_signed()
    };
    // A time 200 days ago, in an older partition of days.
    let old = T0 - 200 * DAY;
    let mut total = 0_i128;
    // Four batches of this size fill more than two table files of 64 MiB below level 0.
    for _ in 0..4 {
        let mut batch = batch_of(&[Drawn::simple(0, 0, 1, 1)], None);
        let samples = &mut batch.series[0].samples;
        *samples = Samples::default();
        for _ in 0..2_000_000 {
            let value = next() >> 8;
            total += i128::from(value);
            samples.push(old + next().rem_euclid(3600 * SECOND), 1, value, 1);
        }
        let position = Position { index: world.log.len() as u64 + 1, log_id: Bytes::new() };
        let entry = Entry { proposed_at_ns: T0, command: Command::Append(Arc::new(batch)) };
        world.engine().apply(position, &entry).unwrap();
        world.log.push(entry);
        world.step(&Step::Flush);
    }
    let is_compacting = |world: &World| {
        let before = listing(world.directory.path());
        std::thread::sleep(std::time::Duration::from_millis(500));
        listing(world.directory.path()) != before
    };
    while is_compacting(&world) {}
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(Window::between(&[old - DAY, old + DAY])),
        group_by: Vec::new(),
        group_by_series: true,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    for tier in Tier::ALL {
        world.expire(tier, T0 - 10 * DAY);
    }
    world.lose_memory();
    world.engine = Some(Engine::open(config(world.directory.path())).unwrap());
    let answer = world.engine().select(&selection).unwrap();
    assert_eq!((answer.samples, answer.cells[0].sum), (8_000_000, total));
    // The replay of the log drops the partitions for good.
    for i in 4..world.log.len() {
        world.apply(i);
    }
    world.step(&Step::Flush);
    for tier in Tier::ALL {
        world.engine().reclaim(tier, 0, T0 - 10 * DAY);
    }
    world.step(&Step::Crash);
    assert_eq!(world.engine().select(&selection).unwrap().samples, 0);
    let left: u64 = listing(world.directory.path()).iter().map(|(_, length)| length).sum();
    assert!(left < 100 << 20, "{left} bytes are still on disk");
}

#[test]
fn a_batch_may_cover_many_partitions_but_not_too_many() {
    let mut world = World::default();
    let spread = |partitions: i64| -> Vec<_> { (0..partitions).map(|i| Drawn::simple(0, i * 21_600, 1, 1)).collect() };
    let refused = world.engine().strip(&mut batch_of(&spread(200), None), PARTITION_SERIES_MAX).unwrap_err();
    assert!(refused.to_string().contains("200 spans"), "{refused}");
    world.step(&Step::Append(spread(100), None));
    world.step(&Step::Append(spread(100), None));
    let window = Window { start_ns: T0 - DAY, end_ns: T0 + 100 * DAY };
    assert_eq!(world.engine().series(&every_series(window)).unwrap().series.len(), 1);
}

#[test]
fn new_series_over_the_limit_are_refused_and_known_ones_never_are() {
    let mut world = World::default();
    let of = |services: Range<u8>, second| -> Vec<_> { services.map(|n| Drawn::simple(n, second, 1, 1)).collect() };
    // Returns the number of series of the partition that would have too many, and the label with the most values.
    let check =
        |world: &World, drawn: &[Drawn], series_max| match world.engine().strip(&mut batch_of(drawn, None), series_max)
        {
            Ok(_) => None,
            Err(StripError::TooManySeries { series, label, values, .. }) => Some((series, label, values)),
            Err(error) => panic!("{error}"),
        };
    let refused = |series, values| Some((series, "service_name".to_owned(), values));
    // The tenant has no partition yet.
    assert_eq!(check(&world, &of(0..3, 0), 3), None);
    assert_eq!(check(&world, &of(0..3, 0), 2), refused(3, 3));
    world.step(&Step::Append(of(0..3, 0), None));
    // Known series, although there are more than are allowed now.
    assert_eq!(check(&world, &of(0..3, 1), 2), None);
    assert_eq!(check(&world, &of(0..4, 1), 3), refused(4, 3));
    assert_eq!(check(&world, &of(2..4, 1), 4), None);
    // Each six hours count on their own, also within one batch, and whether they have a partition or not.
    assert_eq!(check(&world, &[of(0..3, 0), of(1..4, 86_400)].concat(), 3), None);
    assert_eq!(check(&world, &[of(0..1, 0), of(0..4, 86_400)].concat(), 3), refused(4, 4));
    world.step(&Step::Append(of(1..4, 86_400), None));
    assert_eq!(check(&world, &[of(0..3, 0), of(1..4, 86_400)].concat(), 1), None);
    assert_eq!(check(&world, &[of(0..3, 0), of(0..4, 86_400)].concat(), 3), refused(4, 3));
}

#[test]
fn over_the_dictionary_budget_new_definitions_are_refused() {
    let mut world = World::default();
    world.engine = None;
    let budgets = Budgets::new(BudgetSizes { dictionary_bytes_max: 1, ..BUDGETS });
    let config = Config { budgets, ..config(world.directory.path()) };
    world.engine = Some(Engine::open(config).unwrap());
    let known = [Drawn::simple(0, 0, 1, 1)];
    let new_thread = [Drawn { thread: 2, ..Drawn::simple(0, 0, 1, 1) }];
    let new_stack = [Drawn::simple(0, 0, 2, 1)];
    world.propose(Command::Append(Arc::new(batch_of(&known, None))));
    assert!(world.engine().dictionary_bytes() > 100);
    world.step(&Step::Append(known.to_vec(), None));
    for new in [new_thread, new_stack] {
        let refused = world.engine().strip(&mut batch_of(&new, None), PARTITION_SERIES_MAX).unwrap_err();
        assert!(matches!(refused, storage_engine::StripError::DictionaryFull { .. }), "{refused}");
    }
}

#[test]
fn queries_that_do_not_group_by_stack_load_no_dictionary() {
    let mut world = World::default();
    let drawn = |day: i64, number: i64| Drawn {
        thread: (number % 3) as u8,
        ..Drawn::simple((number % 2) as u8, day * 86_400 + number, number as u8, 5)
    };
    for day in 0..4 {
        world.step(&Step::Append((0..30).map(|number| drawn(day, number)).collect(), None));
        world.step(&Step::Wait(86_400));
    }
    world.step(&Step::Compact);
    world.lose_memory();
    let engine = Engine::open(config(world.directory.path())).unwrap();
    let selection = |group_by: &str| Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(Window::between(&[T0 + SECOND / 2, T0 + 5 * DAY])),
        group_by: vec![group_by.to_owned()],
        group_by_series: false,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    let loaded_before = engine.dictionary_bytes();
    let by_service = engine.select(&selection("service_name")).unwrap();
    assert_eq!(by_service.cells.iter().map(|cell| cell.sum).sum::<i128>(), 4 * 30 * 5 - 5);
    let outlines = engine.dictionary_bytes() - loaded_before;
    // This query needs the dictionary, because the names of threads are in it.
    let by_thread = engine.select(&selection("thread_name")).unwrap();
    assert_eq!(by_thread.cells.iter().map(|cell| cell.sum).sum::<i128>(), 4 * 30 * 5 - 5);
    assert!(by_thread.groups.len() > 1, "{:?}", by_thread.groups);
    let whole = engine.dictionary_bytes() - loaded_before;
    assert!(whole > outlines * 3 / 2, "{outlines} and {whole} bytes");
}

// Regression: a query continued after its client had gone, and eight of them blocked all others.
#[test]
fn a_cancelled_query_reads_nothing_more() {
    let mut world = World::default();
    let days: Vec<Drawn> =
        (0..8).map(|quarter| Drawn::simple(quarter % 3, i64::from(quarter) * 21_600, 1, 5)).collect();
    world.step(&Step::Append(days, None));
    // The list of series reads no samples in memory, and none of a series with a known sample.
    world.step(&Step::Compact);
    world.step(&Step::Restart);
    let window = Window { start_ns: T0 - DAY, end_ns: T0 + 3 * DAY };
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![window]),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::Full,
        locations: proto::LocationSets::default(),
    };
    let looks = AtomicU32::new(0);
    let until = |last: u32| {
        looks.store(0, Ordering::Relaxed);
        move |looks: &AtomicU32| looks.fetch_add(1, Ordering::Relaxed) + 1 < last
    };
    for last in [1, 2, 5, 9] {
        let is_wanted = until(last);
        let cancelled = world.engine().select_while(&selection, &|| is_wanted(&looks));
        assert!(matches!(cancelled, Err(SelectError::Cancelled)), "{cancelled:?}");
        assert_eq!(looks.load(Ordering::Relaxed), last, "no check follows the one that cancels");
        let is_wanted = until(last);
        let cancelled = world.engine().series_while(&every_series(window), &|| is_wanted(&looks));
        assert!(matches!(cancelled, Err(SelectError::Cancelled)), "{cancelled:?}");
        assert_eq!(looks.load(Ordering::Relaxed), last);
    }
    // There are eight partitions with one series each, and each partition and each series is one call of `is_wanted`.
    let is_wanted = until(100);
    assert_eq!(world.engine().select_while(&selection, &|| is_wanted(&looks)).unwrap().samples, 8);
    assert_eq!(looks.load(Ordering::Relaxed), 16);
}
