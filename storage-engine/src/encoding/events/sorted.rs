//! Encodes events: sorts samples by minute, attribute set and time, and writes them in columns.

use pco::wrapped::{ChunkCompressor, FileCompressor};
use pco::{ChunkConfig, DeltaSpec, ModeSpec, PagingSpec};
use proto::{Samples, Tier};

use crate::encoding::events::{COLUMNS, COLUMNS_SAMPLES_MAX, COLUMNS_SAMPLES_MIN, MINUTES, PLAIN, minute_start_ns};
use crate::encoding::sums::unit_of;
use crate::encoding::varint::{put, put_bytes, zigzag};

/// Appends the samples of one window as events. `row_of_pair` maps a pair to the index of its row in the chunk's sums.
///
/// # Errors
/// Pco rejects the numbers; no case is known in which it does.
pub(crate) fn put_events(
    out: &mut Vec<u8>,
    samples: &Samples,
    window: u32,
    row_of_pair: &[u32],
) -> Result<(), pco::errors::PcoError> {
    let unit = unit_of(samples.values.iter().map(|&value| i128::from(value)));
    // The unit needs more than 63 bits only if every value is 0 or `i64::MIN`. Such values are stored as they are, with
    // a unit of one.
    let unit = i64::try_from(unit).unwrap_or(1);
    let sorted = Sorted::new(samples, window, unit, row_of_pair);
    let is_plain = !(COLUMNS_SAMPLES_MIN..=COLUMNS_SAMPLES_MAX).contains(&samples.len());
    out.push(if is_plain { PLAIN } else { COLUMNS });
    put(out, unit.cast_unsigned());
    put(out, sorted.minutes.len() as u64);
    let mut columns = if is_plain { None } else { Some(sorted.columns(out)?) };
    let mut body = Vec::new();
    for (page, minute) in sorted.minutes.iter().enumerate() {
        body.clear();
        put(&mut body, minute.sets.len() as u64);
        for &(set, count) in &minute.sets {
            put(&mut body, u64::from(set));
            put(&mut body, count as u64);
        }
        match &mut columns {
            None => sorted.put_plain(&mut body, minute),
            Some(columns) => {
                for column in columns {
                    let mut bytes = Vec::new();
                    column.write_page(page, &mut bytes)?;
                    put_bytes(&mut body, &bytes);
                }
            }
        }
        out.push(minute.minute);
        put(out, minute.length as u64);
        put_bytes(out, &body);
    }
    Ok(())
}

struct Sorted {
    times: Vec<i64>,
    stacks: Vec<u32>,
    values: Vec<i64>,
    minutes: Vec<MinuteSamples>,
}

struct MinuteSamples {
    minute: u8,
    start: usize,
    length: usize,
    /// Attribute sets of the minute, ascending, each with its number of samples.
    sets: Vec<(u32, usize)>,
}

impl Sorted {
    fn new(samples: &Samples, window: u32, unit: i64, row_of_pair: &[u32]) -> Self {
        let first_minute = window * Tier::Minute.windows_in(Tier::Raw);
        let minute_of = |time| (Tier::Minute.window_of(time).saturating_sub(first_minute) as u8).min(MINUTES - 1);
        let mut order: Vec<(u64, i64, u32, u32)> = (0..)
            .zip(&samples.times_ns)
            .map(|(i, &time)| {
                let row = i as usize;
                let set = samples.attribute_sets[row];
                (u64::from(minute_of(time)) << 32 | u64::from(set), time, samples.pairs[row], i)
            })
            .collect();
        order.sort_unstable();
        let mut minutes: Vec<MinuteSamples> = Vec::new();
        let mut times = Vec::with_capacity(order.len());
        for (start, &(group, time, ..)) in order.iter().enumerate() {
            let minute = (group >> 32) as u8;
            let set = group as u32;
            if minutes.last().is_none_or(|last| last.minute != minute) {
                minutes.push(MinuteSamples { minute, start, length: 0, sets: Vec::new() });
            }
            if let Some(last) = minutes.last_mut() {
                last.length += 1;
                match last.sets.last_mut() {
                    Some((of, count)) if *of == set => *count += 1,
                    _ => last.sets.push((set, 1)),
                }
            }
            times.push(time - minute_start_ns(window, minute));
        }
        let row = |&(.., i): &(u64, i64, u32, u32)| i as usize;
        let stacks = order.iter().map(|at| row_of_pair[samples.pairs[row(at)] as usize]).collect();
        let values = order.iter().map(|at| samples.values[row(at)] / unit).collect();
        Self { times, stacks, values, minutes }
    }

    /// Appends the heads of the three columns, and returns the compressors of times, stacks and values. A column has
    /// one page for each minute.
    fn columns(&self, out: &mut Vec<u8>) -> Result<[ChunkCompressor; 3], pco::errors::PcoError> {
        let pages: Vec<usize> = self.minutes.iter().map(|minute| minute.length).collect();
        let config = |delta| {
            ChunkConfig::default()
                .with_mode_spec(ModeSpec::Classic)
                .with_delta_spec(delta)
                .with_paging_spec(PagingSpec::Exact(pages.clone()))
        };
        let file = FileCompressor::default();
        let columns = [
            file.chunk_compressor(&self.times, &config(DeltaSpec::TryConsecutive(1)))?,
            file.chunk_compressor(&self.stacks, &config(DeltaSpec::NoOp))?,
            file.chunk_compressor(&self.values, &config(DeltaSpec::NoOp))?,
        ];
        let mut head = Vec::new();
        file.write_header(&mut head)?;
        put_bytes(out, &head);
        for column in &columns {
            let mut head = Vec::new();
            column.write_meta(&mut head)?;
            put_bytes(out, &head);
        }
        Ok(columns)
    }

    fn put_plain(&self, body: &mut Vec<u8>, minute: &MinuteSamples) {
        let rows = minute.start..minute.start + minute.length;
        let mut at = minute.start;
        for &(_, count) in &minute.sets {
            let times = &self.times[at..at + count];
            put(body, zigzag(times[0]));
            times.windows(2).for_each(|pair| put(body, pair[1].wrapping_sub(pair[0]).cast_unsigned()));
            at += count;
        }
        self.stacks[rows.clone()].iter().for_each(|&stack| put(body, u64::from(stack)));
        self.values[rows].iter().for_each(|&value| put(body, zigzag(value)));
    }
}
