//! Line tables of CPython's code objects, in the three formats of its versions.
//!
//! A table describes consecutive ranges of instructions. It begins with the first instruction and the first line.

/// Format of a line table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineTable {
    /// `co_lnotab`, until Python 3.9: pairs of a number of bytes and a signed number of lines. The line changes after
    /// the bytes.
    Increments,
    /// `co_linetable` of Python 3.10: pairs of a number of bytes and a signed number of lines. The line changes before
    /// the bytes. -128 stands for code without a line.
    Ranges,
    /// `co_linetable` since Python 3.11: entries of a first byte with the form and the number of instructions, and
    /// further bytes with lines and columns.
    Locations,
}

/// Number of bytes of an instruction.
const INSTRUCTION_BYTES: u32 = 2;
/// Number of lines that stands for code without a line, in [`LineTable::Ranges`].
const NO_LINE: i8 = -128;

// Forms of an entry of `LineTable::Locations`. Forms below are short ones, which do not change the line.
const FORM_ONE_LINE_0: u8 = 10;
const FORM_ONE_LINE_2: u8 = 12;
const FORM_NO_COLUMNS: u8 = 13;
const FORM_LONG: u8 = 14;
const FORM_NONE: u8 = 15;

impl LineTable {
    /// Returns the line of the instruction at `position`, in bytes from the first instruction. `None` if the
    /// instruction has no line, or if the table is damaged.
    pub(crate) fn line(self, table: &[u8], first_line: u32, position: u32) -> Option<u32> {
        match self {
            Self::Increments => increments(table, first_line, position),
            Self::Ranges => ranges(table, first_line, position),
            Self::Locations => locations(table, first_line, position),
        }
    }
}

fn increments(table: &[u8], first_line: u32, position: u32) -> Option<u32> {
    let (mut at, mut line) = (0_u32, first_line);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        at = at.checked_add(u32::from(*bytes))?;
        if position < at {
            break;
        }
        line = line.checked_add_signed(i32::from(lines.cast_signed()))?;
    }
    Some(line)
}

fn ranges(table: &[u8], first_line: u32, position: u32) -> Option<u32> {
    let (mut at, mut line) = (0_u32, first_line);
    for [bytes, lines] in table.as_chunks::<2>().0 {
        let lines = lines.cast_signed();
        if lines != NO_LINE {
            line = line.checked_add_signed(i32::from(lines))?;
        }
        at = at.checked_add(u32::from(*bytes))?;
        if position < at {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

fn locations(mut table: &[u8], first_line: u32, position: u32) -> Option<u32> {
    let (mut at, mut line) = (0_u32, first_line);
    while let Some((&first, rest)) = table.split_first() {
        table = rest;
        let form = first >> 3 & 0xf;
        let lines = match form {
            FORM_NONE => 0,
            FORM_LONG => {
                let lines = signed(&mut table)?;
                for _ in 0..3 {
                    number(&mut table)?;
                }
                lines
            }
            FORM_NO_COLUMNS => signed(&mut table)?,
            FORM_ONE_LINE_0..=FORM_ONE_LINE_2 => {
                table = table.get(2..)?;
                i32::from(form - FORM_ONE_LINE_0)
            }
            _ => {
                table = table.get(1..)?;
                0
            }
        };
        line = line.checked_add_signed(lines)?;
        at = at.checked_add((u32::from(first & 7) + 1) * INSTRUCTION_BYTES)?;
        if position < at {
            return (form != FORM_NONE).then_some(line);
        }
    }
    None
}

/// Reads a number: six bits in each byte, the lowest first, and a bit that is set if more follow.
fn number(table: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(6) {
        let (&byte, rest) = table.split_first()?;
        *table = rest;
        number |= u32::from(byte & 0x3f).checked_shl(shift)?;
        if byte & 0x40 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads a signed number, whose lowest bit is the sign.
fn signed(table: &mut &[u8]) -> Option<i32> {
    let number = number(table)?;
    let size = (number >> 1).cast_signed();
    Some(if number & 1 == 0 { size } else { -size })
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
