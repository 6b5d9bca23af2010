//! Layout of CPython's structures, in bytes. Until Python 3.12, the offsets are those of each version's DWARF on
//! x86-64. Later versions describe themselves ([`super::debug_offsets`]).

use ebpf::RUNTIME_OFFSETS;

use super::lines::LineTable;

// Bits of the form of the structures, as in `ebpf/bpf/runtimes/python.h`.
const CHAIN_FORM: u16 = 1;
const POINTER_FORM: u16 = 2;
const LOOP_FORM: u16 = 4;
const FUNCTION_FORM: u16 = 8;
const COPY_FORM: u16 = 16;

/// Offsets in the structures of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Minor version: 13 for Python 3.13.
    pub(crate) minor: u32,
    /// True if threads run Python without a common lock.
    pub(crate) is_free_threaded: bool,
    pub(crate) walk: Walk,
    pub(crate) code: CodeLayout,
    pub(crate) text: TextLayout,
    /// In a `bytes` object: its length, and its data.
    pub(crate) bytes_length: u16,
    pub(crate) bytes_data: u16,
}

/// Number of bytes of a frame, and of an identity, that BPF can copy.
const COPIED_BYTES_MAX: u16 = 128;

impl Layout {
    /// Returns the offsets for BPF, in the order of `enum python_offset` in `ebpf/bpf/runtimes/python.h`. `None` if BPF
    /// cannot use them, because a structure is too large.
    pub(crate) fn to_bpf(self) -> Option<[u16; RUNTIME_OFFSETS]> {
        let Self { walk, code, text, .. } = self;
        let forms = [
            (walk.chain_frame.is_some(), CHAIN_FORM),
            (code.instructions.is_some(), POINTER_FORM),
            (walk.entry.is_some(), LOOP_FORM),
            (walk.entry.is_some_and(|entry| entry.has_function), FUNCTION_FORM),
            (walk.copy.is_some(), COPY_FORM),
        ];
        let form = forms.iter().filter(|(has, _)| *has).map(|(_, form)| form).sum();
        let (entry_offset, entry_value) = walk.entry.map_or((0, 0), |entry| (entry.offset, entry.value));
        let (copy_number, copies) = walk.copy.unwrap_or_default();
        let frame_fields = [walk.frame_code, walk.frame_caller, walk.frame_position, entry_offset, copy_number];
        let last = frame_fields.into_iter().max()?;
        let frame_bytes = last.checked_add(size_of::<u64>() as u16).filter(|bytes| *bytes <= COPIED_BYTES_MAX)?;
        let (identity, identity_end) = code.identity;
        identity_end.checked_sub(identity).filter(|bytes| *bytes <= COPIED_BYTES_MAX && bytes % 8 == 0)?;
        let mut offsets = [0; RUNTIME_OFFSETS];
        let name = code.identified_name.filter(|name| identity <= *name && *name < identity_end);
        if name != code.identified_name {
            return None;
        }
        offsets[..17].copy_from_slice(&[
            walk.thread_frame,
            walk.chain_frame.unwrap_or_default(),
            walk.frame_code,
            walk.frame_caller,
            walk.frame_position,
            entry_offset,
            code.instructions.unwrap_or_default(),
            identity,
            frame_bytes,
            entry_value,
            form,
            copy_number,
            copies,
            identity_end,
            walk.thread_id.unwrap_or_default(),
            name.unwrap_or_default(),
            text.hash()?,
        ]);
        Some(offsets)
    }
}

/// Offsets by which BPF walks frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    /// In a thread: its frame, or the struct that points to it.
    pub(crate) thread_frame: u16,
    /// In that struct: the frame. `None` if a thread points to its frame.
    pub(crate) chain_frame: Option<u16>,
    pub(crate) frame_code: u16,
    pub(crate) frame_caller: u16,
    /// In a frame: the instruction.
    pub(crate) frame_position: u16,
    /// The mark of the first frame of a loop; `None` if a loop runs one frame.
    pub(crate) entry: Option<Entry>,
    /// In builds in which each thread has its own copy of a function's instructions: in a frame, the number of the
    /// copy, and in a code object, the copies.
    pub(crate) copy: Option<(u16, u16)>,
    /// In a thread: what `pthread_self` returns in it. `None` if each thread has a pointer to itself.
    pub(crate) thread_id: Option<u16>,
}

/// Mark of the first frame of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) offset: u16,
    pub(crate) value: u16,
    /// True if the marked frame has a function.
    pub(crate) has_function: bool,
}

/// Offsets in a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeLayout {
    /// Start and end of the words that identify the code object. They include numbers, such as the first line, because
    /// a freed object and its texts are often replaced by others at the same addresses. No word ever changes.
    pub(crate) identity: (u16, u16),
    /// The plain name, if its hash is a part of the identity. The compiler and `marshal` make code objects with hashed
    /// names; a name that a program makes may get its hash later, and the function is then another one once. `None` if
    /// the words above have a number that no other code object has.
    pub(crate) identified_name: Option<u16>,
    pub(crate) first_line: u16,
    pub(crate) file: u16,
    /// The qualified name, or the plain name until Python 3.10.
    pub(crate) name: u16,
    pub(crate) lines: u16,
    pub(crate) line_table: LineTable,
    /// Instructions; `None` if a frame has the number of its instruction in place of a pointer.
    pub(crate) instructions: Option<u16>,
    /// Number of bytes that the number of an instruction counts.
    pub(crate) position_unit: u16,
}

/// Offsets in a text, which is a `str` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextLayout {
    /// Number of characters.
    pub(crate) length: u16,
    /// Bits that tell the form of the characters.
    pub(crate) state: u16,
    /// Number of the first of these bits that tells the width of a character.
    pub(crate) kind_shift: u16,
    /// Size of the header of a text of ASCII characters, which its characters follow.
    pub(crate) ascii_header: u16,
    /// Size of the header of another text.
    pub(crate) header: u16,
}

impl TextLayout {
    /// Returns the offset of the hash of the text, which follows the length. `None` if the offsets are damaged.
    pub(crate) fn hash(self) -> Option<u16> {
        self.length.checked_add(size_of::<u64>() as u16)
    }
}

/// Returns the offset, in `_PyRuntime` of Python 3.`minor`, of the pointer to the thread that holds the lock. `None` if
/// there is none.
pub(crate) fn lock_holder(minor: u32) -> Option<u16> {
    match minor {
        7 => Some(1480),
        8 => Some(1368),
        9 | 10 => Some(568),
        11 => Some(576),
        _ => None,
    }
}

/// Returns the offset, in `_PyRuntime` of Python 3.`minor`, of the key of the thread. `None` if there is no key, or if
/// its offset is not known. Free-threaded builds have the same offset.
pub(crate) fn thread_key(minor: u32) -> Option<u16> {
    match minor {
        7 => Some(1504),
        8 => Some(1392),
        9 | 10 => Some(584),
        11 => Some(592),
        12 => Some(1544),
        13 => Some(2160),
        14 => Some(2336),
        _ => None,
    }
}

/// Returns the layout of Python 3.`minor` until 3.12; `None` for other versions.
pub(crate) fn layout_of(minor: u32) -> Option<Layout> {
    let (walk, code) = match minor {
        6..=10 => old_layout(minor),
        11 | 12 => new_layout(minor),
        _ => return None,
    };
    let (ascii_header, header) = if minor < 12 { (48, 72) } else { (40, 56) };
    let text = TextLayout { length: 16, state: 32, kind_shift: 2, ascii_header, header };
    Some(Layout { minor, is_free_threaded: false, walk, code, text, bytes_length: 16, bytes_data: 32 })
}

/// Returns the layout of Python 3.6 to 3.10.
fn old_layout(minor: u32) -> (Walk, CodeLayout) {
    let walk = Walk {
        thread_frame: 24,
        chain_frame: None,
        frame_code: 32,
        frame_caller: 24,
        frame_position: 104,
        entry: None,
        copy: None,
        thread_id: Some(176),
    };
    let code = CodeLayout {
        identity: (16, 128),
        identified_name: Some(112),
        first_line: 40,
        file: 104,
        name: 112,
        lines: 120,
        line_table: LineTable::Increments,
        instructions: None,
        position_unit: 1,
    };
    let first = CodeLayout {
        identity: (16, 120),
        identified_name: Some(104),
        first_line: 36,
        file: 96,
        name: 104,
        lines: 112,
        ..code
    };
    match minor {
        6 => (Walk { frame_position: 120, thread_id: Some(152), ..walk }, first),
        7 => (walk, first),
        8 | 9 => (walk, code),
        _ => {
            let code = CodeLayout { line_table: LineTable::Ranges, position_unit: 2, ..code };
            (Walk { frame_position: 96, ..walk }, code)
        }
    }
}

/// Returns the layout of Python 3.11 and 3.12.
fn new_layout(minor: u32) -> (Walk, CodeLayout) {
    let code = CodeLayout {
        identity: (48, 144),
        identified_name: None,
        first_line: 68,
        file: 112,
        name: 128,
        lines: 136,
        line_table: LineTable::Locations,
        instructions: Some(192),
        position_unit: 1,
    };
    let walk = Walk {
        thread_frame: 56,
        chain_frame: Some(0),
        frame_code: 0,
        frame_caller: 8,
        frame_position: 56,
        entry: Some(Entry { offset: 70, value: 3, has_function: false }),
        copy: None,
        thread_id: None,
    };
    if minor == 12 {
        return (walk, code);
    }
    let entry = Some(Entry { offset: 68, value: 1, has_function: true });
    let walk = Walk { chain_frame: Some(8), frame_code: 32, frame_caller: 48, entry, thread_id: Some(152), ..walk };
    // The word before this identity has a counter.
    let identity = (56, 144);
    (walk, CodeLayout { identity, identified_name: Some(120), first_line: 72, instructions: Some(184), ..code })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON_H: &str = include_str!("../../../../../ebpf/bpf/runtimes/python.h");
    const RUNTIMES_H: &str = include_str!("../../../../../ebpf/bpf/runtimes.h");

    #[test]
    fn offsets_and_forms_have_the_numbers_of_the_c_header() {
        let names = [
            "THREAD_FRAME",
            "CHAIN_FRAME",
            "CODE",
            "CALLER",
            "POSITION",
            "ENTRY",
            "INSTRUCTIONS",
            "IDENTITY",
            "FRAME_BYTES",
            "ENTRY_VALUE",
            "FORM",
            "COPY",
            "COPIES",
            "IDENTITY_END",
            "THREAD_ID",
            "NAME",
            "NAME_HASH",
        ];
        for (number, name) in names.iter().enumerate() {
            assert!(PYTHON_H.contains(&format!("PYTHON_{name} = {number},")), "{name}");
        }
        let forms = [CHAIN_FORM, POINTER_FORM, LOOP_FORM, FUNCTION_FORM, COPY_FORM];
        for (name, form) in ["CHAIN", "POINTER", "LOOP", "FUNCTION", "COPY"].iter().zip(forms) {
            assert!(PYTHON_H.contains(&format!("#define PYTHON_{name}_FORM {form} ")), "{name}");
        }
        assert!(RUNTIMES_H.contains(&format!("#define OBJECT_WORDS {}\n", COPIED_BYTES_MAX / 8)));
    }

    #[test]
    fn layouts_of_all_versions_fit_bpf_and_others_are_refused() {
        for minor in 6..=12 {
            let layout = layout_of(minor).unwrap();
            let offsets = layout.to_bpf().unwrap();
            let (identity, end) = layout.code.identity;
            assert_eq!(
                (offsets[7], offsets[13], offsets[14], offsets[15], offsets[16]),
                (
                    identity,
                    end,
                    layout.walk.thread_id.unwrap_or_default(),
                    layout.code.identified_name.unwrap_or_default(),
                    24
                )
            );
            for field in [layout.code.file, layout.code.name, layout.code.lines, layout.code.first_line] {
                assert!((identity..end).contains(&field), "3.{minor}: {field}");
            }
        }
        assert_eq!((layout_of(5), layout_of(13)), (None, None));
        let good = layout_of(12).unwrap();
        for frame_position in [121, u16::MAX] {
            assert_eq!(Layout { walk: Walk { frame_position, ..good.walk }, ..good }.to_bpf(), None);
        }
        for identity in [(48, 184), (48, 40), (48, 100)] {
            assert_eq!(Layout { code: CodeLayout { identity, ..good.code }, ..good }.to_bpf(), None);
        }
        for name in [0, 47, 144] {
            let code = CodeLayout { identified_name: Some(name), ..good.code };
            assert_eq!(Layout { code, ..good }.to_bpf(), None);
        }
    }
}
