//! Recognises V8 in a file, and describes it to BPF.

use std::fs::File;
use std::ops::Range;

use ebpf::{Runtime, RuntimeKind};
use host_files::elf::{self, CallFrameSections, ElfImage};

use super::layout::{FORMS, Layout, Types};
use crate::unwind::call_frames::{Section, V8_BUILTINS_BYTES, described_functions};

/// Symbol that only files with V8 have.
const MARK: &str = "_ZN2v88internal7Version6major_E";

/// Exported numbers, in the order in which they are used below.
const NAMES: [&str; 19] = [
    MARK,
    "_ZN2v88internal7Version6minor_E",
    "v8dbg_SmiShiftSize",
    "v8dbg_TaggedSize",
    "v8dbg_class_JSFunction__shared__SharedFunctionInfo",
    "v8dbg_type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE",
    "v8dbg_type_ScopeInfo__SCOPE_INFO_TYPE",
    "v8dbg_type_Script__SCRIPT_TYPE",
    "v8dbg_type_Map__MAP_TYPE",
    "v8dbg_type_BytecodeArray__BYTECODE_ARRAY_TYPE",
    "v8dbg_type_Code__CODE_TYPE",
    "v8dbg_type_InterpreterData__INTERPRETER_DATA_TYPE",
    "v8dbg_type_ByteArray__BYTE_ARRAY_TYPE",
    "v8dbg_FirstNonstringType",
    "v8dbg_type_InstructionStream__INSTRUCTION_STREAM_TYPE",
    "v8dbg_type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE",
    "v8dbg_type_DebugInfo__DEBUG_INFO_TYPE",
    "v8dbg_type_BaselineData__BASELINE_DATA_TYPE",
    "v8dbg_type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE",
];

/// Returns the description of V8 in a file, and its layout; `None` if the file has no V8 of a known version.
pub(crate) fn recognise(file: &File) -> Option<(Runtime, Layout)> {
    // Most files do not have the mark, and a search for one name takes less time.
    let symbols = is_v8(file).then(|| elf::exported(file, NAMES).ok())??;
    let image = ElfImage::read(file).ok()?;
    let number = |symbol: &Option<Range<u64>>| {
        let start = symbol.as_ref()?.start;
        let bytes = elf::loaded_bytes(file, &image, start..start.checked_add(4)?);
        // A number that is zero takes no bytes of the file.
        Some(bytes.and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u32::from_ne_bytes))
    };
    let layout = layout_of(&std::array::from_fn(|at| number(&symbols[at])))?;
    let sections = CallFrameSections::read(file).ok()?;
    let (address, bytes) = sections.eh_frame.as_ref()?;
    let functions = described_functions(Section { bytes, address: *address }, sections.text.start);
    let builtins = builtins(functions, &sections.text)?;
    let (threads, offsets) = ([None; _], layout.to_bpf());
    Some((
        Runtime { kind: RuntimeKind::V8, loops: [builtins, 0..0], threads, callers: 0..0, extra: 0, offsets },
        layout,
    ))
}

/// True if a file has V8, also if its version is not known.
pub(crate) fn is_v8(file: &File) -> bool {
    elf::exported(file, [MARK]).is_ok_and(|[mark]| mark.is_some())
}

/// Returns the layout for the values of [`NAMES`]; `None` if the version is not known, or if it was built in another
/// way.
fn layout_of(values: &[Option<u32>; NAMES.len()]) -> Option<Layout> {
    let [major, minor, shift, tagged, shared, types @ ..] = values;
    let form = FORMS.iter().find(|form| Some(form.version.0) == *major && Some(form.version.1) == *minor)?;
    if (*shift, *tagged, *shared) != (Some(31), Some(8), Some(form.shared.into())) {
        return None;
    }
    let types: [Option<u16>; 14] = types.map(|number| u16::try_from(number?).ok());
    let [
        function,
        scope,
        script,
        map,
        bytecodes,
        code,
        data,
        bytes,
        no_string,
        stream,
        trusted,
        debug,
        baseline,
        wrapper,
    ] = types;
    Some(Layout {
        form,
        types: Types {
            shared_function: function?,
            scope: scope?,
            script: script?,
            map: map?,
            bytecodes: bytecodes?,
            code: code?,
            instructions: if form.code.is_apart { stream? } else { code? },
            interpreter_data: data?,
            byte_array: bytes?,
            trusted_byte_array: trusted,
            debug_info: debug,
            baseline_data: baseline,
            shared_function_wrapper: wrapper,
            no_string: no_string?,
        },
    })
}

/// Returns the addresses of V8's builtin functions: the largest part of `.text` that no call frame information covers.
fn builtins(mut functions: Vec<Range<u64>>, text: &Range<u64>) -> Option<Range<u64>> {
    functions.retain(|function| text.start <= function.start && function.end <= text.end);
    functions.sort_unstable_by_key(|function| function.start);
    functions.push(text.end..text.end);
    let mut end = text.start;
    let mut largest = 0..0;
    for function in functions {
        if largest.end - largest.start < function.start.saturating_sub(end) {
            largest = end..function.start;
        }
        end = end.max(function.end);
    }
    V8_BUILTINS_BYTES.contains(&(largest.end - largest.start)).then_some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtins_are_the_largest_part_that_nothing_describes() {
        let text = 0x10_0000..0x90_0000;
        let functions = vec![0x10_0000..0x20_0000, 0x1_0000..0x2_0000, 0x50_0000..0x60_0000, 0x20_1000..0x30_0000];
        assert_eq!(builtins(functions, &text), Some(0x60_0000..0x90_0000));
        assert_eq!(builtins(vec![0x10_0000..0x80_0000, 0x80_0000..0x8f_0000], &text), None);
    }

    #[test]
    fn layouts_of_other_versions_and_other_builds_are_refused() {
        // Values of Node.js 20.
        let good = [11, 3, 31, 8, 24, 262, 261, 167, 255, 191, 245, 159, 190, 128, 252, 0, 153, 0, 0].map(Some);
        let layout = layout_of(&good).unwrap();
        assert_eq!((layout.form.version, layout.types.instructions, layout.types.map), ((11, 3), 252, 255));
        // Another version, pointer compression, another size of words, another layout, and a type that is missing.
        for (at, value) in [(1, Some(4)), (2, Some(0)), (3, Some(4)), (4, Some(32)), (5, None), (14, None)] {
            let mut other = good;
            other[at] = value;
            assert_eq!(layout_of(&other), None, "{at}");
        }
    }
}
