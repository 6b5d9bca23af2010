//! Damaged ELF files, with plain and compressed call frame information and with Go tables. For any file, the unwind
//! table and the Go names are made within bounded time and memory, or not at all.
//!
//! `VARVE_DAMAGE_CASES` sets the number of cases (`make soak-agent`: a million), and `VARVE_DAMAGE_SEED` the seed of
//! the first case. A case that fails prints its seed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use host_files::elf::ElfImage;
use object::{Object as _, ObjectSection as _};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};

use crate::names::go::{GoTable, test_program};
use crate::process::file::FileOrigin;
use crate::process::sys;
use crate::unwind::file_table::table_of;
use crate::unwind::table::{ROWS_MAX, RULES_MAX, UnwindTable};

/// Number of cases if `VARVE_DAMAGE_CASES` is not set.
const CASES: u64 = 20_000;
/// One case in this many is a Go program. Go programs are rare because they have a megabyte and more.
const GO_EVERY: usize = 32;
/// Longest time that the agent may take for one file. One of the largest libraries takes a second.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Largest number of bytes by which the process may grow while all cases run.
const GROWTH_MAX: u64 = 96 << 20;

const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int sum(const int *numbers, int count) {
    int all[count];
    memcpy(all, numbers, sizeof all);
    qsort(all, count, sizeof(int), compare);
    return all[0];
}
int deep(int depth) { return depth > 0 ? deep(depth - 1) + 1 : 0; }
int main(int count, char **arguments) {
    int numbers[64] = {count};
    (void)arguments;
    return sum(numbers, 64) + deep(count);
}
"#;

/// Size of files that stand for the memory of a process whose objects are damaged. Zeros follow the objects, so that
/// most damaged addresses and lengths are those of memory that can be read.
pub(crate) const MEMORY_BYTES: u64 = 1 << 40;

/// Returns a number below `end`; 0 if `end` is 0.
pub(crate) fn below(random: &mut SplitMix64, end: usize) -> usize {
    (random.next_u64() % end.max(1) as u64) as usize
}

/// An undamaged file, and the ranges of offsets in which most damage is done.
struct Good {
    bytes: Vec<u8>,
    parts: Vec<(usize, usize)>,
    origin: FileOrigin,
}

/// Scripts that build the files from `program.c`.
const SCRIPTS: [&str; 10] = [
    "gcc -O2 program.c -o program",
    "gcc -O2 -g -gz=none -fno-asynchronous-unwind-tables program.c -o program",
    "gcc -O2 -shared -fPIC -fomit-frame-pointer program.c -o program",
    "gcc -O0 -fcf-protection=full -s program.c -o program",
    "gcc -O0 -g -gz=zlib -fno-asynchronous-unwind-tables program.c -o program",
    "gcc -O0 -g -gz=none -fno-asynchronous-unwind-tables program.c -o plain
     objcopy --compress-debug-sections=zstd plain program",
    "gcc -O0 -g -gz=none -fno-asynchronous-unwind-tables program.c -o plain
     objcopy --compress-debug-sections=zlib-gnu plain program",
    "gcc -O0 -g -fno-asynchronous-unwind-tables program.c -o program; objcopy --only-keep-debug program small; xz small
     strip -g program; objcopy --add-section .gnu_debugdata=small.xz program",
    "gcc -O0 -g -gz=zlib -fno-asynchronous-unwind-tables program.c -o program; objcopy --only-keep-debug program debug
     strip -g program; objcopy --add-gnu-debuglink=debug program",
    // With musl, a whole C library whose rules are derived from its instructions.
    "$(command -v musl-gcc || echo gcc) -O0 -static -s -fno-asynchronous-unwind-tables program.c -o program",
];

fn good_files(folder: &Path) -> (Vec<Good>, Option<Good>) {
    let build = |(number, script): (usize, &&str)| {
        let folder = folder.join(number.to_string());
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("program.c"), SOURCE).unwrap();
        let status = Command::new("sh").args(["-ec", script]).current_dir(&folder).status().unwrap();
        assert!(status.success(), "{script}");
        good(&folder.join("program"))
    };
    let go = test_program::build("damaged_files", folder, (0, "go"), test_program::KINDS[1]);
    (SCRIPTS.iter().enumerate().map(build).collect(), go.map(|(_, program)| good(&program)))
}

fn good(program: &Path) -> Good {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let names = [
        ".text",
        ".eh_frame",
        ".eh_frame_hdr",
        ".debug_frame",
        ".zdebug_frame",
        ".gnu_debugdata",
        ".gnu_debuglink",
        ".gopclntab",
        ".go.module",
        ".shstrtab",
    ];
    let ranges = names.into_iter().filter_map(|name| file.section_by_name(name)?.file_range());
    let mut parts: Vec<_> = ranges.map(|(start, length)| (start as usize, (start + length) as usize)).collect();
    // The header of Go's table leads to everything else.
    let go_header = file.section_by_name(".gopclntab").and_then(|section| section.file_range());
    parts.extend(go_header.map(|(start, _)| (start as usize, start as usize + 72)));
    // The header, and the headers of segments and of sections.
    parts.extend([(0, 64), (64, 64 + 13 * 56), (bytes.len().saturating_sub(40 * 64), bytes.len())]);
    let origin = FileOrigin { pid: std::process::id(), path: program.to_str().unwrap().to_owned() };
    Good { bytes, parts, origin }
}

fn damage(good: &Good, random: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = good.bytes.clone();
    for _ in 0..=below(random, 6) {
        let (start, end) = match below(random, 8) {
            0 => (0, bytes.len()),
            _ => good.parts[below(random, good.parts.len())],
        };
        let at = (start + below(random, end - start)).min(bytes.len().saturating_sub(8));
        match below(random, 7) {
            0 => bytes[at] ^= 1 << below(random, 8),
            1 => bytes[at] = random.next_u64() as u8,
            2 => {
                let extreme = [0, 1, 0x7fff_ffff_ffff_ffff, u64::MAX, 1 << 31, u64::from(u32::MAX), bytes.len() as u64]
                    [below(random, 7)];
                bytes[at..at + 8].copy_from_slice(&extreme.to_le_bytes());
            }
            3 => bytes[at..at + 4].copy_from_slice(&(random.next_u64() as u32).to_le_bytes()),
            4 => {
                let from = below(random, bytes.len());
                let length = below(random, 64);
                let copied = bytes[from..bytes.len().min(from + length)].to_vec();
                let end = bytes.len().min(at + copied.len());
                bytes[at..end].copy_from_slice(&copied[..end - at]);
            }
            5 => {
                let end = bytes.len().min(at + below(random, 64));
                bytes[at..end].fill([0, 0xff, 0x80][below(random, 3)]);
            }
            _ => bytes.truncate(at.max(16)),
        }
        if bytes.len() < 64 {
            break;
        }
    }
    bytes
}

/// Returns the largest resident size of this process so far, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Reads everything that the agent reads of a file. Returns the file's unwind table.
fn read(file: &File, origin: &FileOrigin) -> Option<UnwindTable> {
    let _any = ElfImage::read(file);
    if let Ok(Some(go)) = GoTable::open(file) {
        let code = go.code();
        let step = ((code.end - code.start) / 64).max(1);
        let addresses = (0..64).map(|i| code.start.saturating_add(i * step));
        addresses.for_each(|address| drop(go.lookup(address)));
    }
    table_of(file, Some(origin))
}

#[test]
fn damaged_files_are_read_in_bounded_time_and_memory() {
    let cases = number("VARVE_DAMAGE_CASES", CASES);
    let first = number("VARVE_DAMAGE_SEED", 1);
    let folder = tempfile::tempdir().unwrap();
    let (good, go) = good_files(folder.path());
    let file: File = sys::memory_file(b"").unwrap();
    for good in good.iter().chain(&go) {
        file.set_len(0).unwrap();
        file.write_all_at(&good.bytes, 0).unwrap();
        let table = read(&file, &good.origin);
        // The entry point, and the code that a C compiler adds, have fewer rows.
        assert!(table.is_some_and(|table| 12 < table.rows()), "{:?}, undamaged", good.origin);
    }
    let before = peak_bytes();
    let mut tables = 0;
    let mut longest = Duration::ZERO;
    for seed in first..first + cases {
        let mut random = SplitMix64::seed_from_u64(seed);
        let is_go = below(&mut random, GO_EVERY) == 0;
        let good = go.as_ref().filter(|_| is_go).unwrap_or_else(|| &good[below(&mut random, good.len())]);
        let bytes = damage(good, &mut random);
        file.set_len(0).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let started = Instant::now();
        let table = std::panic::catch_unwind(|| read(&file, &good.origin))
            .unwrap_or_else(|_panic| panic!("VARVE_DAMAGE_SEED={seed}"));
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
    // If fewer files had a table, nearly all of the damage would be in headers.
    assert!(cases / 4 < tables && tables < cases, "{tables} of {cases} have a table");
    testkit::report::note(&format!(
        "{cases} damaged files: {tables} have a table, {longest:?} at most, {} MB more",
        growth >> 20
    ));
}
