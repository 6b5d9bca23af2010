//! Events: every sample of one series in one window of ten minutes, with its time.
//!
//! Events are sorted by minute, then by attribute set, then by time. An attribute set often identifies a thread, whose
//! ticks are regular. Each minute can be read without the others. A stack is stored as an index into the rows of the
//! chunk's sums.
//!
//! ```text
//! events: | form u8 | unit varint | minutes varint | column heads, form 1 only | minute ... |
//! minute: | minute u8 | samples varint | body, with length |
//! body:   | sets varint | ( attribute set varint | samples varint ) ... | times | stacks | values / unit |
//! ```
//!
//! For each attribute set, form 0 stores the first time since the start of the minute (zigzag), then the differences of
//! times. Its stacks are varints, and its values zigzag varints.
//!
//! In form 1, the column heads are pco's file header and chunk heads. A body holds one pco page for each column, after
//! the length of the page. As in form 0, times are stored as differences. A column of equal values takes no bytes.
//!
//! Invariant: every decoded sample is inside its minute, samples ascend by attribute set, then time, and there are as
//! many as the caller expects. Decoded samples take at most a small multiple of the stored bytes, or the memory of
//! [`COLUMNS_SAMPLES_MAX`] samples.

pub(crate) mod sorted;

use pco::wrapped::{ChunkDecompressor, FileDecompressor};
use proto::{Samples, Tier};

use crate::encoding::varint::{skip, take, take_bytes, take_length, take_u32, unzigzag};

pub(super) const PLAIN: u8 = 0;
pub(super) const COLUMNS: u8 = 1;
/// Minimum number of samples for form 1: fewer samples take less space in form 0, because it has no column heads.
pub(super) const COLUMNS_SAMPLES_MIN: usize = 256;
/// Maximum number of samples for form 1, which take about 100 MB in memory. Columns of equal numbers take no bytes, so
/// without this limit a few bytes could claim much memory. Form 0 needs no limit, because each sample takes at least
/// three bytes.
pub(super) const COLUMNS_SAMPLES_MAX: usize = 1 << 22;
/// Number of minutes in a window.
pub(super) const MINUTES: u8 = 10;

pub(super) fn minute_start_ns(window: u32, minute: u8) -> i64 {
    Tier::Raw.window_start_ns(window) + i64::from(minute) * Tier::Minute.window_ns()
}

/// Events in their stored form. Each minute is decoded when it is needed.
pub(crate) struct Events<'a> {
    window: u32,
    unit: i64,
    columns: Option<Columns>,
    /// The minutes in their stored form. Their numbers and lengths are checked already.
    minutes: &'a [u8],
}

struct Columns {
    times: ChunkDecompressor<i64>,
    stacks: ChunkDecompressor<u32>,
    values: ChunkDecompressor<i64>,
}

struct MinuteBody<'a> {
    minute: u8,
    length: usize,
    body: &'a [u8],
}

/// Samples of one minute, sorted by time within each attribute set. A reader of many chunks reuses the memory.
#[derive(Debug, Default)]
pub(crate) struct MinuteColumns {
    /// Samples of the minute. Their pair numbers are those of the chunk.
    pub(crate) samples: Samples,
    /// For each attribute set, the index after its last sample.
    pub(crate) set_ends: Vec<usize>,
    stack_indexes: Vec<u32>,
}

impl<'a> Events<'a> {
    /// Reads the bytes that `sorted::put_events` appended for this window; `None` if they fail a check, or if the
    /// number of their samples is not `samples`.
    pub(crate) fn read(mut bytes: &'a [u8], window: u32, samples: u64) -> Option<Self> {
        let (&form, rest) = bytes.split_first()?;
        bytes = rest;
        let unit = i64::try_from(take(&mut bytes)?).ok().filter(|&unit| unit > 0)?;
        let count = take_length(&mut bytes).filter(|&count| count <= usize::from(MINUTES))?;
        let columns = match form {
            PLAIN => None,
            COLUMNS => Some(Columns::read(&mut bytes)?),
            _ => return None,
        };
        let minutes = bytes;
        let mut last = None;
        let mut lengths = 0_usize;
        for _ in 0..count {
            let MinuteBody { minute, length, body } = take_minute(&mut bytes)?;
            let ascends = last < Some(minute) && minute < MINUTES;
            // A sample of form 0 takes at least three bytes.
            let length_max = if columns.is_some() { COLUMNS_SAMPLES_MAX } else { body.len() / 3 };
            let is_possible = 0 < length && length <= length_max;
            if !ascends || !is_possible {
                return None;
            }
            last = Some(minute);
            lengths = lengths.checked_add(length)?;
        }
        let is_possible = columns.is_none() || lengths <= COLUMNS_SAMPLES_MAX;
        let is_whole = bytes.is_empty() && is_possible && lengths as u64 == samples;
        is_whole.then_some(Self { window, unit, columns, minutes })
    }

    /// Calls `is_wanted` with the `(start, end]` of each minute, and then `visit` if the minute is wanted. `stacks` are
    /// the stacks of the chunk's sums. Without `stacks`, samples have no pairs, and the column of stacks is not read.
    /// The samples of a minute are in `to`. Returns `None` if a wanted minute fails a check.
    pub(crate) fn for_each_minute(
        &mut self,
        stacks: Option<&[u32]>,
        to: &mut MinuteColumns,
        mut is_wanted: impl FnMut(i64, i64) -> bool,
        mut visit: impl FnMut(&MinuteColumns),
    ) -> Option<()> {
        let mut minutes = self.minutes;
        while !minutes.is_empty() {
            let stored = take_minute(&mut minutes)?;
            let start_ns = minute_start_ns(self.window, stored.minute);
            if is_wanted(start_ns, start_ns + Tier::Minute.window_ns()) {
                self.read_minute(stored, stacks, to)?;
                visit(to);
            }
        }
        Some(())
    }

    fn read_minute(&mut self, stored: MinuteBody<'_>, stacks: Option<&[u32]>, to: &mut MinuteColumns) -> Option<()> {
        let MinuteBody { minute, length, mut body } = stored;
        let sets = take_length(&mut body).filter(|&sets| sets <= body.len())?;
        let MinuteColumns { samples, set_ends, stack_indexes } = to;
        samples.attribute_sets.clear();
        set_ends.clear();
        for _ in 0..sets {
            let set = take_u32(&mut body)?;
            let start = samples.attribute_sets.len();
            let end = start.checked_add(take_length(&mut body)?)?;
            let ascends = samples.attribute_sets.last().is_none_or(|&last| last < set);
            if !ascends || end == start || end > length {
                return None;
            }
            samples.attribute_sets.resize(end, set);
            set_ends.push(end);
        }
        if samples.attribute_sets.len() != length {
            return None;
        }
        samples.times_ns.clear();
        samples.times_ns.resize(length, 0);
        samples.values.clear();
        samples.values.resize(length, 0);
        stack_indexes.clear();
        let stack_indexes_read = stacks.map(|_| {
            stack_indexes.resize(length, 0);
            stack_indexes.as_mut_slice()
        });
        match &mut self.columns {
            None => read_plain(&mut body, set_ends, samples, stack_indexes_read)?,
            Some(columns) => columns.read_pages(&mut body, samples, stack_indexes_read)?,
        }
        if !times_are_of_a_minute(&samples.times_ns, set_ends) {
            return None;
        }
        let start_ns = minute_start_ns(self.window, minute);
        samples.times_ns.iter_mut().for_each(|time| *time += start_ns);
        if self.unit != 1 {
            for value in &mut samples.values {
                *value = value.checked_mul(self.unit)?;
            }
        }
        samples.pairs.clear();
        if let Some(stacks) = stacks {
            for &index in stack_indexes.iter() {
                samples.pairs.push(*stacks.get(index as usize)?);
            }
        }
        body.is_empty().then_some(())
    }
}

/// Returns whether times, counted from a minute's start, are inside the minute and ascend within each attribute set.
fn times_are_of_a_minute(times: &[i64], set_ends: &[usize]) -> bool {
    let mut start = 0;
    set_ends.iter().all(|&end| {
        let of_set = times.get(start..end).unwrap_or_default();
        start = end;
        let is_inside = |time: Option<&i64>| time.is_some_and(|time| (1..=Tier::Minute.window_ns()).contains(time));
        is_inside(of_set.first()) && is_inside(of_set.last()) && of_set.is_sorted()
    })
}

fn take_minute<'a>(bytes: &mut &'a [u8]) -> Option<MinuteBody<'a>> {
    let (&minute, rest) = bytes.split_first()?;
    *bytes = rest;
    let length = take_length(bytes)?;
    Some(MinuteBody { minute, length, body: take_bytes(bytes)? })
}

/// Reads the body of a minute after its attribute sets. Without `stacks`, the stacks are skipped.
fn read_plain(body: &mut &[u8], set_ends: &[usize], samples: &mut Samples, stacks: Option<&mut [u32]>) -> Option<()> {
    let mut start = 0;
    for &end in set_ends {
        let times = samples.times_ns.get_mut(start..end)?;
        let mut time = 0;
        for (i, to) in times.iter_mut().enumerate() {
            let number = take(body)?;
            time = if i == 0 { unzigzag(number) } else { time.checked_add_unsigned(number)? };
            *to = time;
        }
        start = end;
    }
    match stacks {
        None => skip(body, samples.times_ns.len())?,
        Some(stacks) => {
            for stack in stacks {
                *stack = take_u32(body)?;
            }
        }
    }
    for value in &mut samples.values {
        *value = unzigzag(take(body)?);
    }
    Some(())
}

impl Columns {
    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (file, rest) = FileDecompressor::new(take_bytes(bytes)?).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let times = file.chunk_decompressor(take_bytes(bytes)?).ok()?.0;
        let stacks = file.chunk_decompressor(take_bytes(bytes)?).ok()?.0;
        let values = file.chunk_decompressor(take_bytes(bytes)?).ok()?.0;
        Some(Self { times, stacks, values })
    }

    /// Reads the pages of a minute. Without `stacks`, the column of stacks is skipped.
    fn read_pages(&mut self, body: &mut &[u8], samples: &mut Samples, stacks: Option<&mut [u32]>) -> Option<()> {
        let length = samples.times_ns.len();
        let mut page = self.times.page_decompressor(take_bytes(body)?, length).ok()?;
        page.read(&mut samples.times_ns).ok().filter(|read| read.finished)?;
        let stacks_page = take_bytes(body)?;
        if let Some(stacks) = stacks {
            let mut page = self.stacks.page_decompressor(stacks_page, length).ok()?;
            page.read(stacks).ok().filter(|read| read.finished)?;
        }
        let mut page = self.values.page_decompressor(take_bytes(body)?, length).ok()?;
        page.read(&mut samples.values).ok().filter(|read| read.finished).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoding::events::sorted::put_events;

    const WINDOW: u32 = 2_983_333;

    fn rows(samples: &Samples) -> Vec<(i64, u32, i64, u32)> {
        let row = |i: usize| (samples.times_ns[i], samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
        let mut rows: Vec<_> = (0..samples.len()).map(row).collect();
        rows.sort_unstable();
        rows
    }

    fn read_all(bytes: &[u8], count: usize, stacks: &[u32]) -> Option<Samples> {
        let mut all = Samples::default();
        let mut events = Events::read(bytes, WINDOW, count as u64)?;
        let mut to = MinuteColumns::default();
        events.for_each_minute(Some(stacks), &mut to, |_, _| true, |minute| all.append(minute.samples.clone()))?;
        Some(all)
    }

    fn samples(rows: &[(i64, u32, i64, u32)], unit: i64) -> Samples {
        let mut samples = Samples::default();
        for &(time, pair, value, set) in rows {
            samples.push(Tier::Raw.window_start_ns(WINDOW) + 1 + time, pair, value.saturating_mul(unit), set);
        }
        samples
    }

    fn row() -> impl Strategy<Value = (i64, u32, i64, u32)> {
        let value = prop_oneof![6 => 1..4_i64, 1 => -4..4_i64, 1 => any::<i64>()];
        (0..600_000_000_000_i64, 0..50_u32, value, 0..5_u32)
    }

    proptest! {
        #[test]
        fn events_decode_to_the_encoded_samples(
            rows_in in prop::collection::vec(row(), 1..700),
            unit in prop_oneof![Just(1), Just(52_631_578)],
        ) {
            let samples = samples(&rows_in, unit);
            // Stacks 0 to 49 have indexes 49 to 0.
            let index: Vec<u32> = (0..50).rev().collect();
            let mut bytes = Vec::new();
            put_events(&mut bytes, &samples, WINDOW, &index).unwrap();
            prop_assert_eq!(rows(&read_all(&bytes, rows_in.len(), &index).unwrap()), rows(&samples));
            let first = samples.times_ns[0];
            let mut seen = 0;
            prop_assert!(read_all(&bytes, rows_in.len() + 1, &index).is_none(), "too few samples");
            let mut events = Events::read(&bytes, WINDOW, rows_in.len() as u64).unwrap();
            let wanted = |start: i64, end: i64| start < first && first <= end;
            let mut to = MinuteColumns::default();
            events.for_each_minute(Some(&index), &mut to, wanted, |minute| {
                assert!(minute.samples.times_ns.contains(&first));
                let starts = std::iter::once(0).chain(minute.set_ends.iter().copied());
                for (start, &end) in starts.zip(&minute.set_ends) {
                    assert!(minute.samples.times_ns[start..end].is_sorted());
                }
                seen += 1;
            }).unwrap();
            prop_assert_eq!(seen, 1);
            // Without stacks, everything else is the same. `to` still has the samples of another minute.
            let mut without_stacks = Samples::default();
            events.for_each_minute(None, &mut to, |_, _| true, |minute| {
                assert!(minute.samples.pairs.is_empty());
                let pairs = vec![0; minute.samples.times_ns.len()];
                without_stacks.append(Samples { pairs, ..minute.samples.clone() });
            }).unwrap();
            let all = read_all(&bytes, rows_in.len(), &[0; 50]).unwrap();
            prop_assert_eq!(rows(&without_stacks), rows(&all));
        }

        #[test]
        fn arbitrary_bytes_decode_to_events_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            count in 0..20_usize,
        ) {
            let _read_or_not = read_all(&bytes, count, &[1, 2, 3]);
        }
    }

    /// Asserts the invariant of decoded events.
    fn assert_is_sound(samples: &Samples, count: usize) {
        assert_eq!(samples.len(), count);
        let minute = |i: usize| Tier::Minute.window_of(samples.times_ns[i]);
        assert!(samples.times_ns.iter().all(|&time| Tier::Raw.window_of(time) == WINDOW));
        let key = |i: usize| (minute(i), samples.attribute_sets[i], samples.times_ns[i]);
        assert!((1..count).all(|i| key(i - 1) <= key(i)));
    }

    #[test]
    fn damaged_events_are_refused_or_keep_the_guarantees() {
        for count in [200_usize, 2000] {
            let rows_in: Vec<_> =
                (0..count as i64).map(|i| (i * 52_631_578 * 5, (i % 37) as u32, 1, (i % 3) as u32)).collect();
            let index: Vec<u32> = (0..50).collect();
            let mut bytes = Vec::new();
            put_events(&mut bytes, &samples(&rows_in, 3), WINDOW, &index).unwrap();
            let mut read = 0;
            let mut refused = 0;
            for at in 0..bytes.len() {
                for flip in [1, 2, 0x10, 0x80, 0xff] {
                    let mut bad = bytes.clone();
                    bad[at] ^= flip;
                    match read_all(&bad, count, &index) {
                        Some(samples) => {
                            read += 1;
                            assert_is_sound(&samples, count);
                        }
                        None => refused += 1,
                    }
                }
            }
            // Damage that only changes a value or a stack contradicts nothing, so it cannot be detected here.
            assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
        }
    }

    #[test]
    fn a_few_bytes_never_decode_to_more_than_the_most_samples() {
        let count = COLUMNS_SAMPLES_MAX;
        let index = [0];
        let rows_in: Vec<_> = vec![(0, 0, 1, 1); count];
        let mut bytes = Vec::new();
        put_events(&mut bytes, &samples(&rows_in, 1), WINDOW, &index).unwrap();
        assert!(bytes.len() < 1000, "{} bytes", bytes.len());
        assert_eq!(read_all(&bytes, count, &[0]).unwrap().len(), count);
        // The number of samples occurs twice: for the minute, and for its only attribute set.
        let length = [0x80, 0x80, 0x80, 2];
        let mut bad = bytes.clone();
        let mut offsets = (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == length);
        for at in [offsets.next().unwrap(), offsets.next().unwrap()] {
            bad[at + 3] = 3;
        }
        assert!(read_all(&bad, count * 3 / 2, &[0]).is_none());
        bytes.clear();
        put_events(&mut bytes, &samples(&vec![(0, 0, 1, 1); count + 1], 1), WINDOW, &index).unwrap();
        assert!(bytes.len() > count * 3, "{} bytes", bytes.len());
    }
}
