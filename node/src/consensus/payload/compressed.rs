//! The compressed form of a command.
//!
//! ```text
//! compressed command | proposed_at_ns u64 | length u32 | zstd frame |          little-endian
//! ```
//!
//! The frame holds the encoded command without its time of proposal, which is its first field. The time is known only
//! after the command is compressed. `length` is that of the content of the frame, in bytes.
//!
//! Invariant: unpacking returns exactly the bytes that were packed, or an error, and takes at most as much memory as
//! the largest entry.

use parking_lot::Mutex;
use proto::limits::ENTRY_BYTES_MAX;
use zstd::bulk::{Compressor, Decompressor};

use crate::consensus::payload::PROPOSED_AT_TAG;
use crate::error::RecordError;

/// Size of the time, in bytes.
const TIME: usize = 8;
/// Size of the header, in bytes.
const HEADER: usize = TIME + 4;
/// Size of a command's time with its tag, in bytes.
const TAGGED_TIME: usize = 1 + TIME;
/// Size from which on a command is compressed, in bytes. A smaller one hardly becomes smaller.
const COMPRESSED_BYTES_MIN: usize = 512;
/// Level of zstd. Higher levels take much more CPU time, and save few bytes: a batch has few repetitions.
const LEVEL: i32 = 1;
/// Largest number of contexts of each kind that are kept. A context takes up to about a megabyte, and making one takes
/// as long as compressing a small batch.
const CONTEXTS_MAX: usize = 4;

static COMPRESSORS: Mutex<Vec<Compressor<'static>>> = Mutex::new(Vec::new());
static DECOMPRESSORS: Mutex<Vec<Decompressor<'static>>> = Mutex::new(Vec::new());

/// Runs `work` with a kept context, or with a new one.
fn with<C, T>(
    kept: &Mutex<Vec<C>>,
    make: impl FnOnce() -> std::io::Result<C>,
    work: impl FnOnce(&mut C) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let last = kept.lock().pop();
    let mut context = last.map_or_else(make, Ok)?;
    let done = work(&mut context);
    let mut kept = kept.lock();
    if kept.len() < CONTEXTS_MAX {
        kept.push(context);
    }
    done
}

/// Compresses an encoded command, which begins with its time. Returns `None` if the compressed form is not smaller.
pub(super) fn pack(encoded: &[u8]) -> Option<Vec<u8>> {
    let (time, content) = encoded.split_at_checked(TAGGED_TIME)?;
    let length = u32::try_from(content.len()).ok()?;
    if time[0] != PROPOSED_AT_TAG || !(COMPRESSED_BYTES_MIN..=ENTRY_BYTES_MAX).contains(&encoded.len()) {
        return None;
    }
    let mut packed = vec![0; HEADER + zstd::zstd_safe::compress_bound(content.len())];
    packed[..TIME].copy_from_slice(&time[1..]);
    packed[TIME..HEADER].copy_from_slice(&length.to_le_bytes());
    let make = || Compressor::new(LEVEL);
    let frame = with(&COMPRESSORS, make, |context| context.compress_to_buffer(content, &mut packed[HEADER..]));
    packed.truncate(HEADER + frame.ok()?);
    packed.shrink_to_fit();
    (packed.len() < encoded.len()).then_some(packed)
}

/// Returns the encoded command.
pub(super) fn unpack(packed: &[u8]) -> Result<Vec<u8>, RecordError> {
    let broken = RecordError::Content { record: "compressed command" };
    let length = unpacked_len(packed);
    let Some((header, frame)) = packed.split_at_checked(HEADER) else { return Err(broken) };
    if length > ENTRY_BYTES_MAX {
        return Err(broken);
    }
    let mut encoded = vec![0; length];
    encoded[0] = PROPOSED_AT_TAG;
    encoded[1..TAGGED_TIME].copy_from_slice(&header[..TIME]);
    let content = &mut encoded[TAGGED_TIME..];
    let bytes = with(&DECOMPRESSORS, Decompressor::new, |context| context.decompress_to_buffer(frame, content));
    match bytes {
        Ok(bytes) if bytes == length - TAGGED_TIME => Ok(encoded),
        _ => Err(broken),
    }
}

/// Returns the length of the encoded command, in bytes, as the header states it.
pub(super) fn unpacked_len(packed: &[u8]) -> usize {
    let length = packed.get(TIME..HEADER).and_then(|length| length.try_into().ok()).map_or(0, u32::from_le_bytes);
    TAGGED_TIME + length as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an encoded command with this time and content.
    fn encoded(time: u64, content: &[u8]) -> Vec<u8> {
        [&[PROPOSED_AT_TAG][..], &time.to_le_bytes(), content].concat()
    }

    /// Contents of all sizes: some repeat a few bytes, and some repeat nothing.
    fn content() -> impl Strategy<Value = Vec<u8>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..3000);
        (bytes(), 1..50_usize).prop_map(|(bytes, times)| bytes.repeat(times))
    }

    proptest! {
        #[test]
        fn a_packed_command_is_smaller_and_unpacks_to_the_same_bytes(time: u64, content in content()) {
            let encoded = encoded(time, &content);
            if let Some(packed) = pack(&encoded) {
                prop_assert!(packed.len() < encoded.len());
                prop_assert_eq!(unpacked_len(&packed), encoded.len());
                prop_assert_eq!(unpack(&packed).unwrap(), encoded);
            }
        }

        // Whatever the bytes are, unpacking returns, and returns at most the largest entry.
        #[test]
        fn hostile_bytes_are_refused_or_bounded(
            content in content(),
            cut in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let mut packed = pack(&encoded(7, &content)).unwrap_or(content);
            if !packed.is_empty() {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            packed.truncate(cut.index(packed.len() + 1));
            if let Ok(unpacked) = unpack(&packed) {
                prop_assert!(unpacked.len() <= ENTRY_BYTES_MAX);
                prop_assert_eq!(unpacked.len(), unpacked_len(&packed));
            }
        }
    }

    #[test]
    fn a_wrong_length_is_refused_before_and_after_decompression() {
        let packed = pack(&encoded(7, &[1; 10_000])).unwrap();
        for length in [0, 9_999, 10_001, u32::MAX] {
            let mut wrong = packed.clone();
            wrong[TIME..HEADER].copy_from_slice(&length.to_le_bytes());
            assert!(unpack(&wrong).is_err(), "{length}");
        }
        assert!(unpack(&packed[..packed.len() - 1]).is_err());
        assert!((0..HEADER).all(|length| unpack(&packed[..length]).is_err()));
    }

    #[test]
    fn a_command_stays_plain_if_it_is_small_or_does_not_become_smaller() {
        assert_eq!(pack(&encoded(7, &[1; 100])), None);
        let random: Vec<u8> =
            (0..200_u64).flat_map(|i| xxhash_rust::xxh3::xxh3_64(&i.to_le_bytes()).to_le_bytes()).collect();
        assert_eq!(pack(&encoded(7, &random)), None);
        assert_eq!(pack(&[0; 10_000]), None, "it does not begin with a time");
    }

    #[test]
    fn few_contexts_are_kept() {
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| assert!(unpack(&pack(&encoded(7, &[1; 10_000])).unwrap()).is_ok()));
            }
        });
        assert!(COMPRESSORS.lock().len() <= CONTEXTS_MAX && DECOMPRESSORS.lock().len() <= CONTEXTS_MAX);
    }
}
