//! A table of values by address, in the format that [`super`] describes.

use super::GoError;
use super::reader::FileReader;

/// Number of steps that may still be made through tables of values. It bounds the work that malformed tables cause.
#[derive(Debug)]
pub(crate) struct Budget(pub(crate) u32);

impl Budget {
    pub(super) fn spend(&mut self) -> Result<(), GoError> {
        self.0 = self.0.checked_sub(1).ok_or(GoError::Broken("a table of values does not end"))?;
        Ok(())
    }
}

/// An iterator over a table of values.
#[derive(Debug)]
pub(crate) struct Values<'w, 'f> {
    reader: &'w mut FileReader<'f>,
    at: u64,
    quantum: u64,
    value: i32,
    /// Address up to which the last value holds.
    address: u64,
    is_first: bool,
}

impl<'w, 'f> Values<'w, 'f> {
    /// Iterates over the table at file offset `at`, for code that begins at address `start`. Lengths of code in the
    /// table are multiples of `quantum`, the length of the shortest instruction in bytes.
    pub(super) fn new(reader: &'w mut FileReader<'f>, at: u64, quantum: u8, start: u64) -> Self {
        Self { reader, at, quantum: quantum.into(), value: -1, address: start, is_first: true }
    }

    /// Returns the next value, and the address up to which it holds; `None` at the end.
    pub(crate) fn next(&mut self, budget: &mut Budget) -> Result<Option<(i32, u64)>, GoError> {
        budget.spend()?;
        let change = self.varint()?;
        if change == 0 && !self.is_first {
            return Ok(None);
        }
        self.is_first = false;
        // The lowest bit is the sign.
        let change = (change >> 1).cast_signed() ^ -((change & 1).cast_signed());
        self.value = self.value.wrapping_add(change);
        let step = u64::from(self.varint()?) * self.quantum;
        self.address = self.address.checked_add(step).ok_or(GoError::Broken("the address of code overflows"))?;
        Ok(Some((self.value, self.address)))
    }

    fn varint(&mut self) -> Result<u32, GoError> {
        let mut number = 0;
        for shift in (0..32).step_by(7) {
            let byte = self.reader.some(self.at)?.first().copied().unwrap_or_default();
            self.at = self.at.saturating_add(1);
            number |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(GoError::Broken("a number does not end"))
    }
}
