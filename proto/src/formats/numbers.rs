//! Encoding of numbers in messages: times as differences, hashes as bytes.

use bytes::Bytes;

/// Returns the difference of each number from the number before it. The first number is returned as it is. Subtraction
/// wraps, so any i64 can be encoded.
pub(crate) fn deltas(numbers: &[i64]) -> Vec<i64> {
    let before = std::iter::once(0).chain(numbers.iter().copied());
    numbers.iter().zip(before).map(|(number, before)| number.wrapping_sub(before)).collect()
}

/// Returns the numbers that [`deltas`] encoded.
pub(crate) fn from_deltas(deltas: &[i64]) -> Vec<i64> {
    deltas
        .iter()
        .scan(0_i64, |number, &delta| {
            *number = number.wrapping_add(delta);
            Some(*number)
        })
        .collect()
}

/// Decodes a big-endian u128. Shorter input is padded with leading zeros.
pub(crate) fn read_u128(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte))
}

/// Encodes a u128 as 16 bytes, big-endian.
pub(crate) fn u128_bytes(number: u128) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}
