//! The files of `deploy/` fit the binary: options, environment variables and units.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::report::skipped;
use tests::shared::{varve_binary, workspace};

const ROLES: [&str; 3] = ["node", "router", "agent"];

/// Returns the files of a folder of `deploy/` with this extension.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join("deploy").join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files.sort();
    files
}

/// Runs varve, which must refuse. Returns what it says.
fn refusal(arguments: &[&str]) -> String {
    let output = Command::new(varve_binary()).args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} succeeds");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the names in `text` that begin with `VARVE_`.
fn variables(text: &str) -> BTreeSet<&str> {
    let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    names.filter(|name| name.starts_with("VARVE_")).collect()
}

#[test]
fn the_example_config_files_have_only_options_that_exist() {
    for role in ROLES {
        let path = workspace().join("deploy/systemd").join(role).with_extension("toml");
        // All keys and values are accepted before the first of the files in /etc/varve is opened.
        let text = refusal(&[role, "--config", path.to_str().unwrap()]);
        assert!(text.contains("/etc/varve/") && text.contains("No such file"), "{role}: {text}");
    }
}

#[test]
fn containers_set_only_variables_that_exist() {
    let help = |role: &str| {
        let output = Command::new(varve_binary()).args([role, "--help"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let helps: Vec<String> = ROLES.into_iter().map(help).collect();
    let known: BTreeSet<&str> = helps.iter().flat_map(|help| variables(help)).collect();
    let mut checked = 0;
    for path in [files("compose", "yaml"), files("kubernetes", "yaml")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        let used = variables(&text);
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", path.display());
        checked += used.len();
    }
    assert!(checked > 20, "only {checked} variables were found");
}

#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skipped("systemd_accepts_the_units", "systemd-analyze is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let units = files("systemd", "service");
    assert_eq!(units.len(), ROLES.len());
    for unit in units {
        // systemd-analyze wants the binary to exist.
        let text = fs::read_to_string(&unit).unwrap();
        let installed = text.replace("/usr/local/bin/varve", varve_binary().to_str().unwrap());
        assert_ne!(text, installed);
        let copy = folder.path().join(unit.file_name().unwrap());
        fs::write(&copy, installed).unwrap();
        verify(&copy, "");
        fs::write(&copy, fs::read_to_string(&copy).unwrap().replace("Restart=always", "Restart=sometimes")).unwrap();
        verify(&copy, "sometimes");
    }
}

/// Runs `systemd-analyze verify`. Its output must contain `complaint`, or be empty if `complaint` is.
fn verify(unit: &Path, complaint: &str) {
    let output = Command::new("systemd-analyze").arg("verify").arg(unit).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(if complaint.is_empty() { text.is_empty() } else { text.contains(complaint) }, "{text}");
}
