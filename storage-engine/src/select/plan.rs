//! Planning: divides each bucket of a query into the fewest windows that cover it exactly.
//!
//! Windows are days, hours and minutes. The edges of a bucket are read from raw samples.
//!
//! A window is used if it is completely inside the bucket and exact: it is not stale, and no head has samples of its
//! time. If a window cannot be used, windows of the next finer tier replace it. For each bucket, a query thus reads at
//! most 46 hours, 118 minutes and two raw edges. It also reads the days of the bucket, and the times that are not
//! sealed yet.

pub(crate) mod conflict;
mod stale;

use std::collections::{BTreeMap, BTreeSet};

use proto::answer::{Missing, WindowsRead};
use proto::{Tier, Window};

use crate::database::key::PartitionKey;
use crate::engine::state::State;
use crate::engine::state::label_drops::{PERIOD_NS, period_of};
use crate::select::plan::stale::Stale;

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

/// Data to read from one partition. Both lists are ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartPlan {
    /// Intervals of raw samples. Only a partition of minutes has any.
    pub(crate) raw: Vec<Interval>,
    /// Windows of the partition's tier.
    pub(crate) windows: Vec<WindowRun>,
    /// Names of labels that some of these windows lack.
    pub(crate) dropped_labels: BTreeSet<String>,
}

/// Result of planning: the partitions to read, and the times that no partition can answer.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Data to read by partition. Raw samples are read with the partition of their minutes.
    pub(crate) parts: BTreeMap<PartitionKey, PartPlan>,
    pub(crate) windows_read: WindowsRead,
    pub(crate) missing: Vec<MissingRange>,
}

/// Time that no tier holds in the required resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingRange {
    pub(crate) class: u8,
    /// Finest tier that holds the time.
    pub(crate) holder: Tier,
    /// Time and resolution to report. The resolution is the holder's, or raw samples if the query may not use the
    /// holder.
    pub(crate) missing: Missing,
}

impl MissingRange {
    /// Returns whether the same tier of the same class holds both ranges.
    pub(crate) fn is_held_like(&self, other: &Self) -> bool {
        self.class == other.class && self.holder == other.holder
    }
}

impl PartPlan {
    /// Returns the latest time that this plan reads, in nanoseconds since 1970. `tier` is the tier of the partition.
    pub(crate) fn end_ns(&self, tier: Tier) -> i64 {
        let raw = self.raw.last().map(|interval| interval.end_ns);
        let windows = self.windows.last().map(|run| tier.window_start_ns(run.end));
        raw.max(windows).unwrap_or(i64::MIN)
    }

    /// Returns whether a sample of this time is in the planned data. `tier` is the tier of the partition.
    pub(crate) fn has_time(&self, tier: Tier, time_ns: i64) -> bool {
        let window = tier.window_of(time_ns);
        let run = self.windows.get(self.windows.partition_point(|run| run.end <= window));
        covers(&self.raw, time_ns) || run.is_some_and(|run| run.first <= window)
    }
}

/// Returns whether one of the intervals, which ascend, has a time.
pub(crate) fn covers(intervals: &[Interval], time_ns: i64) -> bool {
    let interval = intervals.get(intervals.partition_point(|interval| interval.end_ns < time_ns));
    interval.is_some_and(|interval| interval.start_ns < time_ns)
}

/// Tiers that a query may read, and labels that their windows must have. Raw samples are always among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tiers {
    allowed: [bool; 4],
    /// Labels. Windows of a period in which their tier drops one of them are not read.
    needed: BTreeSet<String>,
}

impl Tiers {
    pub(crate) const ALL: Self = Self { allowed: [true; 4], needed: BTreeSet::new() };
    pub(crate) const RAW: Self = Self { allowed: [true, false, false, false], needed: BTreeSet::new() };

    pub(crate) fn allows(&self, tier: Tier) -> bool {
        self.allowed[usize::from(tier.number())]
    }

    pub(crate) fn without(mut self, tier: Tier) -> Self {
        self.allowed[usize::from(tier.number())] = false;
        self
    }

    pub(crate) fn with_label(mut self, name: String) -> Self {
        self.needed.insert(name);
        self
    }
}

/// Plans a tenant's reads for ascending buckets. Times between two buckets are neither read nor reported as missing.
pub(crate) fn plan(state: &State, tenant: u32, buckets: &[Window], tiers: &Tiers) -> Plan {
    let mut plan = Plan::default();
    let mut classes: BTreeMap<u8, Vec<PartitionKey>> = BTreeMap::new();
    for key in state.partitions.existing().iter().filter(|key| key.tenant == tenant) {
        classes.entry(key.class).or_default().push(*key);
    }
    for (class, keys) in classes {
        // No partition of the class has other times than these.
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
    for (key, part) in &mut plan.parts {
        let mut before = None;
        for run in &part.windows {
            let periods = [run.first, run.end.saturating_sub(1)].map(|last| period_of(key.tier.window_end_ns(last)));
            // Nearly all runs of a partition are of one period.
            if before.replace(periods) != Some(periods) {
                part.dropped_labels.extend(state.label_drops.between(tenant, key.tier, periods));
            }
        }
    }
    plan
}

/// Sorts missing times and removes duplicates.
pub(crate) fn sort_missing(missing: &mut Vec<Missing>) {
    missing.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
    missing.dedup();
}

/// Returns the times for which there are windows, ascending and disjoint.
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

struct Splitter<'a> {
    state: &'a State,
    class: u8,
    tenant: u32,
    tiers: &'a Tiers,
    stale: Stale,
    /// Times for which there are windows.
    times: Vec<(i64, i64)>,
    keys: BTreeSet<PartitionKey>,
    plan: &'a mut Plan,
}

impl Splitter<'_> {
    /// Plans to read `(start, end]` from windows of this tier and finer ones.
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

    /// Returns whether a window can be used, and the end of the run of adjacent windows for which this answer is the
    /// same. Runs avoid a lookup for each minute of a year.
    fn run(&self, tier: Tier, window: i64, end: i64) -> (bool, i64) {
        // A horizon is the end of a partition, so it is also the end of a window.
        let kept = self.state.horizons.horizon_ns(tier, self.class).div_euclid(tier.window_ns());
        if window < kept {
            return (false, kept.min(end));
        }
        let (has_labels, end) = self.has_labels(tier, window, end);
        if !has_labels {
            return (false, end);
        }
        match self.stale.next(tier, window) {
            Some((stale, stale_end)) if stale == window => (false, stale_end.min(end)),
            Some((stale, _)) => (true, stale.min(end)),
            None => (true, end),
        }
    }

    /// Returns whether a window has all needed labels, and the end of the run of adjacent windows before `end` for
    /// which this answer is the same.
    fn has_labels(&self, tier: Tier, window: i64, end: i64) -> (bool, i64) {
        if self.tiers.needed.is_empty() {
            return (true, end);
        }
        let windows_per_period = PERIOD_NS / tier.window_ns();
        let period = window.div_euclid(windows_per_period);
        let number = u32::try_from(period).unwrap_or_default();
        let dropped = self.state.label_drops.between(self.tenant, tier, [number; 2]);
        (dropped.is_disjoint(&self.tiers.needed), ((period + 1) * windows_per_period).min(end))
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
        let horizon_ns = self.state.horizons.horizon_ns(Tier::Raw, self.class);
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

    /// Reports as missing those parts of `(start, end]` that some coarser tier holds.
    fn add_missing(&mut self, start_ns: i64, end_ns: i64) {
        let from = self.times.partition_point(|times| times.1 <= start_ns);
        if start_ns >= end_ns || self.times.get(from).is_none_or(|times| times.0 >= end_ns) {
            return;
        }
        // Each tier holds the time after its own horizon and before those of finer tiers.
        let horizon_ns = |tier| self.state.horizons.horizon_ns(tier, self.class).clamp(start_ns, end_ns);
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
        let periods = [start_ns.saturating_add(1), end_ns].map(period_of);
        let dropped = self.state.label_drops.between(self.tenant, holder, periods);
        let is_allowed = self.tiers.allows(holder) && dropped.is_disjoint(&self.tiers.needed);
        let finest = if is_allowed { holder } else { Tier::Raw };
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
mod tests;
