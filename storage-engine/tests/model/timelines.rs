//! Time series over dense samples, whose chunks have timelines. Every answer equals the model's, even if windows begin
//! or end inside bins.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proto::selection::Operation;
use proto::{Fold, LocationSets, Matcher, Selection, StackDetail, TenantId, Window};
use storage_model::samples::{Drawn, SECOND, T0};
use storage_model::steps::Step;
use storage_model::world::World;

use super::check;

/// Longest time between the first sample and [`T0`], in tenths of a second. It overlaps three chunks.
const TENTHS: i64 = 13_000;

/// Generates samples of one service at nearly equal distances, as a profiler takes them. Some are on the edges of bins.
fn dense() -> impl Strategy<Value = Vec<Drawn>> {
    let values =
        prop_oneof![3 => Just(vec![52_i64]), 2 => Just(vec![1, 2, 3]), 1 => Just(vec![-1, 1, 0, i64::MAX, i64::MIN])];
    (0..4_u8, -TENTHS..-1000_i64, 300..TENTHS, 800..3000_i64, values, any::<u64>()).prop_map(
        |(service, start, tenths, count, values, seed)| {
            let drawn = |i: i64| {
                let noise = (i as u64 + 1).wrapping_mul(seed | 1) >> 20;
                let even = (start * SECOND + i * tenths.min(-start) * SECOND / count) / 10;
                let time =
                    if noise.is_multiple_of(8) { even / SECOND * SECOND } else { even + noise as i64 % 50_000_000 };
                let value = values[noise as usize % values.len()];
                Drawn { service, time, user: noise as u8 % 6, kernel: 0, value, thread: noise as u8 % 3 }
            };
            (0..count).map(drawn).collect()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let second = -TENTHS / 10 - 100..100;
    prop_oneof![
        4 => dense().prop_map(|samples| Step::Append(samples, None)),
        2 => Just(Step::Flush),
        3 => Just(Step::Compact),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
        1 => (0..2000_i64).prop_map(Step::Wait),
        1 => (0..3_u8, 0..4_u8, second, 1..400_i64).prop_map(|(label, value, second, length)| {
            Step::Delete((label, value), second, second + length)
        }),
    ]
}

/// Generates series of windows that are shorter than a minute, so minutes cannot answer them. The windows begin on
/// seconds, on tenths of a second, or anywhere.
fn series() -> impl Strategy<Value = Selection> {
    let step = prop_oneof![Just(50), Just(100), Just(150), Just(300), Just(10), Just(25), Just(1), 1..590_i64];
    let off = prop_oneof![2 => Just(0_i64), 1 => Just(1_300_000_000), 1 => -SECOND..SECOND];
    let groups = prop::sample::subsequence(vec!["region", "zone", "service_name"], 0..3);
    (-TENTHS - 500..0, step, off, 2..80_usize, groups, any::<bool>(), any::<bool>()).prop_map(
        |(start, step, off, count, groups, group_by_series, has_gauge)| {
            let start_ns = (T0 / SECOND * 10 + start).div_euclid(step) * step * (SECOND / 10) + off;
            let edges: Vec<i64> = (0..count as i64).map(|i| start_ns + i * step * (SECOND / 10)).collect();
            let name = "service_name".to_owned();
            let value = "s3".to_owned();
            let no_gauge = Matcher { name, operation: Operation::NotEqual, value };
            Selection {
                tenant: TenantId::default_tenant(),
                matchers: if has_gauge { Vec::new() } else { vec![no_gauge] },
                fold: Fold::Sum(Window::between(&edges)),
                group_by: groups.into_iter().map(str::to_owned).collect(),
                group_by_series,
                stacks: StackDetail::None,
                locations: LocationSets::default(),
            }
        },
    )
}

// Regression: the chart that the web UI shows first took five times as long from sealed chunks as from the head,
// because the events of the chunks were read.
#[test]
fn steps_of_15_s_over_sealed_samples_read_no_events() {
    let mut world = World::default();
    let drawn = |i: i64| {
        let noise = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let time = -900 * SECOND + i * SECOND / 10 + noise as i64;
        Drawn { service: i as u8 % 2, time, user: noise as u8 % 6, kernel: 0, value: 52, thread: noise as u8 % 3 }
    };
    let samples: Vec<Drawn> = (0..9000).map(drawn).collect();
    world.step(&Step::Append(samples, None));
    let first_s = (T0 / SECOND - 900) / 15 * 15;
    let edges: Vec<i64> = (0..60).map(|i| (first_s + i * 15) * SECOND).collect();
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(Window::between(&edges)),
        group_by: vec!["service_name".to_owned()],
        group_by_series: false,
        stacks: StackDetail::None,
        locations: LocationSets::default(),
    };
    let no_conditions = (Vec::new(), 100);
    check(&world, &selection, &no_conditions).unwrap();
    let from_memory = world.engine().select(&selection).unwrap();
    for step in [Step::Compact, Step::Restart] {
        world.step(&step);
        check(&world, &selection, &no_conditions).unwrap();
        let sealed = world.engine().select(&selection).unwrap();
        assert_eq!(sealed.samples, from_memory.samples);
        assert_eq!(sealed.rows, 0, "events were read, of {} samples", sealed.samples);
    }
}

#[test]
fn series_of_dense_samples_equal_the_model_for_any_windows() {
    let whole = Cell::new(0);
    let divided = Cell::new(0);
    let from_events = Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let case = (prop::collection::vec(step(), 2..10), prop::collection::vec(series(), 10..30));
    let result = runner.run(&case, |(steps, selections)| {
        let mut world = World::default();
        steps.iter().for_each(|step| world.step(step));
        let verified = world.engine().verify().unwrap();
        prop_assert_eq!(&verified.described, &Vec::<String>::new());
        for end in [None, Some(Step::Compact), Some(Step::Restart)] {
            end.iter().for_each(|step| world.step(step));
            for selection in &selections {
                check(&world, selection, &(Vec::new(), 100))?;
                let answer = world.engine().select(selection).unwrap();
                if world.engine().head_bytes() == 0 && answer.samples > 0 {
                    let count = match answer.rows {
                        0 => &whole,
                        rows if rows < answer.samples => &divided,
                        _ => &from_events,
                    };
                    count.set(count.get() + 1);
                }
            }
        }
        Ok(())
    });
    println!("{whole:?} without events, {divided:?} with some, {from_events:?} of events alone");
    result.unwrap();
    assert!(whole.get() > 100 && divided.get() > 100 && from_events.get() > 100, "not all paths were taken");
}
