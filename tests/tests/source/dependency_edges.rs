//! Test that the crates of the workspace depend on each other only as allowed. The dependencies are read from `cargo
//! metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;
use tests::shared::workspace;

/// For each crate, the crates on which its code, build scripts and tests may depend.
const ALLOWED: [(&str, &[&str]); 12] = [
    ("proto", &[]),
    ("rocksdb-files", &[]),
    ("storage-engine", &["proto", "rocksdb-files"]),
    ("transport", &[]),
    ("node", &["proto", "rocksdb-files", "storage-engine", "transport"]),
    ("host-files", &["proto"]),
    ("symbol-store", &["proto", "host-files"]),
    ("ebpf", &["proto"]),
    ("agent", &["proto", "ebpf", "host-files", "symbol-store"]),
    ("router", &["proto", "host-files", "symbol-store", "transport"]),
    ("testkit", &["proto"]),
    ("storage-model", &["proto", "storage-engine"]),
];

/// Crates that may depend on any crate, and on which no crate depends.
const ON_TOP: [&str; 3] = ["varve", "tests", "bench"];

/// Test helpers, which every crate may have as dev-dependencies.
const TEST_HELPERS: [&str; 2] = ["testkit", "storage-model"];

/// Returns, for each crate of the workspace, the crates of the workspace on which it depends.
fn edges(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let names: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let is_for_tests = |dependency: &&Value| {
        dependency["kind"] == "dev" && TEST_HELPERS.iter().any(|helpers| dependency["name"] == *helpers)
    };
    let of_package = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let dependencies = dependencies.filter(|dependency| !is_for_tests(dependency));
        let dependencies = dependencies.map(|dependency| text(&dependency["name"]));
        (text(&package["name"]), dependencies.filter(|name| names.contains(name)).collect())
    };
    packages.iter().map(of_package).collect()
}

/// Describes the dependencies that are not allowed.
fn violations(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.into_iter().collect();
    let mut out = Vec::new();
    for (from, tos) in edges {
        for to in tos {
            let is_on_top = ON_TOP.contains(&from.as_str());
            let may = match allowed.get(from.as_str()) {
                Some(may) => may.contains(&to.as_str()),
                None => is_on_top && !ON_TOP.contains(&to.as_str()),
            };
            if !may {
                out.push(format!("{from} -> {to}"));
            }
        }
        if !allowed.contains_key(from.as_str()) && !ON_TOP.contains(&from.as_str()) {
            out.push(format!("{from} is no crate of the design"));
        }
    }
    out
}

fn workspace_metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let arguments = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let output = Command::new(cargo).args(arguments).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_workspace_has_no_edge_that_the_design_does_not_allow() {
    let edges = edges(&workspace_metadata());
    assert!(ALLOWED.iter().all(|(name, _)| edges.contains_key(*name)), "crates are missing: {:?}", edges.keys());
    assert_eq!(violations(&edges), Vec::<String>::new());
    assert!(!edges["router"].contains("storage-engine") && !edges["router"].contains("node"), "{:?}", edges["router"]);
}

#[test]
fn an_edge_that_is_not_allowed_is_found() {
    let of = |pairs: &[(&str, &str)]| {
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in pairs {
            edges.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        violations(&edges)
    };
    for edge in [
        ("router", "storage-engine"),
        ("router", "node"),
        ("proto", "node"),
        ("storage-engine", "node"),
        ("node", "varve"),
        ("transport", "proto"),
        ("agent", "transport"),
        ("varve", "tests"),
        ("node", "testkit"),
        ("testkit", "node"),
        ("storage-engine", "storage-model"),
    ] {
        assert_eq!(of(&[edge]).len(), 1, "{edge:?}");
    }
    assert_eq!(of(&[("utilities", "proto")]).len(), 2);
    assert_eq!(of(&[("varve", "node"), ("agent", "symbol-store"), ("tests", "testkit")]), Vec::<String>::new());
}
