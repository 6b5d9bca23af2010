//! Sums of one series in windows of a minute, an hour or a day: one value for one window, or for the ten minutes of one chunk.
//!
//! ```text
//! | kind u8: 0 sums, 1 a gauge's last points | unit varint | windows varint | window ... |
//! window: | place u8 | samples varint | total | last time zigzag, of a gauge, since the value's start | sums behind their length |
//!
//! | kind u8: 2 minutes that share their sums | unit varint | windows varint | ( place u8 | samples varint | total ) ... |
//! | sums of all, behind their length | shares |
//! ```
//!
//! Most stacks of a minute come in the minutes beside it, too: so a stack stands once in a value, with its sum of all its minutes, and
//! how that is divided among them. Minutes of which a sum is negative, zero, or above 32 bits are apart, as gauges are. Gauges do not add up over time: what is kept of a window is its last point, all stacks of one time. Checks: places ascend and are below
//! ten, of hours and days 0; a last point is in its window; there is a window, and in it a sample; nothing is left over.
//! Of shared sums, see `encoding::shares`.

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

/// What is stored of one window.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowRows {
    /// Which of the value's windows.
    pub(crate) place: u8,
    pub(crate) samples: u64,
    /// Of a gauge, the time of its point.
    pub(crate) last_ns: i64,
    pub(crate) rows: Vec<Row>,
}

/// The value of some windows, ascending; `start_ns` is the value's start.
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
        out.push(window.place);
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

/// What each minute has of each stack, in units, ascending by stack; `None` if a sum of it, or of all, is no number from 1 on of 32 bits.
fn parts_of(windows: &[WindowRows], unit: u64) -> Option<Vec<(u32, Parts)>> {
    let mut of_minutes: Vec<(u32, u8, u32)> = Vec::new();
    for window in windows {
        for &(stack, sum) in &window.rows {
            let part = u32::try_from(sum / i128::from(unit)).ok().filter(|&part| part > 0)?;
            of_minutes.push((stack, window.place, part));
        }
    }
    // Each minute's ascend, which this sort makes use of.
    of_minutes.sort_by_key(|of| of.0);
    let mut all = Vec::new();
    for of_stack in of_minutes.chunk_by(|a, b| a.0 == b.0) {
        let (mut parts, mut sum) = (Parts::default(), 0_u32);
        for &(_, place, part) in of_stack {
            *parts.get_mut(usize::from(place))? = part;
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
        out.push(window.place);
        put(&mut out, window.samples);
        put_sum(&mut out, window.rows.iter().map(|row| row.1).sum());
    }
    let sum_of = |parts: &Parts| parts.iter().map(|&part| i128::from(part) * i128::from(unit)).sum();
    let rows: Vec<Row> = parts.iter().map(|(stack, parts)| (*stack, sum_of(parts))).collect();
    let (mut sums, mut in_order) = (Vec::new(), Vec::new());
    put_rows(&mut sums, &rows, unit, false);
    put_bytes(&mut out, &sums);
    // In the order in which a reader meets them.
    if let Some(sums) = Sums::read(&sums, unit) {
        let _read: Option<()> = sums.for_each(|stack, _| {
            in_order.push(parts.get(parts.binary_search_by_key(&stack, |of| of.0).ok()?)?.1);
            Some(())
        });
    }
    put_shares(&mut out, in_order.into_iter());
    out
}

/// The minutes of samples of one chunk's window, sorted by time.
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
        let place = minute.saturating_sub(first_minute) as u8;
        let rows = scratch.sums(samples, from..end);
        minutes.push(WindowRows { place, samples: (end - from) as u64, last_ns, rows });
        start = end;
    }
    minutes
}

/// The minutes of samples that come in parts.
#[derive(Debug, Default)]
pub(crate) struct Minutes(BTreeMap<u8, WindowRows>);

impl Minutes {
    /// Adds the minutes of a part. Of a gauge the last point counts, with all the stacks that any part has of its time.
    pub(crate) fn add(&mut self, part: Vec<WindowRows>, is_gauge: bool) {
        for minute in part {
            match self.0.entry(minute.place) {
                Entry::Vacant(entry) => {
                    entry.insert(minute);
                }
                Entry::Occupied(mut entry) => entry.get_mut().add(minute, is_gauge),
            }
        }
    }

    /// Ascending.
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

/// One window as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWindow<'a> {
    pub(crate) place: u8,
    pub(crate) samples: u64,
    pub(crate) total: i128,
    /// Of a gauge, the time of its point.
    pub(crate) last_ns: Option<i64>,
    pub(crate) sums: Sums<'a>,
    /// With the other windows of the value.
    are_shared: bool,
}

impl<'a> StoredWindow<'a> {
    fn minutes(&self) -> shares::Minutes {
        1 << self.place
    }
}

/// Windows of one value, each for itself; those that share their sums as one, which is read at once.
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

/// The windows of a value, ascending. `values` is the tier whose windows values have, and `window` which of them: of minutes those of
/// chunks, else of the tier itself.
pub(crate) fn decode(mut bytes: &[u8], values: Tier, window: u32) -> Option<Vec<StoredWindow<'_>>> {
    let start_ns = values.window_start_ns(window);
    let (places, width_ns) = match values {
        Tier::Raw => (Tier::Minute.windows_in(Tier::Raw), Tier::Minute.window_ns()),
        tier => (1, tier.window_ns()),
    };
    let (&kind, rest) = bytes.split_first().filter(|(kind, _)| **kind <= SHARED)?;
    bytes = rest;
    let unit = take(&mut bytes)?;
    let count = take_length(&mut bytes).filter(|&count| 0 < count && count <= places as usize)?;
    // Where one asks for all there is, nobody would read the shares.
    if kind == SHARED && count < 2 {
        return None;
    }
    let mut windows: Vec<StoredWindow<'_>> = Vec::with_capacity(count);
    for _ in 0..count {
        let (&place, rest) = bytes.split_first()?;
        bytes = rest;
        let samples = take(&mut bytes).filter(|&samples| samples > 0)?;
        let total = take_sum(&mut bytes)?;
        let from_ns = i64::from(place) * width_ns;
        let is_inside = |last: &i64| from_ns < *last && *last <= from_ns + width_ns;
        let last_ns = if kind == LAST_POINTS {
            Some(start_ns + Some(unzigzag(take(&mut bytes)?)).filter(is_inside)?)
        } else {
            None
        };
        let sums = if kind == SHARED { Sums::default() } else { Sums::read(take_bytes(&mut bytes)?, unit)? };
        if u32::from(place) >= places || windows.last().is_some_and(|last| last.place >= place) {
            return None;
        }
        windows.push(StoredWindow { place, samples, total, last_ns, sums, are_shared: kind == SHARED });
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
    use crate::memory::slot_sums::SlotSums;

    const WINDOW: u32 = 2_983_333;

    fn sum() -> impl Strategy<Value = i128> {
        prop_oneof![60 => 1..20_i128, 10 => 20..1000_i128, 1 => Just(u32::MAX.into()), 1 => -5..1_i128]
    }

    proptest! {
        #[test]
        fn windows_come_back(
            rows in prop::collection::btree_map(0..10_u8, (1..1000_u64, 1..=60_000_000_000_i64, prop::collection::btree_map(0..500_u32, sum(), 1..60)), 1..10),
            is_gauge: bool,
            asked in 0..11_usize,
        ) {
            let start_ns = Tier::Raw.window_start_ns(WINDOW);
            let minute_ns = |place: u8| start_ns + i64::from(place) * Tier::Minute.window_ns();
            let windows: Vec<WindowRows> = rows
                .into_iter()
                .map(|(place, (samples, last, rows))| WindowRows { place, samples, last_ns: minute_ns(place) + last, rows: rows.into_iter().collect() })
                .collect();
            let bytes = encode(&windows, is_gauge, start_ns);
            let read = decode(&bytes, Tier::Raw, WINDOW).unwrap();
            prop_assert_eq!(read.len(), windows.len());
            for (got, wanted) in read.iter().zip(&windows) {
                let mut rows = Vec::new();
                got.sums.for_each(|stack, sum| { rows.push((stack, sum)); Some(()) }).unwrap();
                rows.sort_unstable();
                prop_assert_eq!((got.place, got.samples, &rows), (wanted.place, wanted.samples, &wanted.rows));
                prop_assert_eq!(got.total, wanted.rows.iter().map(|row| row.1).sum::<i128>());
                prop_assert_eq!(got.last_ns, is_gauge.then_some(wanted.last_ns));
            }
            // Some of them together.
            let asked = asked.min(windows.len());
            let mut dense = SlotSums::default();
            dense.resize(500);
            let mut samples = 0;
            for window in joined(&read[..asked]) {
                window.sums.add_to(&mut dense, window.total).unwrap();
                samples += window.samples;
            }
            prop_assert_eq!(samples, windows[..asked].iter().map(|window| window.samples).sum::<u64>());
            let mut wanted: BTreeMap<u32, i128> = BTreeMap::new();
            windows[..asked].iter().flat_map(|window| &window.rows).for_each(|row| *wanted.entry(row.0).or_default() += row.1);
            let mut got = BTreeMap::new();
            dense.drain(|stack, sum| { got.insert(stack, sum); });
            prop_assert_eq!(got, wanted);
        }

        #[test]
        fn any_bytes_are_windows_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _read_or_not = decode(&bytes, Tier::Raw, WINDOW);
        }
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        let minute = |place, samples, last_ns| WindowRows { place, samples, last_ns, rows: vec![(1, 1)] };
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
        assert!(!reads(&[minute(10, 1, 10 * minute_ns + 1)], Tier::Raw), "of the next value");
        assert!(!reads(&[minute(1, 1, minute_ns + 1)], Tier::Hour), "of the next hour");
        assert!(!reads(&[minute(0, 1, 0)], Tier::Raw), "a point before its window");
        assert!(!reads(&[minute(0, 1, minute_ns + 1)], Tier::Raw), "a point behind its window");
        assert!(!reads(&[minute(1, 1, minute_ns + 1), minute(0, 1, 1)], Tier::Raw), "in another order");
    }

    #[test]
    fn what_minutes_share_is_stored_once() {
        let start_ns = Tier::Raw.window_start_ns(WINDOW);
        let minute = |place: u8| {
            let rows = (0..300).map(|stack| (stack * 7, i128::from(1 + (stack + u32::from(place)) % 3) * 52)).collect();
            WindowRows { place, samples: 600, last_ns: 0, rows }
        };
        let length = |minutes: &[WindowRows]| encode(minutes, false, start_ns).len();
        let minutes: Vec<WindowRows> = (0..10).map(minute).collect();
        let apart: usize = minutes.iter().map(|minute| length(std::slice::from_ref(minute))).sum();
        assert!(length(&minutes) * 3 < apart * 2, "{} and apart {apart}", length(&minutes));
        // Where a sum is no number from 1 on, they are apart.
        let mut odd = minutes.clone();
        odd[3].rows[5].1 = 0;
        assert!(length(&odd) > apart / 2, "{} and apart {apart}", length(&odd));
        assert_eq!((encode(&minutes, false, start_ns)[0], encode(&odd, false, start_ns)[0]), (SHARED, SUMS));
    }

    #[test]
    fn a_minute_of_a_gauge_is_its_last_point() {
        let window = 2_983_333;
        let start_ns = Tier::Raw.window_start_ns(window);
        let mut samples = Samples::default();
        for (second, pair, value) in [(1, 1, 5), (59, 1, 7), (59, 2, 8), (60, 2, 9), (61, 1, 1)] {
            samples.push(start_ns + second * 1_000_000_000, pair, value, 0);
        }
        let minutes = minutes_of(&samples, window, true, &mut Scratch::default());
        let got: Vec<_> = minutes.iter().map(|m| (m.place, m.samples, m.rows.clone())).collect();
        assert_eq!(got, [(0, 1, vec![(2, 9)]), (1, 1, vec![(1, 1)])]);
        let minutes = minutes_of(&samples, window, false, &mut Scratch::default());
        assert_eq!(minutes[0].rows, [(1, 12), (2, 17)]);
    }
}
