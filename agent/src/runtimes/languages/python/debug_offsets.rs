//! Offsets that CPython 3.13 and later describe themselves, in `_Py_DebugOffsets` at the start of `_PyRuntime`:
//!
//! | "xdebugpy" | version u64: 0x030e0af0 is 3.14.10 | free-threaded u64 | offsets u64 ... |
//!
//! The offsets are in the file, so no process is needed to read them. Each minor version has its own list.

use super::layout::{CodeLayout, Entry, Layout, TextLayout, Walk};
use super::lines::LineTable;

/// Number of bytes of the longest known list.
pub(crate) const BYTES: u64 = 93 * 8;

const COOKIE: &[u8; 8] = b"xdebugpy";
/// Value of an entry frame's owner: FRAME_OWNED_BY_CSTACK in 3.13, FRAME_OWNED_BY_INTERPRETER since 3.14.
const ENTRY_OWNER: u16 = 3;
/// Size of `PyCompactUnicodeObject` without its `PyASCIIObject`.
const TEXT_FIELDS: u16 = 16;

/// Indices of words in the list.
struct Indices {
    thread_frame: usize,
    frame_caller: usize,
    frame_code: usize,
    frame_instruction: usize,
    frame_owner: usize,
    /// In a frame, the number of its thread's copy of the instructions.
    frame_copy: Option<usize>,
    code_file: usize,
    code_name: usize,
    code_lines: usize,
    code_first_line: usize,
    code_instructions: usize,
    /// In a code object, the copies of its instructions.
    code_copies: Option<usize>,
    bytes_length: usize,
    bytes_data: usize,
    text_state: usize,
    text_length: usize,
    ascii_header: usize,
}

const V13: Indices = Indices {
    thread_frame: 23,
    frame_caller: 29,
    frame_code: 30,
    frame_instruction: 31,
    frame_owner: 33,
    frame_copy: None,
    code_file: 35,
    code_name: 37,
    code_lines: 38,
    code_first_line: 39,
    code_instructions: 43,
    code_copies: None,
    bytes_length: 65,
    bytes_data: 66,
    text_state: 68,
    text_length: 69,
    ascii_header: 70,
};
const V14: Indices = Indices {
    thread_frame: 26,
    frame_caller: 32,
    frame_code: 33,
    frame_instruction: 34,
    frame_owner: 36,
    frame_copy: Some(38),
    code_file: 40,
    code_name: 42,
    code_lines: 43,
    code_first_line: 44,
    code_instructions: 48,
    code_copies: Some(49),
    bytes_length: 75,
    bytes_data: 76,
    text_state: 78,
    text_length: 79,
    ascii_header: 80,
};
const V15: Indices = Indices {
    thread_frame: 26,
    frame_caller: 40,
    frame_code: 41,
    frame_instruction: 42,
    frame_owner: 44,
    frame_copy: Some(46),
    code_file: 48,
    code_name: 50,
    code_lines: 51,
    code_first_line: 52,
    code_instructions: 56,
    code_copies: Some(57),
    bytes_length: 87,
    bytes_data: 88,
    text_state: 90,
    text_length: 91,
    ascii_header: 92,
};

/// Number of bytes, in a code object, from the first number that identifies it to the number of its first line.
const NUMBERS_BYTES: u16 = 20;

/// Reads a list; `None` if it is damaged, or of a version whose list is not known.
pub(crate) fn read(list: &[u8]) -> Option<Layout> {
    let words = list.as_chunks::<8>().0;
    let word = |index: usize| words.get(index).map(|word| u64::from_ne_bytes(*word));
    if words.first()? != COOKIE {
        return None;
    }
    let minor = (word(1).filter(|version| version >> 24 == 3)? >> 16 & 0xff) as u32;
    let indices = match minor {
        13 => V13,
        14 => V14,
        15 => V15,
        _ => return None,
    };
    let is_free_threaded = word(2)? != 0;
    let offset = |index: usize| u16::try_from(word(index)?).ok();
    // Other builds have the words, but neither the fields nor offsets.
    let copy = |index: Option<usize>| index.filter(|_| is_free_threaded).and_then(offset);
    let ascii_header = offset(indices.ascii_header)?;
    let [code_file, code_lines, first_line] =
        [offset(indices.code_file)?, offset(indices.code_lines)?, offset(indices.code_first_line)?];
    Some(Layout {
        minor,
        is_free_threaded,
        walk: Walk {
            thread_frame: offset(indices.thread_frame)?,
            chain_frame: None,
            frame_code: offset(indices.frame_code)?,
            frame_caller: offset(indices.frame_caller)?,
            frame_position: offset(indices.frame_instruction)?,
            entry: Some(Entry { offset: offset(indices.frame_owner)?, value: ENTRY_OWNER, has_function: false }),
            copy: copy(indices.frame_copy).zip(copy(indices.code_copies)),
            thread_id: None,
        },
        code: CodeLayout {
            // From the flags, through the first line, to the line table.
            identity: (first_line.checked_sub(NUMBERS_BYTES)?, code_lines.checked_add(8)?),
            // The words have the number of the code object.
            identified_name: None,
            first_line,
            file: code_file,
            name: offset(indices.code_name)?,
            lines: code_lines,
            line_table: LineTable::Locations,
            instructions: Some(offset(indices.code_instructions)?),
            position_unit: 1,
        },
        text: TextLayout {
            length: offset(indices.text_length)?,
            state: offset(indices.text_state)?,
            // The first bits tell whether the text is interned: two of them, or a byte that threads share.
            kind_shift: if is_free_threaded && minor != 13 { 8 } else { 2 },
            ascii_header,
            header: ascii_header.checked_add(TEXT_FIELDS)?,
        },
        bytes_length: offset(indices.bytes_length)?,
        bytes_data: offset(indices.bytes_data)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The words of real lists, without the cookie, the version and the flag.
    const LISTS: &str = include_str!("debug_offsets/lists.txt");

    /// Returns the layouts that real lists describe, and that of 3.14 as if it were a free-threaded build.
    pub(crate) fn described_layouts() -> Vec<Layout> {
        let rows: Vec<Vec<u64>> =
            LISTS.lines().skip(1).map(|row| row.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
        let layout = |(column, minor, is_free_threaded): (usize, u64, bool)| {
            let words = head(minor, is_free_threaded).into_iter().chain(rows.iter().map(|row| row[column]));
            read(&words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>()).unwrap()
        };
        [(1, 13, false), (2, 14, false), (2, 14, true), (3, 15, false)].map(layout).into()
    }

    /// Returns the cookie, the version and the flag of a list.
    fn head(minor: u64, is_free_threaded: bool) -> [u64; 3] {
        [u64::from_ne_bytes(*COOKIE), 3 << 24 | minor << 16 | 0xf0, u64::from(is_free_threaded)]
    }

    /// Returns a list in which each word is twice its index, after the cookie, the version and the flag.
    fn list(minor: u64, is_free_threaded: bool) -> Vec<u8> {
        head(minor, is_free_threaded)
            .into_iter()
            .chain((3..93).map(|index| 2 * index))
            .flat_map(u64::to_ne_bytes)
            .collect()
    }

    #[test]
    fn fields_are_read_from_the_places_of_each_version() {
        let layout = |minor, is_free_threaded| read(&list(minor, is_free_threaded)).unwrap();
        let v13 = layout(13, true);
        assert_eq!((v13.walk.thread_frame, v13.walk.copy, v13.text.kind_shift), (46, None, 2));
        let v14 = layout(14, false);
        assert_eq!((v14.walk.frame_position, v14.walk.copy, v14.text.kind_shift), (68, None, 2));
        let v14t = layout(14, true);
        assert_eq!((v14t.walk.copy, v14t.text.kind_shift, v14t.text.header), (Some((76, 98)), 8, 176));
        assert_eq!(layout(15, false).code.instructions, Some(112));
        assert_eq!((v14t.minor, v14t.is_free_threaded), (14, true));
    }

    #[test]
    fn damaged_lists_and_unknown_versions_are_refused() {
        let list_of = list(14, true);
        assert_eq!(read(&list(12, false)), None);
        assert_eq!(read(&list(16, false)), None);
        // Without its last word, a list of 3.15 is too short.
        assert_eq!(read(&list(15, true)[..92 * 8]), None);
        for index in [0, 1, V14.thread_frame, V14.code_lines, V14.ascii_header] {
            let mut damaged = list_of.clone();
            damaged[index * 8..][..8].fill(0xff);
            assert_eq!(read(&damaged), None, "{index}");
        }
    }
}
