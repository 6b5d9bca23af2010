//! Numbers of one to five bytes, in HotSpot's compressed tables.
//!
//! Bytes below a limit end a number. Each byte adds 6 more bits. Since JDK 20, no byte is zero.

/// Number of byte values from the limit on.
const LARGE_BYTES: u32 = 64;
const BYTES_MAX: u32 = 5;

/// A reader of consecutive numbers.
#[derive(Debug)]
pub(crate) struct Numbers<'a> {
    rest: &'a [u8],
    /// Lowest value of a byte: 0 or 1.
    lowest: u8,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(bytes: &'a [u8], lowest: u8) -> Self {
        Self { rest: bytes, lowest }
    }

    /// Number of bytes that were not read yet.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next byte as it is.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Returns the next number; `None` if the bytes end.
    pub(crate) fn unsigned(&mut self) -> Option<u32> {
        let limit = 256 - LARGE_BYTES - u32::from(self.lowest);
        let mut number = 0_u32;
        for index in 0..BYTES_MAX {
            let part = u32::from(self.byte()?.checked_sub(self.lowest)?);
            number = number.wrapping_add(part << (6 * index));
            if part < limit {
                break;
            }
        }
        Some(number)
    }

    /// Returns the next number, whose lowest bit is the sign.
    pub(crate) fn signed(&mut self) -> Option<i32> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a number by division, as the format defines it: a byte from `limit` on stands for itself, and the rest
    /// is divided by 64.
    pub(crate) fn encode(number: u32, lowest: u8) -> Vec<u8> {
        let limit = 192 - u64::from(lowest);
        let mut left = u64::from(number);
        let mut bytes = Vec::new();
        while limit <= left && bytes.len() < 4 {
            let low = limit + (left - limit) % 64;
            bytes.push(low as u8 + lowest);
            left = (left - low) / 64;
        }
        bytes.push(left as u8 + lowest);
        bytes
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(
            numbers in prop::collection::vec((0_u32..32).prop_flat_map(|bits| 0..=u32::MAX >> bits), 0..20),
            lowest in 0_u8..2,
        ) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| encode(*number, lowest)).collect();
            let mut reader = Numbers::new(&bytes, lowest);
            let read: Vec<u32> = numbers.iter().map_while(|_| reader.unsigned()).collect();
            prop_assert_eq!(&read, &numbers);
            prop_assert_eq!(reader.unsigned(), None);
        }

        #[test]
        fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..100), lowest in 0_u8..2) {
            let mut reader = Numbers::new(&bytes, lowest);
            prop_assert!((0..=bytes.len()).any(|_| reader.signed().is_none()));
        }
    }

    #[test]
    fn the_lowest_bit_is_the_sign() {
        let mut reader = Numbers::new(&[4, 3, 1, 0], 0);
        assert_eq!([(); 4].map(|()| reader.signed()), [Some(2), Some(-2), Some(-1), Some(0)]);
    }
}
