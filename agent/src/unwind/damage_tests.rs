//! Damaged ELF files and call frame information: whatever is in a file, its table is made within bounded time and memory, or not at all.
//!
//! `VARVE_DAMAGE_CASES` says how many cases (`make soak-agent`: a million), `VARVE_DAMAGE_SEED` from which on: a case that fails names its own.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use object::{Object as _, ObjectSection as _};
use symbol_store::elf::ElfImage;

use super::resident::table_of;
use super::table::{ROWS_MAX, RULES_MAX};
use crate::sys;

/// In a run of all tests.
const CASES: u64 = 20_000;
/// What one file of 30 KB may take. One of the largest libraries takes a second.
const TIME_MAX: Duration = Duration::from_secs(2);
/// What all of them may make the process larger.
const GROWTH_MAX: u64 = 96 << 20;

const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int sum(const int *numbers, int count) { int all[count]; memcpy(all, numbers, sizeof all); qsort(all, count, sizeof(int), compare); return all[0]; }
int deep(int depth) { return depth > 0 ? deep(depth - 1) + 1 : 0; }
int main(int count, char **arguments) { int numbers[64] = {count}; (void)arguments; return sum(numbers, 64) + deep(count); }
"#;

/// Of each case its own, by its seed (splitmix64; Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A good file, and the parts of it in which most damage is done.
struct Good {
    bytes: Vec<u8>,
    parts: Vec<(usize, usize)>,
}

fn good_files() -> Vec<Good> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    std::fs::write(&source, SOURCE).unwrap();
    let kinds = [
        &["-O2"][..],
        &["-O2", "-g", "-fno-asynchronous-unwind-tables"],
        &["-O2", "-shared", "-fPIC", "-fomit-frame-pointer"],
        &["-O0", "-fcf-protection=full", "-s"],
    ];
    let build = |flags: &&[&str]| {
        let program = folder.path().join("program");
        let status = Command::new("gcc").args(*flags).arg("-o").args([&program, &source]).status().unwrap();
        assert!(status.success(), "gcc {flags:?}");
        let bytes = std::fs::read(&program).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let names = [".eh_frame", ".eh_frame_hdr", ".debug_frame", ".shstrtab"];
        let ranges = names.into_iter().filter_map(|name| file.section_by_name(name)?.file_range());
        let mut parts: Vec<_> = ranges.map(|(start, length)| (start as usize, (start + length) as usize)).collect();
        // The header, and the headers of segments and of sections.
        parts.extend([(0, 64), (64, 64 + 13 * 56), (bytes.len().saturating_sub(40 * 64), bytes.len())]);
        Good { bytes, parts }
    };
    kinds.iter().map(build).collect()
}

fn damage(good: &Good, random: &mut Random) -> Vec<u8> {
    let mut bytes = good.bytes.clone();
    for _ in 0..=random.below(6) {
        let (start, end) = match random.below(8) {
            0 => (0, bytes.len()),
            _ => good.parts[random.below(good.parts.len())],
        };
        let at = (start + random.below(end - start)).min(bytes.len().saturating_sub(8));
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let extreme = [0, 1, 0x7fff_ffff_ffff_ffff, u64::MAX, 1 << 31, u64::from(u32::MAX), bytes.len() as u64]
                    [random.below(7)];
                bytes[at..at + 8].copy_from_slice(&extreme.to_le_bytes());
            }
            3 => bytes[at..at + 4].copy_from_slice(&(random.next() as u32).to_le_bytes()),
            4 => {
                let (from, length) = (random.below(bytes.len()), random.below(64));
                let copied = bytes[from..bytes.len().min(from + length)].to_vec();
                let end = bytes.len().min(at + copied.len());
                bytes[at..end].copy_from_slice(&copied[..end - at]);
            }
            5 => {
                let end = bytes.len().min(at + random.below(64));
                bytes[at..end].fill([0, 0xff, 0x80][random.below(3)]);
            }
            _ => bytes.truncate(at.max(16)),
        }
        if bytes.len() < 64 {
            break;
        }
    }
    bytes
}

/// The most memory that this process has taken.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn damaged_files_have_a_table_or_none_in_bounded_time_and_memory() {
    let (cases, first) = (number("VARVE_DAMAGE_CASES", CASES), number("VARVE_DAMAGE_SEED", 1));
    let good = good_files();
    let file: File = sys::memory_file(b"").unwrap();
    for good in &good {
        file.set_len(0).unwrap();
        file.write_all_at(&good.bytes, 0).unwrap();
        assert!(table_of(&file).is_some(), "undamaged, it has one");
    }
    let (before, mut tables, mut longest) = (peak_bytes(), 0, Duration::ZERO);
    for seed in first..first + cases {
        let mut random = Random(seed);
        let bytes = damage(&good[random.below(good.len())], &mut random);
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let started = Instant::now();
        let _any = ElfImage::read(&file);
        let table =
            std::panic::catch_unwind(|| table_of(&file)).unwrap_or_else(|_panic| panic!("VARVE_DAMAGE_SEED={seed}"));
        let took = started.elapsed();
        assert!(took < TIME_MAX, "VARVE_DAMAGE_SEED={seed}: {took:?}");
        longest = longest.max(took);
        if let Some(table) = table {
            assert!(
                table.rows() <= ROWS_MAX && table.rules <= RULES_MAX,
                "VARVE_DAMAGE_SEED={seed}: {} rows",
                table.rows()
            );
            tables += 1;
        }
    }
    let growth = peak_bytes() - before;
    assert!(growth < GROWTH_MAX, "the process grew by {} MB", growth >> 20);
    // Else nothing but headers was damaged.
    assert!(cases / 4 < tables && tables < cases, "{tables} of {cases} have a table");
    crate::report::said(&format!(
        "{cases} damaged files: {tables} have a table, {longest:?} at most, {} MB more",
        growth >> 20
    ));
}
