//! A chunk: the samples of one series in one window that were sealed at one time.
//!
//! ```text
//! block of | count varint | first time zigzag | time deltas varint … | pairs varint … | values zigzag … | attribute sets varint … |
//! ```
//!
//! Samples are sorted by time. All numbers are LEB128 varints.

use proto::Samples;

use crate::block;
use crate::error::{Corruption, CorruptionCheck, EngineError};

/// Seals samples, which must not be empty.
pub(crate) fn encode(samples: &Samples) -> Result<Vec<u8>, EngineError> {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    order.sort_by_key(|&i| samples.times_ns[i]);
    let mut out = Vec::with_capacity(samples.len() * 12);
    put(&mut out, samples.len() as u64);
    let mut before = 0_i64;
    for (place, &i) in order.iter().enumerate() {
        let time = samples.times_ns[i];
        let delta = time.wrapping_sub(before);
        // Sorted: only the first difference can be negative.
        put(&mut out, if place == 0 { zigzag(delta) } else { delta.cast_unsigned() });
        before = time;
    }
    order.iter().for_each(|&i| put(&mut out, u64::from(samples.pairs[i])));
    order.iter().for_each(|&i| put(&mut out, zigzag(samples.values[i])));
    order.iter().for_each(|&i| put(&mut out, u64::from(samples.attribute_sets[i])));
    block::pack(&out).map_err(EngineError::Compress)
}

/// The samples of a chunk, sorted by time.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Samples, Corruption> {
    let bytes = block::unpack(key, value)?;
    read(&bytes).ok_or(Corruption { key: key.to_vec(), check: CorruptionCheck::Content })
}

fn read(bytes: &[u8]) -> Option<Samples> {
    let mut rest = bytes;
    // Four columns of at least one byte each: a count cannot make us allocate more than the block holds.
    let count = usize::try_from(take(&mut rest)?).ok().filter(|&count| 0 < count && count <= bytes.len() / 4)?;
    let mut samples = Samples::default();
    let mut time = unzigzag(take(&mut rest)?);
    samples.times_ns.reserve(count);
    samples.times_ns.push(time);
    for _ in 1..count {
        time = time.checked_add_unsigned(take(&mut rest)?)?;
        samples.times_ns.push(time);
    }
    let ids = |rest: &mut &[u8]| (0..count).map(|_| u32::try_from(take(rest)?).ok()).collect::<Option<Vec<_>>>();
    samples.pairs = ids(&mut rest)?;
    samples.values = (0..count).map(|_| take(&mut rest).map(unzigzag)).collect::<Option<_>>()?;
    samples.attribute_sets = ids(&mut rest)?;
    rest.is_empty().then_some(samples)
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        // The low seven bits and the mark that more follow.
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_chunk_gives_back_its_samples_sorted_by_time(rows in prop::collection::vec((any::<i64>(), any::<u32>(), any::<i64>(), any::<u32>()), 1..200)) {
            let in_range = |time: i64| time / 2;
            let mut samples = Samples::default();
            rows.iter().for_each(|&(time, pair, value, set)| samples.push(in_range(time), pair, value, set));
            let chunk = encode(&samples).unwrap();
            let got = decode(b"k", &chunk).unwrap();
            prop_assert!(got.times_ns.is_sorted());
            let multiset = |s: &Samples| {
                let mut rows: Vec<_> = (0..s.len()).map(|i| (s.times_ns[i], s.pairs[i], s.values[i], s.attribute_sets[i])).collect();
                rows.sort_unstable();
                rows
            };
            prop_assert_eq!(multiset(&got), multiset(&samples));
        }

        #[test]
        fn any_bytes_are_read_or_refused_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(samples) = read(&bytes) {
                prop_assert!(samples.len() <= bytes.len() / 4);
            }
        }
    }
}
