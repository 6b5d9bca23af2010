//! Files of this repository, without generated and foreign files.

use std::fs;
use std::path::{Path, PathBuf};

use tests::shared::workspace;

/// Folders of generated or foreign files.
const FOREIGN: [&str; 9] =
    ["target", "node_modules", "dist", "vendored", "generated", ".git", ".cargo", "corpora", "results"];

/// A text file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path of the file, relative to the workspace.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Returns the extension of the file, or "" if it has none.
    pub(crate) fn extension(&self) -> &str {
        Path::new(&self.path).extension().and_then(|extension| extension.to_str()).unwrap_or_default()
    }
}

/// Returns every file with one of these extensions. With the extension "sh", also returns every file in a folder of
/// scripts.
pub(crate) fn with_extensions(extensions: &[&str]) -> Vec<Source> {
    let is_wanted = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let folder = path.parent().and_then(Path::file_name);
        let is_script = folder.is_some_and(|name| name == "scripts" || name == ".ci");
        extension.is_some_and(|extension| extensions.contains(&extension)) || is_script && extensions.contains(&"sh")
    };
    let mut paths = Vec::new();
    walk(workspace(), &mut |folder| paths.extend(folder.files.iter().filter(|path| is_wanted(path)).cloned()));
    paths.sort();
    assert!(!paths.is_empty(), "no file has one of the extensions {extensions:?}");
    let read = |path: PathBuf| {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        Source { path: below_workspace(&path), text }
    };
    paths.into_iter().map(read).collect()
}

/// A folder, with its files and folders.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) folders: Vec<PathBuf>,
}

/// Calls `visit` with each folder below `path`.
pub(crate) fn walk(path: &Path, visit: &mut impl FnMut(&Folder)) {
    let mut folder = Folder { path: path.to_owned(), files: Vec::new(), folders: Vec::new() };
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let name = name.to_str().unwrap();
        let kind = entry.file_type().unwrap();
        let is_vendored = entry.path().ends_with("proto/otlp");
        let is_data = ["varve-data", "varve-cluster", "target-"].iter().any(|prefix| name.starts_with(prefix));
        if kind.is_dir() && !FOREIGN.contains(&name) && !is_vendored && !is_data {
            folder.folders.push(entry.path());
        } else if kind.is_file() {
            folder.files.push(entry.path());
        }
    }
    visit(&folder);
    folder.folders.iter().for_each(|below| walk(below, visit));
}

/// Returns a path as text, relative to the workspace.
pub(crate) fn below_workspace(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned()
}

/// Fails if a rule is violated. Each violation is a path, and the fault in that file or folder.
pub(crate) fn check(rule: &str, violations: &[(String, String)]) {
    let found: Vec<String> = violations.iter().map(|(path, what)| format!("{path}: {what}")).collect();
    assert!(found.is_empty(), "{rule}; {} violations: {found:#?}", found.len());
}
