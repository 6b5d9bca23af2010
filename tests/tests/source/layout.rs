//! Tests of the layout of the source: sizes of files and folders, modules, names of tests.

use crate::files::{below_workspace, check, walk, with_extensions};
use tests::shared::workspace;

/// Largest number of lines of a source file. A longer file has more than one subject.
const LINES_MAX: usize = 500;
/// Largest number of files and folders in one folder.
const ENTRIES_MAX: usize = 15;
/// Largest number of characters in the name of a test.
const TEST_NAME_MAX: usize = 70;

#[test]
fn no_source_file_is_longer_than_500_lines() {
    let before_tests = |text: &str| text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
    let sources = with_extensions(&["rs", "c", "h", "ts", "tsx", "py", "sh"]);
    assert!(sources.len() > 200, "only {} source files were found", sources.len());
    let long = sources.iter().map(|source| (source, before_tests(&source.text)));
    let long = long.filter(|(_, lines)| *lines > LINES_MAX);
    let violations: Vec<_> = long.map(|(source, lines)| (source.path.clone(), format!("{lines} lines"))).collect();
    check("split these files along their nouns", &violations);
}

#[test]
fn no_source_folder_has_more_than_15_entries() {
    let mut violations = Vec::new();
    walk(workspace(), &mut |folder| {
        let entries = folder.files.len() + folder.folders.len();
        // Decisions are numbered, and their number grows.
        let is_exempt = folder.path == workspace() || folder.path.ends_with("docs/decisions");
        if entries > ENTRIES_MAX && !is_exempt {
            violations.push((below_workspace(&folder.path), format!("{entries} entries")));
        }
    });
    check("group the files of these folders", &violations);
}

#[test]
fn modules_have_one_style() {
    // The text is in two parts, so that the test does not find this line itself.
    let path_attribute = ["#[pa", "th ="].concat();
    let mut violations = Vec::new();
    for source in with_extensions(&["rs"]) {
        if source.path.ends_with("/mod.rs") {
            violations.push((source.path.clone(), "is named mod.rs".to_owned()));
        }
        if source.text.contains(&path_attribute) {
            violations.push((source.path.clone(), "has a path attribute".to_owned()));
        }
    }
    check("a module is x.rs with its folder x", &violations);
}

#[test]
fn test_names_have_at_most_70_characters() {
    let mut violations = Vec::new();
    for source in with_extensions(&["rs"]) {
        let mut is_test = false;
        for line in source.text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let name = rest.split('(').next().unwrap_or_default();
                if name.len() > TEST_NAME_MAX {
                    violations.push((source.path.clone(), name.to_owned()));
                }
                is_test = false;
            }
        }
    }
    check("shorten these test names", &violations);
}
