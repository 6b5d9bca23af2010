//! Numbers as messages hold them: ascending ones as differences, hashes as bytes.

use bytes::Bytes;

/// Differences to the number before, the first to zero; wrapping, so that any i64 goes through.
pub(crate) fn deltas(numbers: &[i64]) -> Vec<i64> {
    let before = std::iter::once(0).chain(numbers.iter().copied());
    numbers.iter().zip(before).map(|(number, before)| number.wrapping_sub(before)).collect()
}

/// What [`deltas`] was made of.
pub(crate) fn from_deltas(deltas: &[i64]) -> Vec<i64> {
    deltas
        .iter()
        .scan(0_i64, |number, &delta| {
            *number = number.wrapping_add(delta);
            Some(*number)
        })
        .collect()
}

/// A big-endian u128 from exactly 16 bytes; shorter input reads as if zeros stood before it.
pub(crate) fn read_u128(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

/// 16 bytes, big-endian.
pub(crate) fn u128_bytes(number: u128) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}
