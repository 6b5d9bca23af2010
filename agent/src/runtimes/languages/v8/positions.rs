//! Tables of V8: the positions of code in the source, and the bytecodes of baseline code.

use super::bytecodes::Sizes;
use super::layout::PositionsForm;

/// A position in the source of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourcePosition {
    /// Number of UTF-16 units before the position.
    pub(crate) offset: u32,
    /// Index of the inlined function that the position belongs to; `None` for the function of the code itself.
    pub(crate) inlined: Option<u16>,
}

impl SourcePosition {
    /// Decodes a position; `None` for one in a source of V8's own.
    pub(crate) fn decode(value: u64) -> Option<Self> {
        let offset = (value >> 1) as u32 & 0x3fff_ffff;
        let inlined = (value >> 31) as u16;
        (value & 1 == 0).then_some(Self { offset, inlined: inlined.checked_sub(1) })
    }
}

/// The entries of a table: an offset in the code, and the position from there on. Ends at a malformed entry.
pub(crate) struct Entries<'a> {
    bytes: &'a [u8],
    form: PositionsForm,
    offset: i64,
    position: i64,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(bytes: &'a [u8], form: PositionsForm) -> Self {
        Self { bytes, form, offset: form.start.into(), position: 0 }
    }
}

impl Iterator for Entries<'_> {
    type Item = (i64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let first = varint(&mut self.bytes)?;
        let step = if self.form.has_flags {
            (first >> 2).cast_signed()
        } else {
            // The sign is that of a statement, and one less than zero that of an expression.
            let step = zigzag(first);
            if step < 0 { !step } else { step }
        };
        self.offset = self.offset.checked_add(step)?;
        self.position = self.position.checked_add(zigzag(varint(&mut self.bytes)?))?;
        Some((self.offset, self.position.cast_unsigned()))
    }
}

/// Returns the position at an offset in the code: that of the last entry at or before it.
pub(crate) fn position_at(table: &[u8], form: PositionsForm, offset: u32) -> Option<SourcePosition> {
    let before = Entries::new(table, form).take_while(|(at, _)| *at <= i64::from(offset));
    before.filter_map(|(_, value)| SourcePosition::decode(value)).last()
}

/// Returns the offset in baseline code at which the code of each bytecode begins, and the offset of the bytecode.
/// `table` has the size of the code of each bytecode.
pub(crate) fn baseline_starts(mut table: &[u8], bytecodes: &[u8], sizes: Sizes) -> Box<[(u32, u32)]> {
    let mut starts = Vec::new();
    let (mut start, mut at) = (0_u32, 0_usize);
    // The first number is the size of the code before that of the first bytecode.
    while let Some(step) = varint(&mut table).and_then(|step| u32::try_from(step).ok()) {
        let Some(next) = start.checked_add(step) else { break };
        start = next;
        starts.push((start, at as u32));
        let Some(size) = bytecodes.get(at..).and_then(|code| sizes.of(code)) else { break };
        at += size;
    }
    starts.into()
}

/// Reads a number: seven bits in each byte, the lowest first, and a bit that is set if more follow.
pub(crate) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn zigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

#[cfg(test)]
mod tests;
