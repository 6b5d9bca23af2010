//! Tests that compare the functions, files, lines and inlined calls of every address of a program with the output of
//! `addr2line -i` of binutils.

use std::fmt::Write as _;
use std::fs::File;

use proto::TenantId;
use symbol_store::{Address, ObjectKey, Source};
use testkit::workshop::{NESTED, have};

use crate::workshop::{PATIENCE, StoreWorkshop};

/// The parts of a frame that are compared: the mangled name, the last part of the path, and the line number.
type Line = (String, String, u32);

/// Returns the frames of each address according to addr2line, innermost first.
fn addr2line(workshop: &StoreWorkshop, program: &str, addresses: &[u64]) -> Vec<Vec<Line>> {
    let mut input = String::new();
    for address in addresses {
        writeln!(input, "{address:#x}").unwrap();
    }
    workshop.write("addresses", input);
    let output = workshop.run(&format!("addr2line -a -f -i -e {program} @addresses"));
    let mut answers: Vec<Vec<Line>> = Vec::new();
    let mut lines = output.lines();
    while let Some(function) = lines.next() {
        if function.starts_with("0x") {
            answers.push(Vec::new());
            continue;
        }
        let (file, line) = lines.next().unwrap().rsplit_once(':').unwrap();
        let line = line.split(' ').next().unwrap().parse().unwrap_or(0);
        answers.last_mut().unwrap().push((function.to_owned(), last_part(file, line), line));
    }
    assert_eq!(answers.len(), addresses.len());
    answers
}

/// Returns the last part of a path, or an empty text if there is no line number. For a frame without a line, addr2line
/// prints the name of an object file from the symbol table, which is not compared.
fn last_part(file: &str, line: u32) -> String {
    if line == 0 { String::new() } else { file.rsplit('/').next().unwrap().to_owned() }
}

/// Returns every address of all functions that `nm` lists.
fn code_addresses(workshop: &StoreWorkshop, program: &str) -> Vec<u64> {
    let mut addresses = Vec::new();
    for line in workshop.run(&format!("nm -S --defined-only {program}")).lines() {
        if let [start, size, kind, _name] = line.split(' ').collect::<Vec<_>>()[..]
            && "tTwW".contains(kind)
        {
            let start = u64::from_str_radix(start, 16).unwrap();
            addresses.extend(start..start + u64::from_str_radix(size, 16).unwrap());
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Compares the store and addr2line for every address. Returns the number of addresses, the largest number of frames at
/// one address, and a description of each difference.
fn compare(workshop: &StoreWorkshop, program: &str) -> (usize, usize, Vec<String>) {
    let store = workshop.store();
    let added = store.add_file(&TenantId::default_tenant(), &File::open(workshop.path(program)).unwrap()).unwrap();
    assert_eq!(added.source, Source::Dwarf);
    let addresses = code_addresses(workshop, program);
    let expected = addr2line(workshop, program, &addresses);
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&added.build_id), file: program };
    let asked: Vec<Address> = addresses.iter().map(|address| Address::Virtual(*address)).collect();
    let answers = store.symbolize(&object, &asked, PATIENCE);
    let mut differences = Vec::new();
    let mut depth = 0;
    for ((address, expected), answer) in addresses.iter().zip(&expected).zip(answers) {
        let frames = answer.unwrap_or_default();
        let line = |frame: &symbol_store::Frame| {
            (frame.system_name.to_string(), last_part(&frame.file, frame.line), frame.line)
        };
        let got: Vec<Line> = frames.iter().map(line).collect();
        depth = depth.max(got.len());
        if got != *expected {
            differences.push(format!("{address:#x}\n  addr2line {expected:?}\n  varve     {got:?}"));
        }
    }
    (addresses.len(), depth, differences)
}

#[test]
fn every_address_of_a_c_program_has_the_frames_of_addr2line() {
    if !have(&["gcc", "addr2line", "nm"]) {
        return;
    }
    for flags in [
        "-O0",
        "-O2",
        "-O3",
        "-O2 -gdwarf-4",
        "-O2 -no-pie",
        "-O2 -gz",
        "-O2 -ffunction-sections -Wl,--gc-sections",
        "-Os -static",
    ] {
        let workshop = StoreWorkshop::new();
        // If `--gc-sections` drops a function, its DWARF stays, with the address 0 for the function.
        workshop.write("dropped.c", "int dropped(int x) { for (int i = 0; i < x; i++) x ^= i * 7; return x; }\n");
        workshop.write("nested.c", NESTED);
        workshop.run(&format!("gcc -g {flags} nested.c dropped.c -o nested"));
        let (count, depth, mut differences) = compare(&workshop, "nested");
        if flags.contains("-static") {
            // The C library has up to a dozen symbols at one address. Of these, addr2line may choose another one than
            // the store.
            differences.retain(|difference| !difference.ends_with(", \"\", 0)]"));
        }
        assert!(count > 100, "{flags}: {count} addresses");
        assert!(depth == if flags == "-O0" { 3 } else { depth.max(3) }, "{flags}: {depth} deep");
        assert!(differences.is_empty(), "{flags}: {} of {count} differ:\n{}", differences.len(), differences[0]);
    }
}

/// C++ source of a program whose functions all have a linkage name in DWARF. For a function without one, the store has
/// a better name than addr2line, so the two would differ.
const TEMPLATES: &str = r"#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace deep {
template <typename T> struct Box {
    T value;
    __attribute__((noinline)) T twice() const { return value + value; }
};
__attribute__((noinline)) int hot(int n) {
    std::vector<int> numbers;
    for (int i = 0; i < n; i++)
        numbers.push_back(i * 7 % 13);
    std::sort(numbers.begin(), numbers.end());
    return numbers[n / 2];
}
}

int main(int argc, char **) {
    std::map<std::string, int> known;
    for (int i = 0; i < argc * 10; i++)
        known[std::to_string(i)] = deep::hot(i + 3);
    deep::Box<long> box{(long)known.size()};
    return (int)box.twice();
}
";

#[test]
fn every_address_of_a_cpp_program_has_the_frames_of_addr2line() {
    if !have(&["g++", "addr2line", "nm"]) {
        return;
    }
    for flags in ["-O0", "-O2"] {
        let workshop = StoreWorkshop::new();
        workshop.write("templates.cpp", TEMPLATES);
        // With DWARF 5, addr2line of binutils 2.40 prints the wrong file for some functions.
        workshop.run(&format!("g++ -g -gdwarf-4 {flags} templates.cpp -o templates"));
        let (count, depth, differences) = compare(&workshop, "templates");
        assert!(count > 2000 && depth > if flags == "-O0" { 0 } else { 4 }, "{flags}: {count} addresses, {depth} deep");
        assert!(differences.is_empty(), "{flags}: {} of {count} differ:\n{}", differences.len(), differences[0]);
    }
}

const SORTING: &str = r#"use std::collections::HashMap;

#[inline(never)]
fn hot(n: usize) -> usize {
    let mut numbers: Vec<usize> = (0..n).map(|i| i * 7 % 13).collect();
    numbers.sort();
    numbers.iter().filter(|x| **x > 3).sum()
}

fn main() {
    let known: HashMap<String, usize> = (0..100).map(|i| (format!("{i}"), hot(i + 1))).collect();
    println!("{}", known.values().sum::<usize>());
}
"#;

#[test]
fn every_address_of_a_rust_program_has_the_frames_of_addr2line() {
    if !have(&["rustc", "addr2line", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write("sorting.rs", SORTING);
    workshop.run("rustc -g -O -C link-arg=-Wl,--build-id sorting.rs -o sorting");
    let (count, depth, differences) = compare(&workshop, "sorting");
    assert!(count > 100_000 && depth > 10, "{count} addresses, {depth} deep");
    // Identical functions of the standard library share their code. The store and addr2line may choose different names,
    // and both are right.
    assert!(differences.len() < count / 10_000, "{} of {count} differ:\n{}", differences.len(), differences[0]);
}
