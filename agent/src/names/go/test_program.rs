//! A Go program, built in several ways. It prints the names that Go's runtime finds for the program's own addresses.

use std::path::{Path, PathBuf};
use std::process::Command;

use host_files::elf::ElfImage;

use crate::names::location::Call;
use testkit::report;

/// A way to build the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [&'static str],
    /// True if the program has a part in C, and is linked by a C linker.
    pub(crate) has_c: bool,
}

pub(crate) const KINDS: [Kind; 6] = [
    Kind { name: "plain", arguments: &[], has_c: false },
    Kind { name: "stripped", arguments: &["-ldflags=-s -w"], has_c: false },
    Kind { name: "movable", arguments: &["-ldflags=-s -w", "-buildmode=pie"], has_c: false },
    Kind { name: "with C", arguments: &["-ldflags=-linkmode=external"], has_c: true },
    Kind { name: "movable with C", arguments: &["-ldflags=-s -w -linkmode=external", "-buildmode=pie"], has_c: true },
    Kind { name: "not optimized", arguments: &["-gcflags=all=-N -l"], has_c: false },
];

/// Builds the program in every way, with the installed Go and with each Go in the colon-separated list
/// `VARVE_TEST_GOS`.
pub(crate) fn build_all(test: &str, folder: &Path) -> Vec<(String, PathBuf)> {
    let others = std::env::var("VARVE_TEST_GOS").unwrap_or_default();
    let gos = std::iter::once("go").chain(others.split(':').filter(|go| !go.is_empty()));
    gos.enumerate()
        .flat_map(|(number, go)| KINDS.map(|kind| build(test, folder, (number, go), kind)))
        .flatten()
        .collect()
}

/// Builds the program in one way. Returns `None`, and reports the reason, if that is not possible.
pub(crate) fn build(test: &str, folder: &Path, (number, go): (usize, &str), kind: Kind) -> Option<(String, PathBuf)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/names/go/test_program");
    let name = format!("{} by {go}", kind.name);
    let program = folder.join(format!("{} {number}", kind.name));
    let built = Command::new(go)
        .args(["build", "-trimpath"])
        .args(kind.arguments)
        .arg("-o")
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .envs([("CGO_ENABLED", if kind.has_c { "1" } else { "0" }), ("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=mod")])
        .output();
    match built {
        Ok(output) if output.status.success() => Some((name, program)),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // An installed Go must work. A C compiler need not be installed.
            assert!(kind.has_c, "{name}: {text}");
            report::skipped(test, format_args!("{name} cannot be built: {}", text.lines().last().unwrap_or_default()));
            None
        }
        Err(error) => {
            report::skipped(test, format_args!("{name}: {error}"));
            None
        }
    }
}

/// The output of the program. Addresses are ELF virtual addresses.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// Addresses, each with its innermost call.
    pub(crate) leaves: Vec<(u64, Call)>,
    /// Addresses that are not Go code.
    pub(crate) none: Vec<u64>,
    /// Addresses, each with all of its calls, innermost first.
    pub(crate) stacks: Vec<(u64, Vec<Call>)>,
}

impl Truth {
    pub(crate) fn of(program: &Path) -> Self {
        let output = Command::new(program).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let image = ElfImage::read(&std::fs::File::open(program).unwrap()).unwrap();
        let lowest = image.segments.iter().map(|segment| segment.address & !0xfff).min().unwrap();
        let mut truth = Self::default();
        let mut bias = 0;
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let address = u64::from_str_radix(fields[1], 16).unwrap().wrapping_sub(bias);
            let mut calls = fields[2..].as_chunks::<4>().0.iter().map(|[function, file, line, start_line]| Call {
                function: (*function).to_owned(),
                // The program prints ? for no file.
                file: file.trim_matches('?').to_owned(),
                line: line.parse().unwrap(),
                start_line: start_line.parse().unwrap(),
            });
            match fields[0] {
                "base" => bias = address.wrapping_sub(lowest),
                "none" => truth.none.push(address),
                "leaf" => truth.leaves.push((address, calls.next().unwrap())),
                "stack" => truth.stacks.push((address, calls.collect())),
                other => panic!("{other}"),
            }
        }
        truth
    }
}
