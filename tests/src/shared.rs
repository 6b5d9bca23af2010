//! Folders and files outside this crate that tests use.

use std::path::{Path, PathBuf};

use crate::report::skipped;

/// Returns the root of the workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

/// Returns the binary under test: `VARVE_BINARY`, else the binary beside the test, else the workspace's release build.
///
/// # Panics
/// There is no binary. Tests that did not run must not look like tests that passed.
#[must_use]
pub fn varve_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("VARVE_BINARY") {
        let named = PathBuf::from(named);
        assert!(named.is_file(), "VARVE_BINARY is {}, which is no file", named.display());
        return named;
    }
    // The path of the test is target/<profile>/deps/<test>, and varve is target/<profile>/varve.
    let own = std::env::current_exe().expect("the test's own path");
    let beside = own.ancestors().nth(2).map(|folder| folder.join("varve"));
    let candidates: Vec<PathBuf> = beside.into_iter().chain([workspace().join("target/release/varve")]).collect();
    let found = candidates.iter().find(|path| path.is_file());
    found.cloned().unwrap_or_else(|| {
        panic!(
            "there is no varve to test: none of {candidates:?} exists. Build it (`make build`) or name one with \
             VARVE_BINARY"
        )
    })
}

/// Returns the files in one folder of the shared payloads (`otlp` or `pprof`), sorted. If the folder does not exist,
/// reports that the test is skipped.
///
/// # Panics
/// The folder is empty.
#[must_use]
pub fn payloads(test: &str, kind: &str) -> Vec<PathBuf> {
    let named = std::env::var_os("VARVE_SHARED_DATA").map(PathBuf::from);
    let candidates: Vec<PathBuf> = match named {
        Some(named) => vec![named],
        None => vec![workspace().join("../shared/data")],
    };
    let Some(folder) = candidates.iter().map(|folder| folder.join(kind)).find(|folder| folder.is_dir()) else {
        skipped(test, format!("no payloads in {candidates:?}: name their folder with VARVE_SHARED_DATA"));
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "the folder of payloads is there and empty");
    files.sort();
    files
}

/// Returns the path of a program; `None` if this machine does not have the program.
#[must_use]
pub fn tool(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|folder| folder.join(name)).find(|path| path.is_file())
}
