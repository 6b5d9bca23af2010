use proptest::prelude::*;

use super::*;
use crate::database::key::StaleKey;
use crate::engine::state::horizons::Horizons;

const DAY_NS: i64 = 86_400_000_000_000;
/// 2026-09-21T00:00:00Z, in nanoseconds since 1970.
const T0: i64 = 20_717 * DAY_NS;

/// Returns a state in which every partition of the first `days` days exists.
fn state(days: i64) -> State {
    let mut state = State::default();
    for tier in Tier::ALL {
        let mut time_ns = T0 + 1;
        while time_ns <= T0 + days * DAY_NS {
            state.partitions.add(PartitionKey::of(tier, 0, 1, time_ns));
            time_ns += tier.partition_ns().min(DAY_NS);
        }
    }
    state
}

/// Returns the planned times of each bucket, as disjoint ascending pieces.
fn covered(plan: &Plan) -> BTreeMap<u32, Vec<(i64, i64)>> {
    let mut pieces: Vec<(u32, i64, i64)> = Vec::new();
    for (key, part) in &plan.parts {
        pieces.extend(part.raw.iter().map(|raw| (raw.bucket, raw.start_ns, raw.end_ns)));
        let tier = key.tier;
        let run = |run: &WindowRun| (run.bucket, tier.window_start_ns(run.first), tier.window_start_ns(run.end));
        pieces.extend(part.windows.iter().map(run));
    }
    pieces.sort_unstable();
    let mut buckets: BTreeMap<u32, Vec<(i64, i64)>> = BTreeMap::new();
    for (bucket, start, end) in pieces {
        let pieces = buckets.entry(bucket).or_default();
        match pieces.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => pieces.push((start, end)),
        }
    }
    buckets
}

proptest! {
    #[test]
    fn every_bucket_is_covered_exactly_once_by_few_windows(
        edges in prop::collection::btree_set(0..40 * DAY_NS, 2..6),
        nth in 1..3_usize,
        stale in prop::collection::vec((1..4_u8, 0..40 * DAY_NS), 0..6),
    ) {
        let mut state = state(40);
        for &(tier, at) in &stale {
            let tier = Tier::from_number(tier).unwrap();
            let numbered = if tier == Tier::Minute { Tier::Raw } else { tier };
            let window = numbered.window_of(T0 + at + 1);
            state.stale.insert(StaleKey { tier, class: 0, window, tenant: 1, series: 3 });
        }
        let edges: Vec<i64> = edges.into_iter().map(|edge| T0 + edge).collect();
        // Adjacent buckets, or buckets with gaps between them.
        let buckets: Vec<Window> = Window::between(&edges).into_iter().step_by(nth).collect();
        let plan = plan(&state, 1, &buckets, &Tiers::ALL);
        let piece = |bucket: &Window| vec![(bucket.start_ns, bucket.end_ns)];
        let wanted: BTreeMap<u32, Vec<(i64, i64)>> = (0..).zip(buckets.iter().map(piece)).collect();
        prop_assert_eq!(covered(&plan), wanted);
        prop_assert!(plan.missing.is_empty());
        let read = &plan.windows_read;
        if stale.is_empty() {
            let buckets = buckets.len() as u64;
            prop_assert!(read.days <= 40 && read.hours <= 46 * buckets);
            prop_assert!(read.minutes <= 118 * buckets && read.raw <= 2 * buckets);
        }
        for (key, part) in &plan.parts {
            for run in &part.windows {
                let holds = |stale: &StaleKey| {
                    let numbered = if stale.tier == Tier::Minute { Tier::Raw } else { stale.tier };
                    let start_ns = numbered.window_start_ns(stale.window);
                    let end_ns = numbered.window_end_ns(stale.window);
                    stale.tier <= key.tier
                        && key.tier.window_start_ns(run.first) < end_ns
                        && start_ns < key.tier.window_start_ns(run.end)
                };
                prop_assert!(!state.stale.iter().any(holds), "{:?} {:?}", key, run);
            }
        }
    }
}

#[test]
fn a_month_with_unaligned_edges_reads_few_windows() {
    let state = state(40);
    let plan = plan(&state, 1, &Window::between(&[T0 + 1, T0 + 31 * DAY_NS - 1]), &Tiers::ALL);
    let WindowsRead { raw, minutes, hours, days } = plan.windows_read;
    assert_eq!((raw, minutes, hours, days), (2, 118, 46, 29));
}

#[test]
fn edges_are_reported_missing_after_finer_tiers_were_dropped() {
    let mut state = state(40);
    for tier in [Tier::Raw, Tier::Minute] {
        state.horizons.expire(tier, 0, T0 + 20 * DAY_NS);
    }
    let start = T0 + DAY_NS + 1;
    let range = Window::between(&[start, T0 + 30 * DAY_NS]);
    let plan = plan(&state, 1, &range, &Tiers::ALL);
    let hour_end = T0 + DAY_NS + Tier::Hour.window_ns();
    let window = Window { start_ns: start, end_ns: hour_end };
    let missing = Missing { window, finest: Tier::Hour, is_damaged: false };
    assert_eq!(plan.missing, [MissingRange { class: 0, holder: Tier::Hour, missing }]);
    assert_eq!((plan.windows_read.hours, plan.windows_read.days), (23, 28));
    let raw_only = super::plan(&state, 1, &range, &Tiers::RAW);
    let MissingRange { holder, missing, .. } = raw_only.missing[0];
    assert_eq!((holder, missing.finest, missing.window.end_ns), (Tier::Hour, Tier::Raw, T0 + 20 * DAY_NS));
    // Two tiers hold this time, so it is two ranges.
    let expired = [((Tier::Raw, 0), T0 + 20 * DAY_NS), ((Tier::Minute, 0), T0 + 10 * DAY_NS)];
    state.horizons = Horizons::stored(expired.into());
    let both = super::plan(&state, 1, &range, &Tiers::RAW);
    let holders: Vec<_> = both.missing.iter().map(|range| (range.holder, range.missing.window.end_ns)).collect();
    assert_eq!(holders, [(Tier::Hour, T0 + 10 * DAY_NS), (Tier::Minute, T0 + 20 * DAY_NS)]);
    let another = super::plan(&state, 2, &range, &Tiers::ALL);
    assert!(another.parts.is_empty() && another.missing.is_empty());
}

// Regression: `rate(x[5m])` of each day read the 23 h 55 min in between, and reported their missing times.
#[test]
fn time_between_two_buckets_is_neither_read_nor_missing() {
    let mut state = state(40);
    let minutes = |from: i64, to: i64| Window {
        start_ns: T0 + from * Tier::Minute.window_ns(),
        end_ns: T0 + to * Tier::Minute.window_ns(),
    };
    let five_of_each_day: Vec<Window> = (1..30).map(|day| minutes(day * 1440 - 5, day * 1440)).collect();
    let read = plan(&state, 1, &five_of_each_day, &Tiers::ALL).windows_read;
    assert_eq!(read, WindowsRead { minutes: 29 * 5, ..WindowsRead::default() });
    state.horizons.expire(Tier::Raw, 0, T0 + DAY_NS);
    let plan = plan(&state, 1, &[minutes(0, 1), minutes(1439, 1441)], &Tiers::RAW);
    let missing: Vec<Window> = plan.missing.iter().map(|range| range.missing.window).collect();
    assert_eq!(missing, [minutes(0, 1), minutes(1439, 1440)]);
}
