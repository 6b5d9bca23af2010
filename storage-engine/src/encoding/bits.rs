//! Bit strings. Within a byte, the lowest bit comes first.

/// Writer of a bit string.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    waiting: u64,
    /// Number of bits in `waiting`; fewer than 8 between calls.
    count: u32,
}

impl BitWriter {
    /// Appends the lowest `bits` bits of a number, at most 32 bits. The higher bits of the number must be zero.
    pub(crate) fn put(&mut self, number: u32, bits: u32) {
        self.waiting |= u64::from(number) << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.bytes.push(self.waiting as u8);
            self.waiting >>= 8;
            self.count -= 8;
        }
    }

    /// Pads the last byte with zeros, and returns the bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.bytes.push(self.waiting as u8);
        }
        self.bytes
    }
}

/// Reader of a bit string. It reads zeros after the end of the string.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Number of bits that were read.
    taken: usize,
}

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, taken: 0 }
    }

    /// Returns at least the next 56 bits, the first one lowest. Does not advance.
    pub(crate) fn peek(&self) -> u64 {
        let rest = self.bytes.get(self.taken / 8..).unwrap_or_default();
        let word = match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
        };
        word >> (self.taken % 8)
    }

    pub(crate) fn skip(&mut self, bits: u32) {
        self.taken += bits as usize;
    }

    /// Reads the next `bits` bits as a number; at most 32 bits at a time.
    pub(crate) fn take(&mut self, bits: u32) -> u32 {
        let number = self.peek() & ((1 << bits) - 1);
        self.skip(bits);
        number as u32
    }

    /// Returns whether the last bit that was read is in the last byte.
    pub(crate) fn is_at_end(&self) -> bool {
        self.taken.div_ceil(8) == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_decode_to_the_encoded_numbers(numbers in prop::collection::vec((any::<u32>(), 0..=32_u32), 0..100)) {
            let low = |number: u32, bits: u32| (u64::from(number) & ((1 << bits) - 1)) as u32;
            let mut writer = BitWriter::default();
            numbers.iter().for_each(|&(number, bits)| writer.put(low(number, bits), bits));
            let bytes = writer.finish();
            let mut reader = BitReader::new(&bytes);
            for &(number, bits) in &numbers {
                prop_assert_eq!(reader.take(bits), low(number, bits));
            }
            prop_assert!(reader.is_at_end());
            reader.skip(8);
            prop_assert!(!reader.is_at_end());
        }
    }
}
