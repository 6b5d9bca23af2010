//! Programs whose functions are described by a compressed or separate `.debug_frame`. They have the same rules as a
//! program with a plain `.debug_frame`.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use host_files::elf::CallFrameSections;

use crate::process::file::FileOrigin;
use crate::unwind::call_frames::{CallFrames, Section};
use crate::unwind::file_table::table_of;
use crate::unwind::rule::Rule;
use crate::unwind::table::TableBuilder;

/// Program with more code than a compiler adds to every program.
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
int deep(int depth) { volatile char room[64]; room[depth & 63] = 1; return depth > 0 ? deep(depth - 1) + room[3] : 0; }
int wide(int a, int b, int c, int d, int e, int f, int g, int h) {
    return a > 0 ? wide(a - 1, b ^ h, c * g, d + f, e, f, g, h) * deep(a) + b : deep(h);
}
int main(int count, char **arguments) {
    int numbers[64] = {count};
    (void)arguments;
    return sum(numbers, 64) + deep(count) + wide(count, 1, 2, 3, 4, 5, 6, 7);
}
"#;

/// Runs a shell script in a folder with the program `plain`, which has only `.debug_frame`.
fn run(folder: &Path, script: &str) {
    std::fs::write(folder.join("program.c"), SOURCE).unwrap();
    let build = "gcc -O2 -g -gz=none -fno-asynchronous-unwind-tables -fno-exceptions -o plain program.c";
    let output = Command::new("sh").arg("-ec").arg(format!("{build}\n{script}")).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

fn origin(path: &Path) -> FileOrigin {
    FileOrigin { pid: std::process::id(), path: path.to_str().unwrap().to_owned() }
}

/// Returns the rules of all code of a program in a folder.
fn rules(folder: &Path, program: &str) -> Vec<[u8; 16]> {
    let path = folder.join(program);
    let file = File::open(&path).unwrap();
    let table = table_of(&file, Some(&origin(&path))).unwrap();
    CallFrameSections::read(&file).unwrap().text.map(|address| table.rule(address)).collect()
}

fn known(rules: &[[u8; 16]]) -> usize {
    let none = [Rule::Unknown, Rule::Invalid].map(|rule| rule.to_bytes());
    rules.iter().filter(|rule| !none.contains(rule)).count()
}

#[test]
fn a_compressed_or_separate_debug_frame_gives_the_same_rules() {
    let scripts = [
        "objcopy --compress-debug-sections=zlib plain program",
        "objcopy --compress-debug-sections=zlib-gnu plain program",
        "objcopy --compress-debug-sections=zstd plain program",
        "objcopy --only-keep-debug plain small; xz -9 small; strip -g -o program plain
         objcopy --add-section .gnu_debugdata=small.xz program",
        "objcopy --only-keep-debug plain program.debug; strip -g -o program plain
         objcopy --add-gnu-debuglink=program.debug program",
        "objcopy --only-keep-debug --compress-debug-sections=zstd plain program.debug; strip -g -o program plain
         objcopy --add-gnu-debuglink=program.debug program; mkdir .debug; mv program.debug .debug",
        // The program and its debug file have the same name, and the program is found first.
        "mkdir .debug; objcopy --only-keep-debug plain .debug/program; strip -g -o program plain
         objcopy --add-gnu-debuglink=.debug/program program",
    ];
    for script in scripts {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), script);
        let plain = rules(folder.path(), "plain");
        let moved = rules(folder.path(), "program");
        assert!(plain.len() / 2 < known(&plain), "{} of {}", known(&plain), plain.len());
        assert!(plain == moved, "{script}: {} known, plain {}", known(&moved), known(&plain));
    }
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "strip -g -o program plain");
    let plain = rules(folder.path(), "plain");
    let stripped = rules(folder.path(), "program");
    assert!(plain != stripped, "without it, rules are derived from instructions, and differ");
    assert!(64 < known(&stripped), "{}", known(&stripped));
}

#[test]
fn debug_frame_is_read_only_if_nothing_else_describes_the_code() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path(), "gcc -O2 -o described program.c; strip -g -o stripped plain");
    let is_read = |program: &str| {
        let sections = CallFrameSections::read(&File::open(folder.path().join(program)).unwrap()).unwrap();
        let frames = CallFrames {
            eh_frame: sections.eh_frame.as_ref().map(|(address, bytes)| Section { bytes, address: *address }),
            debug_frame: sections.debug_frame.as_deref(),
            text: sections.text,
            entry: sections.entry,
            go: None,
            has_v8: false,
        };
        let mut builder = TableBuilder::default();
        let mut is_called = false;
        let separate = || {
            is_called = true;
            None
        };
        frames.add_to(&mut builder, separate, |_| None).unwrap();
        is_called
    };
    assert_eq!(["described", "plain", "stripped"].map(is_read), [false, false, true]);
}

#[test]
fn data_that_decompresses_without_end_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    // A valid section is followed by zeros, so that only its size prevents its use.
    run(
        folder.path(),
        "objcopy --dump-section .debug_frame=frames plain /dev/null; objcopy --only-keep-debug plain small
         strip -g -o stripped plain
         for megabytes in 1 80; do
             head -c ${megabytes}M /dev/zero > zeros
             cat frames zeros > section; objcopy --add-section .debug_frame=section stripped large
             for kind in zlib zstd zlib-gnu; do
                 objcopy --compress-debug-sections=$kind large $kind$megabytes
             done
             cat small zeros | xz -T1 > packed; objcopy --add-section .gnu_debugdata=packed stripped xz$megabytes
         done
         rm zeros section large",
    );
    let plain = rules(folder.path(), "plain");
    for kind in ["zlib", "zstd", "zlib-gnu", "xz"] {
        let is_read = |megabytes: u32| {
            let program = format!("{kind}{megabytes}");
            let bytes = folder.path().join(&program).metadata().unwrap().len();
            assert!(bytes < 1 << 20, "{program}: {bytes} bytes");
            rules(folder.path(), &program) == plain
        };
        assert_eq!([1, 80].map(is_read), [true, false], "{kind}");
    }
}
