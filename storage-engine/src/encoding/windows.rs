//! Windows: sums of one series in a minute, an hour or a day. A value holds one hour or one day, or the minutes of one
//! chunk's window.
//!
//! ```text
//! kinds 0 and 1:
//! | kind u8 | unit varint | windows varint | window ... |
//! window, kind 0: sums        | slot u8 | samples varint | total | sums, with length |
//! window, kind 1: last points | slot u8 | samples varint | total | last time zigzag | sums, with length |
//!
//! kind 2: minutes that share their sums
//! | kind u8 = 2 | unit varint | windows varint | ( slot u8 | samples varint | total ) ... |
//! | sums of all windows, with length | splits, see `encoding::shares` |
//! ```
//!
//! Most stacks of a minute also occur in the minutes before and after it. Kind 2 stores each stack once, with its sum
//! over all minutes and the split of this sum among the minutes. Kind 2 is used for at least two minutes of a series
//! that is not a gauge, if every sum and every total of a stack is in `1..=u32::MAX` units.
//!
//! Gauges do not add up over time, so kind 1 keeps only the last point of each window: the values of all stacks at one
//! time. The time of the point counts from the start of the time that the value covers.
//!
//! A reader checks that there is a window, that slots ascend and are in range, that a last point is inside its window,
//! that every window has a sample, and that no bytes remain.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use proto::{Samples, Tier};

use crate::encoding::chunk::Scratch;
use crate::encoding::shares::{self, Parts, Shares, put_shares};
use crate::encoding::sums::{Row, Sums, put_rows, unit_of};
use crate::encoding::varint::{put, put_bytes, put_sum, take, take_bytes, take_length, take_sum, unzigzag, zigzag};

const SUMS: u8 = 0;
const LAST_POINTS: u8 = 1;
const SHARED: u8 = 2;

/// One decoded window of a value: a minute, an hour or a day.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowRows {
    /// Index of the window among the windows of the value.
    pub(crate) slot: u8,
    pub(crate) samples: u64,
    /// Time of the last sample. For a gauge, the time of the point that is kept.
    pub(crate) last_ns: i64,
    pub(crate) rows: Vec<Row>,
}

/// Encodes windows that ascend by slot. `start_ns` is the start of the time that the value covers.
pub(crate) fn encode(windows: &[WindowRows], is_gauge: bool, start_ns: i64) -> Vec<u8> {
    let unit = unit_of(windows.iter().flat_map(|window| &window.rows).map(|row| row.1));
    let are_shared = !is_gauge && windows.len() > 1;
    if let Some(parts) = if are_shared { parts_of(windows, unit) } else { None } {
        return encode_shared(windows, unit, &parts);
    }
    let mut out = vec![if is_gauge { LAST_POINTS } else { SUMS }];
    put(&mut out, unit);
    put(&mut out, windows.len() as u64);
    let mut rows = Vec::new();
    for window in windows {
        out.push(window.slot);
        put(&mut out, window.samples);
        put_sum(&mut out, window.rows.iter().map(|row| row.1).sum());
        if is_gauge {
            put(&mut out, zigzag(window.last_ns.wrapping_sub(start_ns)));
        }
        rows.clear();
        put_rows(&mut rows, &window.rows, unit, false);
        put_bytes(&mut out, &rows);
    }
    out
}

/// Returns the sum of each stack in each minute, in units, ascending by stack; `None` if one of these sums, or the
/// total of a stack, is not in `1..=u32::MAX`.
fn parts_of(windows: &[WindowRows], unit: u64) -> Option<Vec<(u32, Parts)>> {
    let mut of_minutes: Vec<(u32, u8, u32)> = Vec::new();
    for window in windows {
        for &(stack, sum) in &window.rows {
            let part = u32::try_from(sum / i128::from(unit)).ok().filter(|&part| part > 0)?;
            of_minutes.push((stack, window.slot, part));
        }
    }
    // The rows of each minute ascend already, so this stable sort is fast.
    of_minutes.sort_by_key(|of| of.0);
    let mut all = Vec::new();
    for of_stack in of_minutes.chunk_by(|a, b| a.0 == b.0) {
        let mut parts = Parts::default();
        let mut sum = 0_u32;
        for &(_, slot, part) in of_stack {
            *parts.get_mut(usize::from(slot))? = part;
            sum = sum.checked_add(part)?;
        }
        all.push((of_stack.first()?.0, parts));
    }
    Some(all)
}

fn encode_shared(windows: &[WindowRows], unit: u64, parts: &[(u32, Parts)]) -> Vec<u8> {
    let mut out = vec![SHARED];
    put(&mut out, unit);
    put(&mut out, windows.len() as u64);
    for window in windows {
        out.push(window.slot);
        put(&mut out, window.samples);
        put_sum(&mut out, window.rows.iter().map(|row| row.1).sum());
    }
    let sum_of = |parts: &Parts| parts.iter().map(|&part| i128::from(part) * i128::from(unit)).sum();
    let rows: Vec<Row> = parts.iter().map(|(stack, parts)| (*stack, sum_of(parts))).collect();
    let mut sums = Vec::new();
    let mut in_order = Vec::new();
    put_rows(&mut sums, &rows, unit, false);
    put_bytes(&mut out, &sums);
    // The splits follow in the order in which a reader visits the sums.
    if let Some(sums) = Sums::read(&sums, unit) {
        let _read: Option<()> = sums.for_each(|stack, _| {
            in_order.push(parts.get(parts.binary_search_by_key(&stack, |of| of.0).ok()?)?.1);
            Some(())
        });
    }
    put_shares(&mut out, in_order.into_iter());
    out
}

/// Returns the minutes of one chunk's window. `samples` holds the samples of this window, sorted by time.
pub(crate) fn minutes_of(samples: &Samples, window: u32, is_gauge: bool, scratch: &mut Scratch) -> Vec<WindowRows> {
    let first_minute = window * Tier::Minute.windows_in(Tier::Raw);
    let mut minutes = Vec::new();
    let mut start = 0;
    while start < samples.len() {
        let minute = Tier::Minute.window_of(samples.times_ns[start]);
        let end = start + samples.times_ns[start..].partition_point(|&time| Tier::Minute.window_of(time) == minute);
        let last_ns = samples.times_ns[end - 1];
        let from =
            if is_gauge { start + samples.times_ns[start..end].partition_point(|&time| time < last_ns) } else { start };
        let slot = minute.saturating_sub(first_minute) as u8;
        let rows = scratch.sums(samples, from..end);
        minutes.push(WindowRows { slot, samples: (end - from) as u64, last_ns, rows });
        start = end;
    }
    minutes
}

/// Minutes of one chunk's window, added up from several parts of its samples.
#[derive(Debug, Default)]
pub(crate) struct Minutes(BTreeMap<u8, WindowRows>);

impl Minutes {
    /// Adds the minutes of one part of the samples. For a gauge, only the last point is kept, with the stacks of all
    /// parts at its time.
    pub(crate) fn add(&mut self, part: Vec<WindowRows>, is_gauge: bool) {
        for minute in part {
            match self.0.entry(minute.slot) {
                Entry::Vacant(entry) => {
                    entry.insert(minute);
                }
                Entry::Occupied(mut entry) => entry.get_mut().add(minute, is_gauge),
            }
        }
    }

    /// Returns the minutes, ascending.
    pub(crate) fn into_windows(self) -> Vec<WindowRows> {
        self.0.into_values().collect()
    }
}

impl WindowRows {
    fn add(&mut self, other: Self, is_gauge: bool) {
        match self.last_ns.cmp(&other.last_ns) {
            Ordering::Less if is_gauge => return *self = other,
            Ordering::Greater if is_gauge => return,
            _ => {}
        }
        self.samples += other.samples;
        self.last_ns = self.last_ns.max(other.last_ns);
        let mut rows: BTreeMap<u32, i128> = std::mem::take(&mut self.rows).into_iter().collect();
        other.rows.into_iter().for_each(|(stack, sum)| *rows.entry(stack).or_default() += sum);
        self.rows = rows.into_iter().collect();
    }
}

/// One window of a value, in its stored form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWindow<'a> {
    pub(crate) slot: u8,
    pub(crate) samples: u64,
    pub(crate) total: i128,
    /// Time of a gauge's point; `None` if the series is not a gauge.
    pub(crate) last_ns: Option<i64>,
    pub(crate) sums: Sums<'a>,
    /// True if the windows of the value share their sums (kind 2).
    are_shared: bool,
}

impl<'a> StoredWindow<'a> {
    fn minutes(&self) -> shares::Minutes {
        1 << self.slot
    }
}

/// Returns these windows of one value. Windows that share their sums are returned as one window, so that the sums are
/// read only once.
pub(crate) fn joined<'a>(windows: &[StoredWindow<'a>]) -> impl Iterator<Item = StoredWindow<'a>> {
    let shared = windows.first().filter(|first| first.are_shared).map(|first| {
        let minutes = windows.iter().fold(0, |minutes, window| minutes | window.minutes());
        StoredWindow {
            samples: windows.iter().map(|window| window.samples).fold(0, u64::wrapping_add),
            total: windows.iter().map(|window| window.total).fold(0, i128::wrapping_add),
            sums: first.sums.of_minutes(minutes),
            ..*first
        }
    });
    let apart = if shared.is_some() { &[] } else { windows };
    shared.into_iter().chain(apart.iter().copied())
}

/// Reads the windows of a value, ascending; `None` if a check fails. `window` is the window number in the value's key,
/// which counts windows of tier `values`. For minutes, `values` is [`Tier::Raw`].
pub(crate) fn decode(mut bytes: &[u8], values: Tier, window: u32) -> Option<Vec<StoredWindow<'_>>> {
    let start_ns = values.window_start_ns(window);
    let (slots, width_ns) = match values {
        Tier::Raw => (Tier::Minute.windows_in(Tier::Raw), Tier::Minute.window_ns()),
        tier => (1, tier.window_ns()),
    };
    let (&kind, rest) = bytes.split_first().filter(|(kind, _)| **kind <= SHARED)?;
    bytes = rest;
    let unit = take(&mut bytes)?;
    let count = take_length(&mut bytes).filter(|&count| 0 < count && count <= slots as usize)?;
    // A query of the only minute would never read its splits, so damage in them would never be found.
    if kind == SHARED && count < 2 {
        return None;
    }
    let mut windows: Vec<StoredWindow<'_>> = Vec::with_capacity(count);
    for _ in 0..count {
        let (&slot, rest) = bytes.split_first()?;
        bytes = rest;
        let samples = take(&mut bytes).filter(|&samples| samples > 0)?;
        let total = take_sum(&mut bytes)?;
        let from_ns = i64::from(slot) * width_ns;
        let is_inside = |last: &i64| from_ns < *last && *last <= from_ns + width_ns;
        let last_ns = if kind == LAST_POINTS {
            Some(start_ns + Some(unzigzag(take(&mut bytes)?)).filter(is_inside)?)
        } else {
            None
        };
        let sums = if kind == SHARED { Sums::default() } else { Sums::read(take_bytes(&mut bytes)?, unit)? };
        if u32::from(slot) >= slots || windows.last().is_some_and(|last| last.slot >= slot) {
            return None;
        }
        windows.push(StoredWindow { slot, samples, total, last_ns, sums, are_shared: kind == SHARED });
    }
    if kind == SHARED {
        let sums = take_bytes(&mut bytes)?;
        let stored = windows.iter().fold(0, |minutes, window| minutes | window.minutes());
        let sums = Sums::read_shared(sums, unit, Shares::read(std::mem::take(&mut bytes), stored)?)?;
        windows.iter_mut().for_each(|window| window.sums = sums.of_minutes(window.minutes()));
    }
    bytes.is_empty().then_some(windows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoding::slot_sums::SlotSums;

    const WINDOW: u32 = 2_983_333;

    fn sum() -> impl Strategy<Value = i128> {
        prop_oneof![60 => 1..20_i128, 10 => 20..1000_i128, 1 => Just(u32::MAX.into()), 1 => -5..1_i128]
    }

    proptest! {
        #[test]
        fn windows_decode_to_the_encoded_ones(
            rows in prop::collection::btree_map(
                0..10_u8,
                (1..1000_u64, 1..=60_000_000_000_i64, prop::collection::btree_map(0..500_u32, sum(), 1..60)),
                1..10,
            ),
            is_gauge: bool,
            selected in 0..11_usize,
        ) {
            let start_ns = Tier::Raw.window_start_ns(WINDOW);
            let minute_ns = |slot: u8| start_ns + i64::from(slot) * Tier::Minute.window_ns();
            let windows: Vec<WindowRows> = rows
                .into_iter()
                .map(|(slot, (samples, last, rows))| {
                    WindowRows { slot, samples, last_ns: minute_ns(slot) + last, rows: rows.into_iter().collect() }
                })
                .collect();
            let bytes = encode(&windows, is_gauge, start_ns);
            let read = decode(&bytes, Tier::Raw, WINDOW).unwrap();
            prop_assert_eq!(read.len(), windows.len());
            for (got, wanted) in read.iter().zip(&windows) {
                let mut rows = Vec::new();
                got.sums.for_each(|stack, sum| { rows.push((stack, sum)); Some(()) }).unwrap();
                rows.sort_unstable();
                prop_assert_eq!((got.slot, got.samples, &rows), (wanted.slot, wanted.samples, &wanted.rows));
                prop_assert_eq!(got.total, wanted.rows.iter().map(|row| row.1).sum::<i128>());
                prop_assert_eq!(got.last_ns, is_gauge.then_some(wanted.last_ns));
            }
            // The sums over several windows, which are read together.
            let selected = selected.min(windows.len());
            let mut slots = SlotSums::default();
            slots.resize(500);
            let mut samples = 0;
            for window in joined(&read[..selected]) {
                window.sums.add_to(&mut slots, window.total).unwrap();
                samples += window.samples;
            }
            prop_assert_eq!(samples, windows[..selected].iter().map(|window| window.samples).sum::<u64>());
            let mut wanted: BTreeMap<u32, i128> = BTreeMap::new();
            for row in windows[..selected].iter().flat_map(|window| &window.rows) {
                *wanted.entry(row.0).or_default() += row.1;
            }
            let mut got = BTreeMap::new();
            slots.drain(|stack, sum| { got.insert(stack, sum); });
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn arbitrary_bytes_decode_to_windows_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _read_or_not = decode(&bytes, Tier::Raw, WINDOW);
        }
    }

    #[test]
    fn values_that_no_writer_produces_are_refused() {
        let minute = |slot, samples, last_ns| WindowRows { slot, samples, last_ns, rows: vec![(1, 1)] };
        let reads = |windows: &[WindowRows], values: Tier| {
            let start_ns = values.window_start_ns(WINDOW);
            let at = |window: &WindowRows| WindowRows { last_ns: start_ns + window.last_ns, ..window.clone() };
            let windows: Vec<WindowRows> = windows.iter().map(at).collect();
            decode(&encode(&windows, true, start_ns), values, WINDOW).is_some()
        };
        let minute_ns = Tier::Minute.window_ns();
        assert!(reads(&[minute(0, 1, minute_ns), minute(9, 1, 10 * minute_ns)], Tier::Raw));
        assert!(reads(&[minute(0, 1, minute_ns)], Tier::Hour));
        assert!(!reads(&[], Tier::Raw), "no window");
        assert!(!reads(&[minute(0, 0, 1)], Tier::Raw), "no sample");
        assert!(!reads(&[minute(10, 1, 10 * minute_ns + 1)], Tier::Raw), "a minute of the next value");
        assert!(!reads(&[minute(1, 1, minute_ns + 1)], Tier::Hour), "a minute of the next hour");
        assert!(!reads(&[minute(0, 1, 0)], Tier::Raw), "a point before its window");
        assert!(!reads(&[minute(0, 1, minute_ns + 1)], Tier::Raw), "a point after its window");
        assert!(!reads(&[minute(1, 1, minute_ns + 1), minute(0, 1, 1)], Tier::Raw), "descending slots");
    }

    #[test]
    fn stacks_of_several_minutes_are_stored_once() {
        let start_ns = Tier::Raw.window_start_ns(WINDOW);
        let minute = |slot: u8| {
            let rows = (0..300).map(|stack| (stack * 7, i128::from(1 + (stack + u32::from(slot)) % 3) * 52)).collect();
            WindowRows { slot, samples: 600, last_ns: 0, rows }
        };
        let length = |minutes: &[WindowRows]| encode(minutes, false, start_ns).len();
        let minutes: Vec<WindowRows> = (0..10).map(minute).collect();
        let apart: usize = minutes.iter().map(|minute| length(std::slice::from_ref(minute))).sum();
        assert!(length(&minutes) * 3 < apart * 2, "{} and apart {apart}", length(&minutes));
        // A sum of 0 has no split, so these minutes do not share their sums.
        let mut odd = minutes.clone();
        odd[3].rows[5].1 = 0;
        assert!(length(&odd) > apart / 2, "{} and apart {apart}", length(&odd));
        assert_eq!((encode(&minutes, false, start_ns)[0], encode(&odd, false, start_ns)[0]), (SHARED, SUMS));
    }

    #[test]
    fn a_gauges_minute_is_its_last_point() {
        let window = 2_983_333;
        let start_ns = Tier::Raw.window_start_ns(window);
        let mut samples = Samples::default();
        for (second, pair, value) in [(1, 1, 5), (59, 1, 7), (59, 2, 8), (60, 2, 9), (61, 1, 1)] {
            samples.push(start_ns + second * 1_000_000_000, pair, value, 0);
        }
        let minutes = minutes_of(&samples, window, true, &mut Scratch::default());
        let got: Vec<_> = minutes.iter().map(|m| (m.slot, m.samples, m.rows.clone())).collect();
        assert_eq!(got, [(0, 1, vec![(2, 9)]), (1, 1, vec![(1, 1)])]);
        let minutes = minutes_of(&samples, window, false, &mut Scratch::default());
        assert_eq!(minutes[0].rows, [(1, 12), (2, 17)]);
    }
}
