//! Planning: divides each bucket of a query into the fewest windows that cover it exactly. These are days, hours and
//! minutes, and raw samples at the edges.
//!
//! A window is used if it is completely inside the range and exact: not stale, and with no samples of its time in a
//! head. The next finer tier replaces a window that cannot be used.
//! A query thus reads at most 46 hours, 118 minutes and two raw edges, in addition to the days and the times that are
//! not sealed yet.

use std::collections::{BTreeMap, BTreeSet};

use proto::answer::{Missing, WindowsRead};
use proto::{Tier, Window};

use crate::database::key::{PartitionKey, StaleKey};
use crate::engine::state::State;

/// Raw samples in `(start, end]` that belong to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start_ns: i64,
    pub(crate) end_ns: i64,
    pub(crate) bucket: u32,
}

/// Windows with numbers `[first, end)` that belong to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRun {
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) bucket: u32,
}

/// Data to read from one partition. Both lists ascend.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartPlan {
    /// Intervals of raw samples; only in a partition of minutes.
    pub(crate) raw: Vec<Interval>,
    /// Windows of the partition's tier.
    pub(crate) windows: Vec<WindowRun>,
}

/// Partitions to read, and times that cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Parts by partition. Raw samples are in the part of their minutes.
    pub(crate) parts: BTreeMap<PartitionKey, PartPlan>,
    pub(crate) windows_read: WindowsRead,
    pub(crate) missing: Vec<MissingRange>,
}

/// Time that no tier holds in the required resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingRange {
    pub(crate) class: u8,
    /// Finest tier that holds the time at all.
    pub(crate) holder: Tier,
    /// Reported time and resolution: that of the holder, or of raw samples if the holder may not be used.
    pub(crate) missing: Missing,
}

impl MissingRange {
    /// Returns whether the same tier of the same class holds both ranges.
    pub(crate) fn is_held_like(&self, other: &Self) -> bool {
        self.class == other.class && self.holder == other.holder
    }
}

impl PartPlan {
    /// Returns the end of the last time that is read from a partition of this tier.
    pub(crate) fn end_ns(&self, tier: Tier) -> i64 {
        let raw = self.raw.last().map(|interval| interval.end_ns);
        let windows = self.windows.last().map(|run| tier.window_start_ns(run.end));
        raw.max(windows).unwrap_or(i64::MIN)
    }
}

/// Tiers that may be read. Raw samples always may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiers([bool; 4]);

impl Tiers {
    pub(crate) const ALL: Self = Self([true; 4]);
    pub(crate) const RAW: Self = Self([true, false, false, false]);

    pub(crate) fn allows(self, tier: Tier) -> bool {
        self.0[usize::from(tier.number())]
    }

    pub(crate) fn without(mut self, tier: Tier) -> Self {
        self.0[usize::from(tier.number())] = false;
        self
    }
}

/// Plans the reads of a tenant for ascending buckets. Times between two buckets are neither read nor reported as
/// missing.
pub(crate) fn plan(state: &State, tenant: u32, buckets: &[Window], tiers: Tiers) -> Plan {
    let mut plan = Plan::default();
    let mut classes: BTreeMap<u8, Vec<PartitionKey>> = BTreeMap::new();
    for key in state.existing.iter().filter(|key| key.tenant == tenant) {
        classes.entry(key.class).or_default().push(*key);
    }
    for (class, keys) in classes {
        // No partition exists outside this time.
        let start_ns = keys.iter().map(|key| key.start_ns()).min().unwrap_or_default();
        let end_ns = keys.iter().map(|key| key.end_ns()).max().unwrap_or_default();
        let stale = Stale::of(state, tenant, class);
        let times = times_of(&keys);
        let mut splitter =
            Splitter { state, class, tenant, tiers, stale, times, keys: keys.into_iter().collect(), plan: &mut plan };
        for (bucket, window) in (0..).zip(buckets) {
            splitter.split(Tier::Day, window.start_ns.max(start_ns), window.end_ns.min(end_ns), bucket);
        }
    }
    plan
}

/// Returns the times that have windows, ascending and disjoint.
fn times_of(keys: &[PartitionKey]) -> Vec<(i64, i64)> {
    let with_windows = keys.iter().filter(|key| key.tier != Tier::Raw);
    let mut spans: Vec<(i64, i64)> = with_windows.map(|key| (key.start_ns(), key.end_ns())).collect();
    spans.sort_unstable();
    let mut times: Vec<(i64, i64)> = Vec::new();
    for (start_ns, end_ns) in spans {
        match times.last_mut() {
            Some(last) if start_ns <= last.1 => last.1 = last.1.max(end_ns),
            _ => times.push((start_ns, end_ns)),
        }
    }
    times
}

/// Windows of each tier that are not exact.
#[derive(Debug, Default)]
struct Stale {
    /// Windows of chunks.
    chunks: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    days: BTreeSet<u32>,
    /// Damaged windows whose finer tier still exists: minutes by the windows of chunks, then hours and days. Windows
    /// of coarser tiers remain exact.
    damaged: [BTreeSet<u32>; 3],
}

impl Stale {
    fn of(state: &State, tenant: u32, class: u8) -> Self {
        let mut stale = Self::default();
        for (key, partition) in state.loaded.iter().filter(|(key, _)| key.tenant == tenant && key.class == class) {
            if key.tier == Tier::Minute {
                stale.chunks.extend(partition.read().head.windows());
            }
        }
        for (tier, windows) in
            [(Tier::Minute, &mut stale.chunks), (Tier::Hour, &mut stale.hours), (Tier::Day, &mut stale.days)]
        {
            // Seeks from window to window, because each may be stale for a large number of series.
            let mut from = StaleKey { tier, class, window: 0, tenant, series: 0 };
            while let Some(key) = state.stale.range(from..).next().filter(|key| (key.tier, key.class) == (tier, class))
            {
                if key.tenant == tenant {
                    windows.insert(key.window);
                }
                from = match (key.tenant < tenant, key.window.checked_add(1)) {
                    (true, _) => StaleKey { window: key.window, ..from },
                    (false, Some(window)) => StaleKey { window, ..from },
                    (false, None) => break,
                };
            }
        }
        for (key, area, _) in state.damage.iter().filter(|(key, ..)| (key.tenant, key.class) == (tenant, class)) {
            let numbered = if key.tier == Tier::Minute { Tier::Raw } else { key.tier };
            let Some(finer) = Tier::from_number(key.tier.number().wrapping_sub(1)) else { continue };
            let horizon_ns = state.horizon_ns(finer, class);
            let windows =
                (area.windows.0..=area.windows.1).filter(|&window| numbered.window_start_ns(window) >= horizon_ns);
            stale.damaged[usize::from(finer.number())].extend(windows);
        }
        stale.hours.extend(stale.chunks.iter().map(|window| window / Tier::Raw.windows_in(Tier::Hour)));
        stale.days.extend(stale.hours.iter().map(|window| window / Tier::Hour.windows_in(Tier::Day)));
        stale
    }

    /// Returns the first window from `from` on that is not exact, and the first exact one after it.
    fn next(&self, tier: Tier, from: i64) -> Option<(i64, i64)> {
        let [chunks, hours, days] = &self.damaged;
        let (windows, of_tier) = match tier {
            Tier::Raw => return None,
            Tier::Minute => ([&self.chunks, chunks], i64::from(Tier::Minute.windows_in(Tier::Raw))),
            Tier::Hour => ([&self.hours, hours], 1),
            Tier::Day => ([&self.days, days], 1),
        };
        let first = u32::try_from(from.div_euclid(of_tier).max(0)).ok()?;
        let stale = i64::from(*windows.iter().filter_map(|windows| windows.range(first..).next()).min()?);
        Some(((stale * of_tier).max(from), (stale + 1) * of_tier))
    }
}

struct Splitter<'a> {
    state: &'a State,
    class: u8,
    tenant: u32,
    tiers: Tiers,
    stale: Stale,
    /// Times that have windows.
    times: Vec<(i64, i64)>,
    keys: BTreeSet<PartitionKey>,
    plan: &'a mut Plan,
}

impl Splitter<'_> {
    /// Adds `(start, end]` in windows of this tier and finer ones.
    fn split(&mut self, tier: Tier, start_ns: i64, end_ns: i64, bucket: u32) {
        if start_ns >= end_ns {
            return;
        }
        let Some(finer) = tier.number().checked_sub(1).and_then(Tier::from_number) else {
            return self.add_raw(Interval { start_ns, end_ns, bucket });
        };
        let width_ns = tier.window_ns();
        let first = start_ns.div_euclid(width_ns) + i64::from(start_ns.rem_euclid(width_ns) > 0);
        let end = end_ns.div_euclid(width_ns);
        if first >= end || !self.tiers.allows(tier) {
            return self.split(finer, start_ns, end_ns, bucket);
        }
        self.split(finer, start_ns, first * width_ns, bucket);
        let mut next = first;
        while next < end {
            let (is_exact, run_end) = self.run(tier, next, end);
            if is_exact {
                self.add_windows(tier, next, run_end, bucket);
            } else {
                self.split(finer, next * width_ns, run_end * width_ns, bucket);
            }
            next = run_end;
        }
        self.split(finer, end * width_ns, end_ns, bucket);
    }

    /// Returns whether a window is exact, and the end of the run of windows for which the same holds. Runs avoid a
    /// lookup for each minute of a year.
    fn run(&self, tier: Tier, window: i64, end: i64) -> (bool, i64) {
        // A horizon is the end of a partition, so it is also the end of a window.
        let kept = self.state.horizon_ns(tier, self.class).div_euclid(tier.window_ns());
        if window < kept {
            return (false, kept.min(end));
        }
        match self.stale.next(tier, window) {
            Some((stale, stale_end)) if stale == window => (false, stale_end.min(end)),
            Some((stale, _)) => (true, stale.min(end)),
            None => (true, end),
        }
    }

    fn add_windows(&mut self, tier: Tier, first: i64, end: i64, bucket: u32) {
        let windows_per_partition = tier.partition_ns() / tier.window_ns();
        let mut next = first;
        while next < end {
            let part_end = ((next / windows_per_partition + 1) * windows_per_partition).min(end);
            let (Ok(first), Ok(end)) = (u32::try_from(next), u32::try_from(part_end)) else { return };
            let key = PartitionKey::of_window(tier, self.class, self.tenant, first);
            if self.keys.contains(&key) {
                let windows = &mut self.plan.parts.entry(key).or_default().windows;
                match windows.last_mut() {
                    Some(last) if last.end == first && last.bucket == bucket => last.end = end,
                    _ => windows.push(WindowRun { first, end, bucket }),
                }
                self.plan.windows_read.add(tier, u64::from(end - first));
            }
            next = part_end;
        }
    }

    fn add_raw(&mut self, interval: Interval) {
        let Interval { mut start_ns, end_ns, bucket } = interval;
        let horizon_ns = self.state.horizon_ns(Tier::Raw, self.class);
        if start_ns < horizon_ns {
            let end_ns = end_ns.min(horizon_ns);
            self.add_missing(start_ns, end_ns);
            start_ns = end_ns;
        }
        while start_ns < end_ns {
            let raw = PartitionKey::of(Tier::Raw, self.class, self.tenant, start_ns.saturating_add(1));
            let part_end_ns = raw.end_ns().min(end_ns);
            if self.keys.contains(&raw) {
                let intervals = &mut self.plan.parts.entry(raw.in_tier(Tier::Minute)).or_default().raw;
                match intervals.last_mut() {
                    Some(last) if last.end_ns == start_ns && last.bucket == bucket => last.end_ns = part_end_ns,
                    _ => {
                        intervals.push(Interval { start_ns, end_ns: part_end_ns, bucket });
                        self.plan.windows_read.add(Tier::Raw, 1);
                    }
                }
            }
            start_ns = part_end_ns;
        }
    }

    /// Adds the part of a time that some tier holds.
    fn add_missing(&mut self, start_ns: i64, end_ns: i64) {
        let from = self.times.partition_point(|times| times.1 <= start_ns);
        if start_ns >= end_ns || self.times.get(from).is_none_or(|times| times.0 >= end_ns) {
            return;
        }
        // Each tier holds the time after its own horizon and before those of finer tiers.
        let horizon_ns = |tier| self.state.horizon_ns(tier, self.class).clamp(start_ns, end_ns);
        let minutes_ns = horizon_ns(Tier::Minute);
        let hours_ns = horizon_ns(Tier::Hour).min(minutes_ns);
        self.add_held(Tier::Day, start_ns, hours_ns);
        self.add_held(Tier::Hour, hours_ns, minutes_ns);
        self.add_held(Tier::Minute, minutes_ns, end_ns);
    }

    fn add_held(&mut self, holder: Tier, start_ns: i64, end_ns: i64) {
        if start_ns >= end_ns {
            return;
        }
        let finest = if self.tiers.allows(holder) { holder } else { Tier::Raw };
        match self.plan.missing.last_mut() {
            Some(last) if (last.class, last.missing.window.end_ns, last.holder) == (self.class, start_ns, holder) => {
                last.missing.window.end_ns = end_ns;
            }
            _ => {
                let missing = Missing { window: Window { start_ns, end_ns }, finest, is_damaged: false };
                self.plan.missing.push(MissingRange { class: self.class, holder, missing });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_NS: i64 = 86_400_000_000_000;
    /// 2026-09-21T00:00:00Z.
    const T0: i64 = 20_717 * DAY_NS;

    /// Returns a state in which every partition of these days exists.
    fn state(days: i64) -> State {
        let mut state = State::default();
        for tier in Tier::ALL {
            let mut time_ns = T0 + 1;
            while time_ns <= T0 + days * DAY_NS {
                state.existing.insert(PartitionKey::of(tier, 0, 1, time_ns));
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
            let plan = plan(&state, 1, &buckets, Tiers::ALL);
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
        let plan = plan(&state, 1, &Window::between(&[T0 + 1, T0 + 31 * DAY_NS - 1]), Tiers::ALL);
        let WindowsRead { raw, minutes, hours, days } = plan.windows_read;
        assert_eq!((raw, minutes, hours, days), (2, 118, 46, 29));
    }

    #[test]
    fn edges_are_reported_missing_after_finer_tiers_were_dropped() {
        let mut state = state(40);
        for tier in [Tier::Raw, Tier::Minute] {
            state.expired.insert((tier, 0), T0 + 20 * DAY_NS);
        }
        let start = T0 + DAY_NS + 1;
        let range = Window::between(&[start, T0 + 30 * DAY_NS]);
        let plan = plan(&state, 1, &range, Tiers::ALL);
        let hour_end = T0 + DAY_NS + Tier::Hour.window_ns();
        let window = Window { start_ns: start, end_ns: hour_end };
        let missing = Missing { window, finest: Tier::Hour, is_damaged: false };
        assert_eq!(plan.missing, [MissingRange { class: 0, holder: Tier::Hour, missing }]);
        assert_eq!((plan.windows_read.hours, plan.windows_read.days), (23, 28));
        let raw_only = super::plan(&state, 1, &range, Tiers::RAW);
        let MissingRange { holder, missing, .. } = raw_only.missing[0];
        assert_eq!((holder, missing.finest, missing.window.end_ns), (Tier::Hour, Tier::Raw, T0 + 20 * DAY_NS));
        // Two tiers hold this time, so it is two ranges.
        state.expired.insert((Tier::Minute, 0), T0 + 10 * DAY_NS);
        let both = super::plan(&state, 1, &range, Tiers::RAW);
        let holders: Vec<_> = both.missing.iter().map(|range| (range.holder, range.missing.window.end_ns)).collect();
        assert_eq!(holders, [(Tier::Hour, T0 + 10 * DAY_NS), (Tier::Minute, T0 + 20 * DAY_NS)]);
        let another = super::plan(&state, 2, &range, Tiers::ALL);
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
        let read = plan(&state, 1, &five_of_each_day, Tiers::ALL).windows_read;
        assert_eq!(read, WindowsRead { minutes: 29 * 5, ..WindowsRead::default() });
        state.expired.insert((Tier::Raw, 0), T0 + DAY_NS);
        let plan = plan(&state, 1, &[minutes(0, 1), minutes(1439, 1441)], Tiers::RAW);
        let missing: Vec<Window> = plan.missing.iter().map(|range| range.missing.window).collect();
        assert_eq!(missing, [minutes(0, 1), minutes(1439, 1440)]);
    }
}
