//! Files of real runtimes, most of them damaged. `VARVE_DAMAGE_CASES` is a hundred times the number of these
//! files, and `VARVE_UNWIND_SEED` chooses them.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use testkit::cost::Limit;
use testkit::interpreters;
use testkit::report;

use super::*;
use crate::unwind::tests::damage::{below, number};

/// Beginnings of the names of symbols from which runtimes are recognised.
const NAMES: [&str; 20] = [
    "_PyEval_EvalFrameDefault",
    "_PyRuntime",
    "Py_Version",
    "_PyThreadState_",
    "PyGILState_GetThisThreadState",
    "Perl_run",
    "PL_",
    "ruby_",
    "rb_iseq_eval",
    "rb_thread_current",
    "rb_vm_exec",
    "rb_id2str",
    "execute_ex",
    "executor_globals",
    "php_execute_script",
    "zend_flf_functions",
    "zend_pass_function",
    "gHotSpotVM",
    "v8dbg_",
    "Builtins_Interpreter",
];

#[test]
fn files_for_musl_are_told_from_those_for_glibc() {
    for (library, is_musl) in [
        ("libc.musl-x86_64.so.1", true),
        ("libc.so", true),
        ("libc.so.6", false),
        ("libcap.so.2", false),
        ("libm.so.6", false),
    ] {
        assert_eq!(super::is_musl(library), is_musl, "{library}");
    }
}

/// Does all that the agent does with a file to find its runtime. Returns the name and version of the runtime.
fn name_of(file: &File, path: &str) -> Option<String> {
    let found = recognise(file, path);
    let _functions = local_functions(file, found.as_ref().map(|(runtime, _)| runtime));
    let _callers = (pcre::recognise(file), pcre::caller_in_php(file));
    match found {
        Some((_, layout)) => Some(layout.version()),
        None => hotspot::process::is_hotspot(file).then(|| "Java".to_owned()),
    }
}

/// Returns the files of the runtimes that are installed, with their names and versions. The files of Node.js have a
/// hundred megabytes each, so there is only one of them.
fn files_of_runtimes() -> BTreeMap<PathBuf, String> {
    let kinds = [
        ("CPython", interpreters::pythons()),
        ("Perl", interpreters::perls()),
        ("Ruby", interpreters::rubies()),
        ("PHP", interpreters::phps()),
        ("V8", interpreters::nodes()),
        ("Java", interpreters::javas()),
    ];
    let programs = kinds[..4]
        .iter()
        .flat_map(|(_, interpreters)| interpreters)
        .map(|interpreter| PathBuf::from(interpreter.to_string()));
    let mut files: Vec<PathBuf> =
        programs.flat_map(|program| [libraries_of(&program), vec![program]].concat()).collect();
    let [.., (_, nodes), (_, javas)] = &kinds;
    for java in javas {
        let home = PathBuf::from(java.to_string()).ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
        files.extend(["lib/server/libjvm.so", "lib/amd64/server/libjvm.so"].map(|library| home.join(library)));
    }
    files.extend(nodes.first().map(|node| PathBuf::from(node.to_string())));
    let named = |path: PathBuf| {
        let path = path.canonicalize().ok()?;
        let name = name_of(&File::open(&path).ok()?, path.to_str()?)?;
        Some((path, name))
    };
    let found: BTreeMap<PathBuf, String> = files.into_iter().filter_map(named).collect();
    for (kind, interpreters) in &kinds {
        let is_found = found.values().any(|name| name.starts_with(kind));
        assert!(is_found || interpreters.is_empty(), "no file of {kind} is recognised: {interpreters:?}");
    }
    found
}

/// Returns the libraries that may have the runtime of a program.
fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let Some(root) = program.ancestors().nth(2) else { return Vec::new() };
    let folders = [root.join("lib"), root.join("lib/x86_64-linux-gnu")];
    let entries = folders.iter().filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    let is_runtime = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".so") && ["libpython3", "libperl.", "libruby"].iter().any(|start| name.starts_with(start))
    };
    entries.map(|entry| entry.path()).filter(is_runtime).collect()
}

/// Returns the ranges of a file from which its runtime is recognised: headers, and symbols with their content.
fn parts(bytes: &[u8]) -> Vec<(u64, u64)> {
    let elf = object::File::parse(bytes).unwrap();
    let mut parts = vec![(0, 64), (64, 13 * 56)];
    let headers = u64::from_ne_bytes(*bytes[40..].first_chunk().unwrap());
    parts.push((headers, bytes.len() as u64 - headers));
    let sections = [".dynamic", ".gnu.hash", ".hash", ".eh_frame_hdr", ".eh_frame", ".rela.dyn", ".rela.plt"];
    parts.extend(sections.iter().filter_map(|name| elf.section_by_name(name)?.file_range()));
    let tables = [(".dynsym", elf.dynamic_symbols()), (".symtab", elf.symbols())];
    for (name, symbols) in tables {
        let Some((table, _)) = elf.section_by_name(name).and_then(|section| section.file_range()) else { continue };
        for symbol in symbols.filter(|symbol| symbol.name().is_ok_and(is_named)) {
            parts.push((table + 24 * symbol.index().0 as u64, 24));
            let address = symbol.address();
            let segment = elf.segments().find(|segment| {
                let within = address.checked_sub(segment.address());
                within.is_some_and(|within| within < segment.file_range().1)
            });
            let at = segment.map(|segment| segment.file_range().0 + (address - segment.address()));
            parts.extend(at.map(|at| (at, symbol.size().clamp(8, 4096))));
        }
    }
    parts.retain(|(start, length)| 0 < *length && start + length <= bytes.len() as u64);
    parts
}

fn is_named(name: &str) -> bool {
    NAMES.iter().any(|start| name.starts_with(start))
}

#[test]
fn damaged_files_of_runtimes_are_recognised_in_bounded_time_or_not() {
    let (cases, seed) = ((number("VARVE_DAMAGE_CASES", 20_000) / 100).max(100), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let files: Vec<_> = files_of_runtimes()
        .into_iter()
        .map(|(path, name)| {
            let bytes = std::fs::read(&path).unwrap();
            let copy = tempfile::tempfile().unwrap();
            copy.write_all_at(&bytes, 0).unwrap();
            let parts = parts(&bytes);
            (name, path.to_str().unwrap().to_owned(), bytes, copy, parts)
        })
        .collect();
    if files.is_empty() {
        return report::skipped("damaged_files_of_runtimes", "no runtime is installed");
    }
    let mut limit = Limit::new(Duration::from_secs(1), 64 << 20);
    let mut recognised = 0;
    for case in 0..cases {
        let (name, path, bytes, copy, parts) = &files[below(&mut random, files.len())];
        let damaged: Vec<(u64, usize)> = (0..=below(&mut random, 4))
            .map(|_| {
                let (start, length) = parts[below(&mut random, parts.len())];
                (start + below(&mut random, length as usize) as u64, [1, 2, 4, 8][below(&mut random, 4)])
            })
            .collect();
        for (at, count) in &damaged {
            let word = random.next_u64();
            copy.write_all_at(&(word >> (word >> 58)).to_ne_bytes()[..*count], *at).unwrap();
        }
        let case = format_args!("VARVE_UNWIND_SEED={seed}, case {case}, {path}");
        recognised += u64::from(limit.check(case, || name_of(copy, path)).as_ref() == Some(name));
        for (at, _) in damaged {
            let end = bytes.len().min(at as usize + 8);
            copy.write_all_at(&bytes[at as usize..end], at).unwrap();
            copy.set_len(bytes.len() as u64).unwrap();
        }
    }
    assert!(cases / 20 < recognised && recognised < cases, "{recognised} of {cases} were recognised");
    let count = files.len();
    report::note(&format!("{cases} damaged files of {count} runtimes: {recognised} are recognised, {limit}"));
}
