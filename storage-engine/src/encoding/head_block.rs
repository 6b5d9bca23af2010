//! Head values: samples that a flush writes before their window is sealed. A head value is fast to write, and is
//! deleted when its window is sealed into a chunk.
//!
//! ```text
//! compressed: | count varint | first time zigzag | time differences varint ... | pairs varint ... |
//!             | values zigzag ... | attribute sets varint ... |
//! ```
//!
//! Samples are sorted by time.

use proto::Samples;

use crate::database::frame;
use crate::encoding::varint::{put, take, take_length, take_u32, unzigzag, zigzag};
use crate::error::{Corruption, CorruptionCheck, EngineError};

/// zstd level of head values. It is low because a head value is read only once, after a restart, if at all.
const LEVEL: i32 = 1;

/// Encodes samples, at least one, that are sorted by time.
pub(crate) fn encode(key: &[u8], samples: &Samples) -> Result<Vec<u8>, EngineError> {
    let mut out = Vec::with_capacity(samples.len() * 12);
    put(&mut out, samples.len() as u64);
    let mut before = 0_i64;
    for (index, &time) in samples.times_ns.iter().enumerate() {
        let delta = time.wrapping_sub(before);
        // The samples are sorted, so only the first difference can be negative.
        put(&mut out, if index == 0 { zigzag(delta) } else { delta.cast_unsigned() });
        before = time;
    }
    samples.pairs.iter().for_each(|&pair| put(&mut out, u64::from(pair)));
    samples.values.iter().for_each(|&value| put(&mut out, zigzag(value)));
    samples.attribute_sets.iter().for_each(|&set| put(&mut out, u64::from(set)));
    frame::pack(key, &out, LEVEL)
}

/// Decodes the samples of a head value, sorted by time.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Samples, Corruption> {
    let bytes = frame::unpack(key, value)?;
    read(&bytes).ok_or(Corruption { key: key.to_vec(), check: CorruptionCheck::Content })
}

fn read(bytes: &[u8]) -> Option<Samples> {
    let mut rest = bytes;
    // Each sample takes at least four bytes, so the count cannot claim more memory than the value justifies.
    let count = take_length(&mut rest).filter(|&count| 0 < count && count <= bytes.len() / 4)?;
    let mut samples = Samples::default();
    let mut time = unzigzag(take(&mut rest)?);
    samples.times_ns.reserve(count);
    samples.times_ns.push(time);
    for _ in 1..count {
        time = time.checked_add_unsigned(take(&mut rest)?)?;
        samples.times_ns.push(time);
    }
    let numbers = |rest: &mut &[u8]| (0..count).map(|_| take_u32(rest)).collect::<Option<Vec<_>>>();
    samples.pairs = numbers(&mut rest)?;
    samples.values = (0..count).map(|_| take(&mut rest).map(unzigzag)).collect::<Option<_>>()?;
    samples.attribute_sets = numbers(&mut rest)?;
    rest.is_empty().then_some(samples)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_head_value_decodes_to_its_samples_sorted_by_time(
            rows in prop::collection::vec((any::<i64>(), any::<u32>(), any::<i64>(), any::<u32>()), 1..200),
        ) {
            let in_range = |time: i64| time / 2;
            let mut samples = Samples::default();
            rows.iter().for_each(|&(time, pair, value, set)| samples.push(in_range(time), pair, value, set));
            samples.sort_by_time();
            let block = encode(b"k", &samples).unwrap();
            let got = decode(b"k", &block).unwrap();
            prop_assert!(got.times_ns.is_sorted());
            let multiset = |s: &Samples| {
                let row = |i: usize| (s.times_ns[i], s.pairs[i], s.values[i], s.attribute_sets[i]);
                let mut rows: Vec<_> = (0..s.len()).map(row).collect();
                rows.sort_unstable();
                rows
            };
            prop_assert_eq!(multiset(&got), multiset(&samples));
        }

        #[test]
        fn arbitrary_bytes_never_claim_more_memory_than_they_justify(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            if let Some(samples) = read(&bytes) {
                prop_assert!(samples.len() <= bytes.len() / 4);
            }
        }
    }
}
