//! Encoding of numbers and texts. Numbers are LEB128, and signed numbers are zigzag-encoded first. A text follows its
//! length in bytes.

use anyhow::{Context as _, bail};

/// Appends encoded numbers and texts to a vector of bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn unsigned(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn signed(&mut self, number: i64) {
        self.unsigned(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.unsigned(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Reads the numbers and texts that a [`Writer`] wrote.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn unsigned(&mut self) -> anyhow::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.0.split_off_first().context("it ends early")?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        bail!("a number is too long")
    }

    pub(crate) fn signed(&mut self) -> anyhow::Result<i64> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads a number, which must be below `end`.
    pub(crate) fn below(&mut self, end: usize) -> anyhow::Result<u32> {
        let number = self.unsigned()?;
        if number >= end as u64 {
            bail!("{number} is referred to, and there are {end}");
        }
        Ok(u32::try_from(number)?)
    }

    pub(crate) fn small(&mut self) -> anyhow::Result<u32> {
        Ok(u32::try_from(self.unsigned()?)?)
    }

    /// Reads a number of entries. The number must be at most the number of remaining bytes, because each entry takes at
    /// least one byte.
    pub(crate) fn count(&mut self) -> anyhow::Result<usize> {
        let count = usize::try_from(self.unsigned()?)?;
        if count > self.0.len() {
            bail!("{count} entries in {} bytes", self.0.len());
        }
        Ok(count)
    }

    pub(crate) fn text(&mut self) -> anyhow::Result<&'a str> {
        let length = self.count()?;
        let bytes = self.0.split_off(..length).context("it ends early")?;
        Ok(std::str::from_utf8(bytes)?)
    }
}
