//! Line tables, compared with those that each installed Python decodes itself.

use proptest::prelude::*;
use testkit::interpreters::pythons;
use testkit::report;

use super::*;

/// Prints, for each code object of some large modules: the first line, the table, and the line of each instruction.
const PROGRAM: &str = r#"
import argparse, ast, binascii, decimal, dis, email.message, inspect, json, pickle
import random, subprocess, tarfile, types

def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for inner in codes(constant):
                yield inner

def lines(code):
    if hasattr(code, "co_lines"):
        for start, end, line in code.co_lines():
            for at in range(start, end, 2):
                yield at, line
        return
    starts = dict(dis.findlinestarts(code))
    line = None
    for at in range(0, len(code.co_code), 2):
        line = starts.get(at, line)
        yield at, line

modules = [argparse, ast, decimal, email.message, inspect, json.decoder, pickle, random, subprocess, tarfile, types]
for module in modules:
    source = open(module.__file__, "rb").read()
    for code in codes(compile(source, module.__file__, "exec")):
        table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
        pairs = ["%d:%d" % (at, line or 0) for at, line in lines(code)]
        print(code.co_firstlineno, "t" + binascii.hexlify(table).decode(), " ".join(pairs))
"#;

fn bytes_of(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn lines_of_the_standard_library_are_those_that_python_decodes() {
    let interpreters = pythons();
    if interpreters.is_empty() {
        return report::skipped("lines_of_the_standard_library_are_those_that_python_decodes", "there is no Python 3");
    }
    for interpreter in interpreters {
        let output = interpreter.command().args(["-c", PROGRAM]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let version = interpreter.command().args(["-c", "import sys; print(sys.version_info[1])"]).output().unwrap();
        let table_kind = match String::from_utf8_lossy(&version.stdout).trim().parse().unwrap() {
            ..=9 => LineTable::Increments,
            10 => LineTable::Ranges,
            11_u32.. => LineTable::Locations,
        };
        let mut instructions = 0;
        for code in String::from_utf8(output.stdout).unwrap().lines() {
            let mut fields = code.split(' ');
            let first_line = fields.next().unwrap().parse().unwrap();
            let table = bytes_of(&fields.next().unwrap()[1..]);
            for pair in fields.filter(|pair| !pair.is_empty()) {
                let (at, line) = pair.split_once(':').unwrap();
                let read = table_kind.line(&table, first_line, at.parse().unwrap()).unwrap_or_default();
                assert_eq!(read, line.parse::<u32>().unwrap(), "{interpreter}: {at} in {code}");
                instructions += 1;
            }
        }
        assert!(20_000 < instructions, "{interpreter}: {instructions}");
    }
}

proptest! {
    #[test]
    fn any_table_gives_a_line_or_none(table: Vec<u8>, first_line: u32, position: u32) {
        for kind in [LineTable::Increments, LineTable::Ranges, LineTable::Locations] {
            let _line = kind.line(&table, first_line, position);
        }
    }
}
