//! Tests of the headers, build IDs and hashes that are read from ELF files. Those of real programs are compared with
//! the output of readelf, sha256sum and `go tool buildid`. Handwritten and changed files must be read or refused
//! correctly.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::path::Path;
use std::process::Command;

use host_files::elf::{self, ElfError, ElfImage};
use proto::BuildId;
use proto::build_id::to_hex;
use testkit::workshop::{NESTED, Workshop, have};

fn image(path: &Path) -> ElfImage {
    ElfImage::read(&File::open(path).unwrap()).unwrap()
}

#[test]
fn htlhash_equals_sha256sum_of_head_tail_and_length() {
    if !have(&["sh", "sha256sum", "head", "tail"]) {
        return;
    }
    let workshop = Workshop::default();
    let mut content = Vec::new();
    for length in [0, 1, 4095, 4096, 4097, 8191, 8192, 100_000_usize] {
        content.resize(length, 0);
        (0..).zip(&mut content).for_each(|(at, byte): (u64, _)| *byte = (at * 31 / 7) as u8);
        let path = workshop.write("file", &content);
        let length_octal: String = (length as u64).to_be_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        let script =
            format!("(head -c 4096 file; tail -c 4096 file; printf '{length_octal}') | sha256sum | head -c 32");
        let shell = Command::new("sh").arg("-c").arg(script).current_dir(path.parent().unwrap()).output().unwrap();
        let hash = elf::htlhash(&File::open(&path).unwrap()).unwrap();
        assert_eq!(to_hex(&hash), String::from_utf8(shell.stdout).unwrap(), "{length} bytes");
    }
}

#[test]
fn needed_libraries_equal_those_of_readelf() {
    if !have(&["gcc", "readelf"]) {
        return;
    }
    for (flags, expected) in [
        ("-Wl,--no-as-needed -lm -lresolv", 3..4),
        ("", 1..2),
        ("-static", 0..1),
        ("-shared -fPIC -nostdlib -Wl,--no-as-needed -lm", 1..2),
    ] {
        let workshop = Workshop::default();
        workshop.write("nested.c", NESTED);
        workshop.run(&format!("gcc nested.c -o nested {flags}"));
        let printed = workshop.run("readelf -dW nested");
        let names: Vec<String> = printed
            .lines()
            .filter(|line| line.contains("(NEEDED)"))
            .map(|line| line[line.find('[').unwrap() + 1..line.rfind(']').unwrap()].to_owned())
            .collect();
        assert!(expected.contains(&names.len()), "{flags}: {names:?}");
        let file = File::open(workshop.path("nested")).unwrap();
        assert_eq!(elf::needed_libraries(&file).unwrap(), names, "{flags}");
    }
}

#[test]
fn long_names_of_needed_libraries_are_left_out() {
    if !have(&["gcc"]) {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("nested.c", NESTED);
    for (length, count) in [(255, 2), (256, 1)] {
        let name = "x".repeat(length);
        workshop.run(&format!("gcc -shared -fPIC -Wl,-soname,{name} nested.c -o library.so"));
        workshop.run("gcc -Wl,--no-as-needed nested.c library.so -o program");
        let file = File::open(workshop.path("program")).unwrap();
        assert_eq!(elf::needed_libraries(&file).unwrap().len(), count, "{length}");
    }
}

#[test]
fn build_id_and_segments_equal_those_of_readelf() {
    if !have(&["gcc", "readelf"]) {
        return;
    }
    for flags in
        ["", "-no-pie", "-static", "-shared -fPIC", "-Wl,--build-id=0x0123456789abcdef", "-Wl,-z,noseparate-code"]
    {
        let workshop = Workshop::default();
        workshop.write("nested.c", NESTED);
        workshop.run(&format!("gcc {flags} nested.c -o nested"));
        let image = image(&workshop.path("nested"));
        let notes = workshop.run("readelf -n nested");
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap();
        assert_eq!(image.build_id(), BuildId::parse(&format!("gnu:{id}")), "{flags}");

        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        let headers = workshop.run("readelf -lW nested");
        let expected: Vec<(u64, u64, u64, u64, bool)> = headers
            .lines()
            .filter_map(|line| line.trim().strip_prefix("LOAD "))
            .map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let flags = fields[5..fields.len() - 1].concat();
                (number(fields[0]), number(fields[3]), number(fields[1]), number(fields[4]), flags.contains('E'))
            })
            .collect();
        let segments: Vec<_> = image
            .segments
            .iter()
            .map(|part| (part.offset, part.file_size, part.address, part.memory_size, part.executable))
            .collect();
        assert!(!expected.is_empty());
        assert_eq!(segments, expected, "{flags}");
        for segment in &image.segments {
            assert_eq!(image.virtual_address(segment.offset), Some(segment.address));
            assert_eq!(
                image.virtual_address(segment.offset + segment.file_size - 1),
                Some(segment.address + segment.file_size - 1)
            );
        }
        assert_eq!(image.virtual_address(1 << 40), None);
    }
}

#[test]
fn exported_symbols_and_their_bytes_equal_those_of_readelf_and_objdump() {
    if !have(&["gcc", "readelf", "objdump"]) {
        return;
    }
    let workshop = Workshop::default();
    // Enough names that the table of names is read in several pieces. `last` is the end of another name, so that a
    // linker stores it as a part of that name.
    let names: String = (0..8000).map(|number| format!("int variable_{number:04} = {number};\n")).collect();
    let source =
        format!("{names}int at_last = 1, last = 2; extern int missing; int *function(void) {{ return &missing; }}");
    workshop.write("many.c", source);
    workshop.run("gcc -shared -fPIC -O2 many.c -o many.so");
    let symbols = workshop.run("readelf --dyn-syms -W many.so");
    let expected = |name: &str| {
        let mut lines = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let fields = lines.find(|fields| fields.len() == 8 && fields[7] == name && fields[6] != "UND")?;
        let address = u64::from_str_radix(fields[1], 16).unwrap();
        Some(address..address + fields[2].parse::<u64>().unwrap())
    };
    let file = File::open(workshop.path("many.so")).unwrap();
    let names =
        ["variable_0000", "variable_4095", "variable_7999", "last", "at_last", "function", "missing", "variable"];
    let found = elf::exported(&file, names).unwrap();
    assert_eq!(found, names.map(expected));
    assert_eq!(found.map(|range| range.is_some()), [true, true, true, true, true, true, false, false]);

    let image = image(&workshop.path("many.so"));
    let [_, _, number, _, _, function, ..] = elf::exported(&file, names).unwrap().map(Option::unwrap_or_default);
    assert_eq!(elf::loaded_bytes(&file, &image, number).unwrap(), 7999_u32.to_ne_bytes());
    let code = elf::loaded_bytes(&file, &image, function.clone()).unwrap();
    let (start, end) = (function.start, function.end);
    let dumped = workshop.run(&format!("objdump -d --start-address={start:#x} --stop-address={end:#x} many.so"));
    let hex: String =
        dumped.lines().filter_map(|line| line.split('\t').nth(1)).flat_map(|hex| hex.split(' ')).collect();
    assert_eq!(code.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), hex);
    assert_eq!(elf::loaded_bytes(&file, &image, u64::MAX - 8..u64::MAX), None);
    assert_eq!(elf::loaded_bytes(&file, &image, function.end..function.start), None);
}

#[test]
fn a_build_id_without_a_segment_is_found_by_the_section_headers() {
    if !have(&["gcc"]) {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("nested.c", NESTED);
    workshop.run("gcc nested.c -o nested");
    let expected = image(&workshop.path("nested")).gnu_build_id;
    assert!(expected.is_some());
    let mut bytes = std::fs::read(workshop.path("nested")).unwrap();
    let table = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
    for header in 0..u16::from_le_bytes(bytes[56..58].try_into().unwrap()) as usize {
        let kind = &mut bytes[table + header * 56..][..4];
        if kind == [4, 0, 0, 0] {
            kind.fill(0);
        }
    }
    assert_eq!(image(&workshop.write("without", bytes)).gnu_build_id, expected);
}

#[test]
fn the_build_id_of_a_go_program_equals_that_of_the_go_tool() {
    if !have(&["go"]) {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("main.go", "package main\n\nfunc main() { println(\"hello\") }\n");
    workshop.go_build("main.go", "main");
    let expected = workshop.run("go tool buildid main");
    assert_eq!(image(&workshop.path("main")).go_build_id.as_deref(), Some(expected.trim()));
}

/// Returns a big-endian 32-bit file that consists of an ELF header, one note segment and one loaded segment.
fn big_endian() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x01\x02\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let u16s = |bytes: &mut Vec<u8>, numbers: &[u16]| numbers.iter().for_each(|n| bytes.extend(n.to_be_bytes()));
    let u32s = |bytes: &mut Vec<u8>, numbers: &[u32]| numbers.iter().for_each(|n| bytes.extend(n.to_be_bytes()));
    u16s(&mut bytes, &[2, 20]);
    u32s(&mut bytes, &[1, 0x1000_0100, 52, 0, 0]);
    u16s(&mut bytes, &[52, 32, 2, 40, 0, 0]);
    u32s(&mut bytes, &[4, 116, 0x1000_0074, 0x1000_0074, 20, 20, 4, 4]);
    u32s(&mut bytes, &[1, 0, 0x1000_0000, 0x1000_0000, 136, 136, 5, 4096]);
    u32s(&mut bytes, &[4, 4, 3]);
    bytes.extend(b"GNU\0\xca\xfe\xba\xbe");
    bytes
}

#[test]
fn a_big_endian_32_bit_file_is_read_and_no_prefix_has_its_build_id() {
    let workshop = Workshop::default();
    let whole = image(&workshop.write("whole", big_endian()));
    assert_eq!(whole.gnu_build_id.as_deref(), Some(&b"\xca\xfe\xba\xbe"[..]));
    assert_eq!(whole.virtual_address(0x80), Some(0x1000_0080));
    for length in 0..big_endian().len() {
        let path = workshop.write("prefix", &big_endian()[..length]);
        match ElfImage::read(&File::open(path).unwrap()) {
            Ok(image) => assert!(length >= 116 && image.gnu_build_id.is_none(), "{length} bytes"),
            Err(ElfError::NotElf) => assert!(length < 4, "{length} bytes"),
            Err(ElfError::UnknownFormat { .. }) => assert!((4..7).contains(&length), "{length} bytes"),
            Err(ElfError::Truncated) => assert!((7..116).contains(&length), "{length} bytes"),
            Err(error) => panic!("{length} bytes: {error}"),
        }
    }
}

#[test]
fn other_files_are_refused_with_the_reason() {
    let workshop = Workshop::default();
    let read = |content: &[u8]| ElfImage::read(&File::open(workshop.write("file", content)).unwrap()).unwrap_err();
    assert!(matches!(read(b""), ElfError::NotElf));
    assert!(matches!(read(b"#!/bin/sh\nexit 0\n"), ElfError::NotElf));
    assert!(matches!(read(b"\x7fELF\x09\x01\x01"), ElfError::UnknownFormat { class: 9, .. }));
    let mut many = big_endian();
    many[44..46].copy_from_slice(&u16::MAX.to_be_bytes());
    assert!(matches!(read(&many), ElfError::ProgramHeaders { count: u16::MAX, .. }));
    assert!(matches!(ElfImage::read(&File::open("/").unwrap()).unwrap_err(), ElfError::Io(_)));
}

#[test]
fn reading_headers_survives_a_change_of_any_of_their_bytes() {
    if !have(&["gcc"]) {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O2 nested.c -o nested");
    let good = std::fs::read(workshop.path("nested")).unwrap();
    let mut read = 0;
    for at in 0..0x400 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let file = File::open(workshop.write("changed", bytes)).unwrap();
            match ElfImage::read(&file) {
                Ok(image) => {
                    read += 1;
                    let _any = (image.build_id(), image.virtual_address(0), image.virtual_address(u64::MAX));
                    let _symbols = elf::exported(&file, ["main"]);
                    let _libraries = elf::needed_libraries(&file);
                    let _bytes = elf::loaded_bytes(&file, &image, 0x1000..0x1010);
                }
                Err(ElfError::Io(error)) => panic!("byte {at}: {error}"),
                Err(_) => assert!(at < 64, "byte {at}"),
            }
            elf::htlhash(&file).unwrap();
        }
    }
    assert!(read > 3000, "{read}");
}
