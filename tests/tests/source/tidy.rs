//! The source over which all other tests run: how long files are, what is left undone, and whether the documents say what the
//! code says.

use std::fs;
use std::path::{Path, PathBuf};

use tests::shared::workspace;

/// Longer ones hold more than one noun.
const LINES_MAX: usize = 500;

/// Folders of what others wrote or a tool made.
const FOREIGN: [&str; 9] =
    ["target", "node_modules", "dist", "vendored", "generated", ".git", ".cargo", "otlp", "results"];

const ENDINGS: [&str; 6] = ["rs", "c", "ts", "tsx", "py", "sh"];

fn files(below: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_str().unwrap();
        // A folder of the router has the name of the contract; it is ours.
        let is_foreign = FOREIGN.contains(&name) && !path.ends_with("ingest/otlp") || name.starts_with("target-");
        if entry.file_type().unwrap().is_dir() {
            if !is_foreign && !name.starts_with("varve-data") {
                files(&path, out);
            }
        } else if entry.file_type().unwrap().is_file() {
            out.push(path);
        }
    }
}

/// Every source file of ours and its text.
fn sources() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    files(workspace(), &mut paths);
    let is_source = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending)) || path.parent().unwrap().ends_with("scripts")
    };
    let read = |path: PathBuf| {
        let name = path.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned();
        (name, String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned())
    };
    let mut sources: Vec<_> = paths.into_iter().filter(is_source).map(read).collect();
    sources.sort();
    assert!(sources.len() > 200, "only {} source files were found", sources.len());
    sources
}

/// Lines before the tests of a file.
fn lines_before_tests(text: &str) -> usize {
    text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count()
}

/// Whether a word stands in a line by itself.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        !is_part(before) && !is_part(after)
    })
}

#[test]
fn no_source_file_is_longer_than_500_lines() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(name, text)| (name, lines_before_tests(&text)))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "split these along their nouns: {long:?}");
}

#[test]
fn nothing_is_left_undone() {
    // Written in two parts, so that this file is not found.
    let words =
        [["TO", "DO"], ["FIX", "ME"], ["X", "XX"], ["to", "do!"], ["unimple", "mented!"]].map(|parts| parts.concat());
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (i, line) in text.lines().enumerate() {
            if words.iter().any(|word| has_word(line, word.trim_end_matches('!')) && line.contains(word.as_str())) {
                found.push(format!("{name}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "do these, or write an issue: {found:#?}");
}

/// The number after `const NAME: u32 = ` in a source file.
fn constant(file: &str, name: &str) -> u32 {
    let text = fs::read_to_string(workspace().join(file)).unwrap();
    let after = text.split(&format!("const {name}: u32 = ")).nth(1).unwrap_or_else(|| panic!("no {name} in {file}"));
    after.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn format_md_has_the_version_of_the_code() {
    let text = fs::read_to_string(workspace().join("FORMAT.md")).unwrap();
    for file in ["storage-engine/src/database.rs", "node/src/directory.rs"] {
        let version = constant(file, "FORMAT_VERSION");
        assert!(
            text.contains(&format!("Format version {version} of ")),
            "FORMAT.md does not open with version {version}"
        );
        let row = format!("| {version} |");
        let newest = text.lines().rfind(|line| line.starts_with("| "));
        assert!(
            newest.is_some_and(|line| line.starts_with(&row)),
            "FORMAT.md's last version is not {version}, as in {file}"
        );
    }
}

#[test]
fn architecture_md_names_every_crate_folder() {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let manifest: toml::Table = fs::read_to_string(workspace().join("Cargo.toml")).unwrap().parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap().iter().map(|member| member.as_str().unwrap());
    let missing: Vec<_> = members.filter(|member| !text.contains(&format!("{member}/"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?} as folders");
}

#[test]
fn every_test_that_a_document_names_is_there() {
    let mut missing = Vec::new();
    for document in ["ARCHITECTURE.md", "README.md", "SECURITY.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(workspace().join(document)).unwrap();
        let quoted = text.split('`').filter(|quoted| quoted.contains("/tests/") && quoted.ends_with(".rs"));
        let absent = quoted.filter(|path| !workspace().join(path).is_file());
        missing.extend(absent.map(|path| format!("{document}: {path}")));
    }
    assert!(missing.is_empty(), "{missing:?}");
}
