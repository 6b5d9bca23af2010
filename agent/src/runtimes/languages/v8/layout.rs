//! Layout of V8's objects, in bytes from the start of an object, by version of V8 and for x86-64 without pointer
//! compression. Numbers of types are not here: they depend on how V8 was built, and every build exports them.

use ebpf::RUNTIME_OFFSETS;

use super::bytecodes::{self, Sizes};

// Bits of the form of the objects, as in `ebpf/bpf/runtimes/v8.h`.
const OLD_TOKEN_FORM: u16 = 1;

/// Layout of the objects in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) form: &'static Form,
    pub(crate) types: Types,
}

/// Numbers of the types of objects. A type that a version does not have is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(crate) shared_function: u16,
    pub(crate) scope: u16,
    pub(crate) script: u16,
    pub(crate) map: u16,
    pub(crate) bytecodes: u16,
    /// Description of machine code.
    pub(crate) code: u16,
    /// Object that contains machine code: the description itself in older versions.
    pub(crate) instructions: u16,
    pub(crate) interpreter_data: u16,
    pub(crate) byte_array: u16,
    pub(crate) trusted_byte_array: Option<u16>,
    pub(crate) debug_info: Option<u16>,
    pub(crate) baseline_data: Option<u16>,
    pub(crate) shared_function_wrapper: Option<u16>,
    /// Smallest number of a type that is not a string.
    pub(crate) no_string: u16,
}

/// Properties of one version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Major and minor version.
    pub(crate) version: (u32, u32),
    /// In a closure: its shared function.
    pub(crate) shared: u16,
    /// Below the frame pointer: the bytecode array of an interpreted function. The bytecode offset is one word below.
    pub(crate) frame_bytecodes: u16,
    pub(crate) function: FunctionForm,
    pub(crate) scope: ScopeForm,
    pub(crate) code: CodeForm,
    pub(crate) inlining: InliningForm,
    /// In a bytecode array: its first bytecode.
    pub(crate) first_bytecode: u16,
    /// In a bytecode array: its table of positions.
    pub(crate) bytecode_positions: u16,
    pub(crate) positions: PositionsForm,
    /// In a script: the URL in its source.
    pub(crate) source_url: u16,
    /// Sizes of the bytecodes; `None` if the version has no baseline code.
    pub(crate) sizes: Option<Sizes>,
}

/// Offsets in a shared function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionForm {
    /// The code, or the bytecode array.
    pub(crate) data: u16,
    /// The number of a builtin function, as a small integer.
    pub(crate) builtin: u16,
    /// The name, or the scope.
    pub(crate) name: u16,
    pub(crate) script: u16,
    /// Counts of parameters, and the offset of the function's first token. The flags and the number of the function in
    /// its script follow, and then its unique number.
    pub(crate) counts: u16,
    pub(crate) has_unique: bool,
    pub(crate) has_old_token: bool,
}

/// Layout of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeForm {
    pub(crate) first: u16,
    /// Number of the flag after which all others are one lower if the version has no saved class variable.
    pub(crate) has_class_variable: bool,
    pub(crate) has_receiver: bool,
    /// Number of locals from which on their names are in a hash table.
    pub(crate) hashed_locals: Option<i32>,
    /// A module's scope has the number of its variables before the locals.
    pub(crate) has_module_count: bool,
    /// The positions of the function are before its locals, and the flags are no small integer.
    pub(crate) has_positions_first: bool,
    pub(crate) module: u32,
    /// Bits of the types that have positions.
    pub(crate) with_positions: u32,
}

/// Layout of machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeForm {
    /// In the object that contains the instructions: their start.
    pub(crate) header: u16,
    /// Alignment of the instructions, as a power of two.
    pub(crate) align_bits: u16,
    /// True if the object that contains the instructions is not their description, but points to it.
    pub(crate) is_apart: bool,
    /// Data about inlined functions.
    pub(crate) inlining: u16,
    /// The table of positions, or that of the bytecodes of baseline code.
    pub(crate) positions: u16,
    pub(crate) size: u16,
    pub(crate) flags: u16,
    pub(crate) kind_shift: u16,
    pub(crate) kind_mask: u32,
    pub(crate) regexp: u32,
    pub(crate) baseline: Option<u32>,
    /// First and last kind of optimized code.
    pub(crate) optimized: (u32, u32),
    pub(crate) maglev: Option<u32>,
    pub(crate) exits: ExitsForm,
}

/// Format of the table that has the exits of optimized code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitsForm {
    /// Entries of three ints. The offset of the table is a field of the code.
    Field,
    /// Entries of three ints, after the instructions.
    Ints,
    /// Packed entries, after the instructions.
    Packed,
    /// Packed entries, after the instructions and a count of stack slots.
    PackedWithSlots,
}

/// Indices in the data about inlined functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InliningForm {
    pub(crate) literals: u64,
    pub(crate) function: u64,
    pub(crate) positions: u64,
    pub(crate) is_wrapped: bool,
}

/// Format of a table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositionsForm {
    /// Offset before the first entry.
    pub(crate) start: i32,
    /// Two bits of each offset are flags.
    pub(crate) has_flags: bool,
}

/// In a bytecode array: its length, as a small integer. Also in other arrays.
pub(crate) const LENGTH: u16 = 8;
/// In an array: its first element.
pub(crate) const ELEMENTS: u16 = 16;

impl Layout {
    /// Returns the offsets for BPF, in the order of `enum v8_offset` in `ebpf/bpf/runtimes/v8.h`.
    pub(crate) fn to_bpf(self) -> [u16; RUNTIME_OFFSETS] {
        let Self { form, types } = self;
        let function = form.function;
        let mut offsets = [0; RUNTIME_OFFSETS];
        // BPF copies six words below the frame pointer.
        let in_copy = 48 - form.frame_bytecodes;
        offsets[..11].copy_from_slice(&[
            form.shared,
            in_copy,
            form.first_bytecode - 1,
            types.shared_function,
            types.bytecodes,
            function.counts,
            if function.has_unique { function.counts + 16 } else { 0 },
            function.script,
            function.builtin,
            if function.has_old_token { OLD_TOKEN_FORM } else { 0 },
            form.code.align_bits,
        ]);
        offsets
    }
}

const FUNCTION: FunctionForm =
    FunctionForm { data: 8, builtin: 8, name: 16, script: 32, counts: 40, has_unique: false, has_old_token: false };
const SCOPE: ScopeForm = ScopeForm {
    first: 8,
    has_class_variable: true,
    has_receiver: false,
    hashed_locals: Some(75),
    has_module_count: false,
    has_positions_first: false,
    module: 3,
    with_positions: 0b11111,
};
const OLD_SCOPE: ScopeForm =
    ScopeForm { first: 16, has_receiver: true, hashed_locals: None, with_positions: 0b11110, ..SCOPE };
const NEW_SCOPE: ScopeForm = ScopeForm { has_module_count: true, has_positions_first: true, module: 5, ..SCOPE };
const CODE: CodeForm = CodeForm {
    header: 32,
    align_bits: 6,
    is_apart: true,
    inlining: 8,
    positions: 16,
    size: 56,
    flags: 52,
    kind_shift: 0,
    kind_mask: 15,
    regexp: 3,
    baseline: Some(10),
    optimized: (11, 12),
    maglev: Some(11),
    exits: ExitsForm::PackedWithSlots,
};
const CODE_10: CodeForm = CodeForm {
    header: 128,
    is_apart: false,
    inlining: 16,
    positions: 24,
    size: 40,
    flags: 48,
    baseline: Some(11),
    optimized: (12, 13),
    maglev: None,
    exits: ExitsForm::Packed,
    ..CODE
};
const CODE_8: CodeForm = CodeForm {
    header: 96,
    align_bits: 5,
    flags: 44,
    kind_shift: 1,
    kind_mask: 31,
    regexp: 4,
    baseline: None,
    optimized: (0, 0),
    exits: ExitsForm::Field,
    ..CODE_10
};
const INLINING: InliningForm = InliningForm { literals: 2, function: 6, positions: 7, is_wrapped: false };
const NEW_INLINING: InliningForm = InliningForm { literals: 3, function: 7, positions: 8, is_wrapped: true };
const POSITIONS: PositionsForm = PositionsForm { start: -1, has_flags: false };

const V10_2: Form = Form {
    version: (10, 2),
    shared: 24,
    frame_bytecodes: 32,
    function: FUNCTION,
    scope: SCOPE,
    code: CODE_10,
    inlining: INLINING,
    first_bytecode: 56,
    bytecode_positions: 32,
    positions: POSITIONS,
    source_url: 104,
    sizes: Some(bytecodes::V10_2),
};
const V13_6: Form = Form {
    version: (13, 6),
    shared: 32,
    function: FunctionForm { builtin: 16, name: 24, script: 40, counts: 48, has_unique: true, ..FUNCTION },
    scope: NEW_SCOPE,
    code: CODE,
    inlining: NEW_INLINING,
    first_bytecode: 64,
    bytecode_positions: 24,
    source_url: 112,
    sizes: Some(bytecodes::V13_6),
    ..V10_2
};

/// All known versions.
pub(crate) static FORMS: [Form; 8] = [
    Form {
        version: (7, 8),
        frame_bytecodes: 24,
        function: FunctionForm { has_old_token: true, ..FUNCTION },
        scope: ScopeForm { has_class_variable: false, ..OLD_SCOPE },
        code: CodeForm { header: 64, ..CODE_8 },
        first_bytecode: 54,
        positions: PositionsForm { start: 0, ..POSITIONS },
        sizes: None,
        ..V10_2
    },
    Form {
        version: (8, 4),
        frame_bytecodes: 24,
        scope: OLD_SCOPE,
        code: CODE_8,
        first_bytecode: 54,
        sizes: None,
        ..V10_2
    },
    Form {
        version: (9, 4),
        scope: ScopeForm { first: 8, ..OLD_SCOPE },
        code: CodeForm { header: 96, align_bits: 5, exits: ExitsForm::Ints, ..CODE_10 },
        first_bytecode: 54,
        sizes: Some(bytecodes::V9_4),
        ..V10_2
    },
    V10_2,
    Form {
        version: (11, 3),
        code: CodeForm { header: 16, is_apart: true, size: 56, maglev: Some(12), ..CODE_10 },
        first_bytecode: 54,
        source_url: 112,
        sizes: Some(bytecodes::V11_3),
        ..V10_2
    },
    Form {
        version: (12, 4),
        shared: 32,
        function: FunctionForm { has_unique: true, ..FUNCTION },
        scope: ScopeForm { has_module_count: true, ..SCOPE },
        code: CodeForm { size: 52, flags: 48, exits: ExitsForm::Packed, ..CODE },
        inlining: INLINING,
        sizes: Some(bytecodes::V12_4),
        ..V13_6
    },
    V13_6,
    Form {
        version: (14, 1),
        positions: PositionsForm { has_flags: true, ..POSITIONS },
        sizes: Some(bytecodes::V14_1),
        ..V13_6
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const V8_H: &str = include_str!("../../../../../ebpf/bpf/runtimes/v8.h");

    #[test]
    fn offsets_have_the_numbers_of_the_c_header_and_fit_its_copies() {
        let names = [
            "SHARED",
            "ARRAY",
            "FIRST",
            "FUNCTION_TYPE",
            "ARRAY_TYPE",
            "COUNTS",
            "UNIQUE",
            "SCRIPT",
            "BUILTIN",
            "FORM",
            "ALIGN",
        ];
        for (number, name) in names.iter().enumerate() {
            assert!(V8_H.contains(&format!("V8_{name} = {number},")), "{name}");
        }
        assert!(V8_H.contains(&format!("#define V8_OLD_TOKEN_FORM {OLD_TOKEN_FORM} ")));
        for form in &FORMS {
            let function = form.function;
            let last = [function.data, function.builtin, function.name, function.script, function.counts + 16];
            assert!(last.iter().all(|offset| *offset + 8 <= 72), "{:?}", form.version);
            assert!([24, 32].contains(&form.frame_bytecodes), "{:?}", form.version);
        }
    }
}
