//! Tests that documents agree with the code: they name only versions, folders, tests and decisions that exist.

use std::fs;

use tests::shared::workspace;

use crate::files::{check, with_extensions};

/// Returns the number after `const NAME: u32 = ` in a source file.
fn constant(file: &str, name: &str) -> u32 {
    let text = fs::read_to_string(workspace().join(file)).unwrap();
    let after = text.split(&format!("const {name}: u32 = ")).nth(1).unwrap_or_else(|| panic!("no {name} in {file}"));
    after.split(';').next().unwrap().parse().unwrap()
}

#[test]
fn format_md_has_the_version_of_the_code() {
    let text = fs::read_to_string(workspace().join("FORMAT.md")).unwrap();
    for file in ["storage-engine/src/database.rs", "node/src/host/directory.rs"] {
        let version = constant(file, "FORMAT_VERSION");
        assert!(text.contains(&format!("format version {version}.")), "FORMAT.md does not open with version {version}");
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
fn every_test_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for document in with_extensions(&["md"]) {
        let quoted = document.text.split('`').filter(|quoted| quoted.contains("/tests/") && quoted.ends_with(".rs"));
        let absent = quoted.filter(|path| !workspace().join(path).is_file());
        missing.extend(absent.map(|path| (document.path.clone(), path.to_owned())));
    }
    check("correct these paths", &missing);
}

#[test]
fn every_decision_is_listed() {
    let list = fs::read_to_string(workspace().join("docs/decisions.md")).unwrap();
    let decisions: Vec<_> = fs::read_dir(workspace().join("docs/decisions")).unwrap().collect();
    assert!(!decisions.is_empty(), "no decision was found");
    for decision in decisions {
        let path = decision.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (number, title) = text.lines().next().unwrap().trim_start_matches("# ").split_once(": ").unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        let entry = format!("- [{number}](decisions/{file}):\n  {title}\n");
        assert!(list.contains(&entry), "docs/decisions.md has no entry {entry}");
    }
}
