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
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
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
