//! LEB128 varints, and zigzag for signed numbers.

/// Appends a number as a varint: seven bits in each byte, lowest first.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        // The high bit says that more bytes follow.
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Removes a varint from the front of `bytes`; `None` if the bytes end early, or the number needs more than 64 bits.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(first.into());
    }
    take_long(bytes)
}

/// Removes a varint of several bytes. Reads eight bytes at once where there are as many: times take four to six.
fn take_long(bytes: &mut &[u8]) -> Option<u64> {
    let word = bytes.first_chunk().map(|word| u64::from_le_bytes(*word)).unwrap_or(u64::MAX);
    let last_bytes = !word & 0x8080_8080_8080_8080;
    if last_bytes == 0 {
        return take_each(bytes);
    }
    let length = last_bytes.trailing_zeros() / 8 + 1;
    *bytes = bytes.get(length as usize..)?;
    // Each step joins pairs of neighbours: 7 bits of a byte, then 14, then 28.
    let sevens = word & u64::MAX >> (64 - 8 * length) & 0x7f7f_7f7f_7f7f_7f7f;
    let fourteens = sevens & 0x007f_007f_007f_007f | (sevens & 0x7f00_7f00_7f00_7f00) >> 1;
    let twenty_eights = fourteens & 0x0000_3fff_0000_3fff | (fourteens & 0x3fff_0000_3fff_0000) >> 2;
    Some(twenty_eights & 0x0fff_ffff | (twenty_eights & 0x0fff_ffff_0000_0000) >> 4)
}

/// Removes a varint byte by byte.
fn take_each(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        number |= part << shift;
        if byte < 0x80 {
            return (part << shift >> shift == part).then_some(number);
        }
    }
    None
}

/// Removes `count` varints from the front of `bytes` without decoding them; `None` if the bytes end early. Reads eight
/// bytes at once where there are as many.
pub(crate) fn skip(bytes: &mut &[u8], mut count: usize) -> Option<()> {
    while let Some((word, rest)) = bytes.split_first_chunk() {
        let ends = (!u64::from_le_bytes(*word) & 0x8080_8080_8080_8080).count_ones() as usize;
        if ends >= count {
            break;
        }
        count -= ends;
        *bytes = rest;
    }
    while count > 0 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        count -= usize::from(*byte < 0x80);
    }
    Some(())
}

/// Removes a varint of at most 32 bits from the front of `bytes`.
pub(crate) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(take(bytes)?).ok()
}

/// Removes a varint that is a length from the front of `bytes`.
pub(crate) fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(take(bytes)?).ok()
}

/// Removes a length, then that many bytes, from the front of `bytes`. Returns the latter.
pub(crate) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_length(bytes)?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Appends the length of the bytes, then the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Maps numbers near 0, of either sign, to small unsigned numbers.
pub(crate) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// Appends a sum as a zigzag varint of up to 19 bytes.
pub(crate) fn put_sum(out: &mut Vec<u8>, sum: i128) {
    let mut number = ((sum << 1) ^ (sum >> 127)).cast_unsigned();
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Removes a sum, as [`put_sum`] appends it, from the front of `bytes`.
pub(crate) fn take_sum(bytes: &mut &[u8]) -> Option<i128> {
    let mut number = 0_u128;
    for shift in (0..128).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u128::from(byte & 0x7f);
        number |= part << shift;
        if byte < 0x80 {
            let sum = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
            return (part << shift >> shift == part).then_some(sum);
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
        fn numbers_decode_to_the_encoded_ones(number in any::<u64>(), signed in any::<i64>(), sum in any::<i128>()) {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put(&mut bytes, zigzag(signed));
            put_sum(&mut bytes, sum);
            put_bytes(&mut bytes, b"abc");
            let rest = &mut bytes.as_slice();
            let taken = (take(rest), take(rest).map(unzigzag), take_sum(rest));
            prop_assert_eq!(taken, (Some(number), Some(signed), Some(sum)));
            prop_assert_eq!(take_bytes(rest), Some(b"abc".as_slice()));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn numbers_read_at_once_are_those_read_byte_by_byte(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0x80), Just(0xff), Just(0)], 0..14),
        ) {
            let (mut at_once, mut each) = (bytes.as_slice(), bytes.as_slice());
            let taken = take(&mut at_once);
            prop_assert_eq!(taken, take_each(&mut each));
            if taken.is_some() {
                prop_assert_eq!(at_once, each);
            }
        }

        #[test]
        fn skipped_numbers_end_where_read_ones_do(
            numbers in prop::collection::vec(prop_oneof![3 => 0..200_u64, 1 => any::<u64>()], 0..40),
            skipped in 0..42_usize,
        ) {
            let mut bytes = Vec::new();
            numbers.iter().for_each(|number| put(&mut bytes, *number));
            let mut rest = bytes.as_slice();
            let mut each = bytes.as_slice();
            let taken = (0..skipped).try_for_each(|_| take(&mut each).map(drop));
            prop_assert_eq!(skip(&mut rest, skipped), taken);
            if taken.is_some() {
                prop_assert_eq!(rest, each);
            }
        }

        #[test]
        fn arbitrary_bytes_decode_to_a_number_or_none(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let reads: [fn(&mut &[u8]) -> bool; 3] =
                [|b| take(b).is_some(), |b| take_sum(b).is_some(), |b| take_bytes(b).is_some()];
            for read in reads {
                let mut rest = bytes.as_slice();
                if read(&mut rest) {
                    prop_assert!(rest.len() < bytes.len());
                }
            }
        }
    }
}
