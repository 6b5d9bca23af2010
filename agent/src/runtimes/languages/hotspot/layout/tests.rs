//! Layouts of real versions, from the tables in their memory.

use super::*;

/// Offsets of the fields in versions of Java, as their tables have them. `-` stands for a field that is not there.
const VERSIONS: &str = include_str!("versions.txt");

/// Returns the tables of each version, as far as they describe fields for a layout.
pub(crate) fn tables() -> Vec<(u32, VmStructs)> {
    let mut rows = VERSIONS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let versions = rows.next().unwrap();
    let rows: Vec<_> = rows.collect();
    let table = |column: usize| {
        let version = versions[column].parse().unwrap();
        let mut vm = VmStructs::default();
        for row in &rows {
            let Ok(number) = row[column].parse() else { continue };
            match row[1] {
                "size" => vm.insert_size(row[0], number),
                "complete" if version == 25 => vm.insert(row[0], "int16_t", number),
                "complete" => vm.insert(row[0], "int", number),
                of => vm.insert(row[0], of, number),
            }
        }
        (version, vm)
    };
    (2..versions.len()).map(table).collect()
}

/// Returns the layout of each version.
pub(crate) fn layouts() -> Vec<(u32, Layout)> {
    tables().into_iter().map(|(version, vm)| (version, Layout::of(&vm, version).unwrap())).collect()
}

#[test]
fn offsets_and_forms_have_the_numbers_of_the_c_header() {
    const HOTSPOT_H: &str = include_str!("../../../../../../ebpf/bpf/runtimes/hotspot.h");
    let names = [
        "BLOCK_BYTES",
        "USED",
        "SIZE",
        "FRAME_SIZE",
        "COMPLETE",
        "CODE",
        "KIND",
        "NAME",
        "METHOD",
        "DEOPT",
        "DEOPT_HANDLE",
        "ORIGINAL_PC",
        "COMPILE_ID",
        "BLOB_END",
        "CONSTANT",
        "POOL",
        "CODE_SIZE",
        "BYTECODES",
        "HOLDER",
        "CLASS_NAME",
        "FRAME_BYTECODE",
        "SAVED_PC",
        "FORM",
    ];
    for (number, name) in names.iter().enumerate() {
        assert!(HOTSPOT_H.contains(&format!("HOTSPOT_{name} = {number},")), "{name}");
    }
    let forms = [KIND_FORM, CODE_OFFSET_FORM, SHORT_COMPLETE_FORM, DEOPT_OFFSET_FORM, COUNT_SECOND_FORM];
    for (name, form) in ["KIND", "CODE_OFFSET", "SHORT_COMPLETE", "DEOPT_OFFSET", "COUNT_SECOND"].iter().zip(forms) {
        assert!(HOTSPOT_H.contains(&format!("#define HOTSPOT_{name}_FORM {form} ")), "{name}");
    }
}

// The numbers are from the debugger of each version.
#[test]
fn the_description_for_bpf_has_the_offsets_of_each_version() {
    let expected = [
        (8, [16, 8, 16, 44, 36, 32, 0, 8, 64, 148, 152, 200, 204, 208, 8, 8, 32, 48, 24, 16, 56, 744, 2 + 8 + 16, 0]),
        (11, [16, 8, 12, 28, 20, 32, 0, 96, 112, 128, 136, 320, 324, 328, 8, 8, 40, 56, 24, 24, 64, 984, 16, 0]),
        (17, [16, 8, 12, 28, 20, 32, 0, 96, 112, 128, 136, 300, 304, 308, 8, 8, 32, 48, 24, 24, 64, 856, 0, 0]),
        (21, [16, 8, 72, 88, 80, 8, 0, 64, 112, 128, 136, 304, 308, 312, 8, 8, 34, 56, 24, 24, 64, 1128, 0, 0]),
        (25, [8, 4, 24, 44, 54, 36, 56, 8, 80, 176, 180, 208, 212, 216, 8, 8, 34, 56, 24, 24, 64, 1336, 15, 0]),
        (28, [8, 4, 24, 44, 52, 36, 58, 8, 80, 184, 0, 208, 212, 216, 8, 8, 34, 56, 24, 24, 64, 1296, 11, 0]),
    ];
    let found: Vec<_> = layouts().into_iter().map(|(version, layout)| (version, layout.to_bpf().offsets)).collect();
    assert_eq!(found, expected);
}

#[test]
fn tables_that_are_not_filled_in_have_no_layout() {
    assert_eq!(Layout::of(&VmStructs::default(), 17), None);
    let mut vm = VmStructs::default();
    for row in VERSIONS.lines().skip(1).map(|line| line.split(' ').collect::<Vec<_>>()) {
        match row[1] {
            "size" => vm.insert_size(row[0], 8),
            "complete" => vm.insert(row[0], "int", 0),
            of => vm.insert(row[0], of, 0),
        }
    }
    assert_eq!(Layout::of(&vm, 17), None);
}
