//! Areas: ranges of damaged series and windows of a partition.

use proto::{Tier, Window};

use crate::database::key::{self, PartitionKey, Section, numbered, two_numbers};
use crate::integrity::quarantine::damaged_keys::DamagedKeys;

/// Largest number of a series in an area of lost keys. Only an area of lost definitions reaches up to `u32::MAX`.
const SERIES_MAX: u32 = u32::MAX - 1;

/// A range of series and a range of windows of one partition, both ends included. In a partition of minutes, the window
/// numbers are those of chunks.
///
/// An area of all series, from 0 to `u32::MAX`, also holds series that the partition does not define any more. Lost
/// keys alone never give such an area, because the definitions of their series are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Area {
    pub(crate) series: (u32, u32),
    pub(crate) windows: (u32, u32),
}

impl Area {
    /// Returns the area of one value.
    pub(crate) fn value(series: u32, window: u32) -> Self {
        Self { series: (series, series), windows: (window, window) }
    }

    /// Returns the area of all series in a range of windows.
    pub(crate) fn of_windows(first: u32, last: u32) -> Self {
        Self { series: (0, u32::MAX), windows: (first, last) }
    }

    /// Returns the area of all series and windows of a partition, up to a time.
    pub(crate) fn whole(key: PartitionKey, until_ns: i64) -> Self {
        let numbered = numbered(key.tier);
        let last_ns = until_ns.clamp(key.start_ns().saturating_add(1), key.end_ns());
        Self::of_windows(numbered.window_of(key.start_ns().saturating_add(1)), numbered.window_of(last_ns))
    }

    /// Returns the area of all series that a partition defines, in its windows up to a time.
    pub(crate) fn of_defined(key: PartitionKey, until_ns: i64) -> Self {
        Self { series: (0, SERIES_MAX), ..Self::whole(key, until_ns) }
    }

    /// Returns the area between the series and windows of two keys, both keys included. Keys are ordered by series,
    /// then by window.
    pub(crate) fn between(key: PartitionKey, from: (u32, u32), to: (u32, u32)) -> Self {
        let whole = Self::whole(key, key.end_ns());
        if from.0 != to.0 {
            let first = from.0.min(SERIES_MAX);
            return Self { series: (first, to.0.clamp(first, SERIES_MAX)), ..whole };
        }
        let first = from.1.clamp(whole.windows.0, whole.windows.1);
        Self { series: (from.0, from.0), windows: (first, to.1.clamp(first, whole.windows.1)) }
    }

    pub(crate) fn is_value(self) -> bool {
        self.series.0 == self.series.1 && self.windows.0 == self.windows.1
    }

    /// Returns the key of the area's record in the database.
    pub(crate) fn key(self, of: PartitionKey) -> Vec<u8> {
        let Self { series, windows } = self;
        let mut bytes = key::damage_of(of);
        [series.0, series.1, windows.0, windows.1].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes
    }

    /// Returns the partition and the area that the key of a record holds.
    pub(crate) fn read_key(key: &[u8]) -> Option<(PartitionKey, Self)> {
        let (of, rest) = key::read_damage(key)?;
        let (first, last, rest) = two_numbers(rest)?;
        let (from, to, rest) = two_numbers(rest)?;
        rest.is_empty().then_some((of, Self { series: (first, last), windows: (from, to) }))
    }

    pub(crate) fn has_all_series(self) -> bool {
        self.series == (0, u32::MAX)
    }

    /// Returns the range of series; `None` if the area is of all series of the partition.
    pub(crate) fn some_series(self) -> Option<(u32, u32)> {
        (self.series.0 > 0 || self.series.1 < SERIES_MAX).then_some(self.series)
    }

    pub(crate) fn holds(self, series: u32, window: u32) -> bool {
        (self.series.0..=self.series.1).contains(&series) && (self.windows.0..=self.windows.1).contains(&window)
    }

    pub(crate) fn covers(self, other: Self) -> bool {
        self.holds(other.series.0, other.windows.0) && self.holds(other.series.1, other.windows.1)
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.series.0 <= other.series.1 && other.series.0 <= self.series.1 && self.touches(other.windows)
    }

    pub(crate) fn touches(self, windows: (u32, u32)) -> bool {
        self.windows.0 <= windows.1 && windows.0 <= self.windows.1
    }

    pub(crate) fn hull(self, other: Self) -> Self {
        let widest = |a: (u32, u32), b: (u32, u32)| (a.0.min(b.0), a.1.max(b.1));
        Self { series: widest(self.series, other.series), windows: widest(self.windows, other.windows) }
    }

    /// Returns the time range of the area in a partition of this tier.
    pub(crate) fn time(self, tier: Tier) -> Window {
        let numbered = numbered(tier);
        Window { start_ns: numbered.window_start_ns(self.windows.0), end_ns: numbered.window_end_ns(self.windows.1) }
    }
}

/// Returns the area of keys that cannot be read.
pub(crate) fn area_of(key: PartitionKey, section: Section, keys: &DamagedKeys) -> Area {
    area_between(key, section, &keys.from, &keys.to)
}

/// Returns the area of the keys of a section from key `from`, inclusive, to key `to`, exclusive.
pub(crate) fn area_between(key: PartitionKey, section: Section, from: &[u8], to: &[u8]) -> Area {
    let prefix = key.section(section);
    let numbers = |bound: &[u8]| match bound.strip_prefix(prefix.as_slice()) {
        Some(rest) => {
            let mut padded = rest.to_vec();
            padded.resize(rest.len().max(8), 0);
            two_numbers(&padded).map_or((0, 0), |(a, b, _)| (a, b))
        }
        None if bound < prefix.as_slice() => (0, 0),
        None => (u32::MAX, u32::MAX),
    };
    let from = numbers(from);
    let to = numbers(to);
    if section != Section::Head {
        return Area::between(key, from, to);
    }
    // In keys of the head, the window precedes the series.
    let whole = Area::whole(key, key.end_ns());
    let clamped = |window: u32| window.clamp(whole.windows.0, whole.windows.1);
    let series = if from.0 == to.0 { (from.1, to.1.min(SERIES_MAX)) } else { (0, SERIES_MAX) };
    Area { series, windows: (clamped(from.0), clamped(to.0)) }
}
