//! Tests of `varve admin certs`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use proptest::prelude::*;
use transport::{Credentials, TlsFiles};

use super::*;

/// Runs the command for these nodes and routers.
fn make(dir: &Path, nodes: &[&str], routers: &[&str]) -> anyhow::Result<()> {
    run(&options(dir, nodes, routers))
}

fn options(dir: &Path, nodes: &[&str], routers: &[&str]) -> CertsOptions {
    CertsOptions {
        dir: dir.to_owned(),
        nodes: nodes.iter().map(|node| Subject::parse_node(node).unwrap()).collect(),
        routers: routers.iter().map(|router| Subject::parse_router(router).unwrap()).collect(),
        admins: Vec::new(),
        validity: Duration::from_secs(86_400),
        dry_run: false,
        json: false,
    }
}

/// Returns the role of a certificate that passes all checks of a process.
fn role(dir: &Path, name: &str) -> Role {
    let [ca, cert, key] = ["ca.pem", &format!("{name}.pem"), &format!("{name}.key")].map(|file| dir.join(file));
    Credentials::load(TlsFiles { ca, cert, key }).unwrap().role().clone()
}

/// Returns the names of all files with their contents.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

fn error(result: anyhow::Result<()>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn an_administrator_gets_a_certificate_for_no_host() {
    let folder = tempfile::tempdir().unwrap();
    let admins = vec![Subject::parse_admin("ops").unwrap()];
    run(&CertsOptions { admins, ..options(folder.path(), &[], &[]) }).unwrap();
    assert_eq!(role(folder.path(), "admin-ops"), Role::admin("ops").unwrap());
    assert!(Subject::parse_admin("ops=host").is_err());
}

#[test]
fn certificates_pass_the_checks_and_only_owners_read_keys() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("certs");
    make(&dir, &["1=localhost,127.0.0.1,::1", "2=db2.example"], &["a", "b=router.example"]).unwrap();
    assert_eq!(role(&dir, "node-1"), Role::Node(1));
    assert_eq!(role(&dir, "node-2"), Role::Node(2));
    assert_eq!(role(&dir, "router-a"), Role::router("a").unwrap());
    assert_eq!(role(&dir, "router-b"), Role::router("b").unwrap());
    for (name, _) in contents(&dir) {
        let mode = fs::metadata(dir.join(&name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if name.ends_with(".key") { 0o600 } else { 0o644 }, "{name}");
    }
    assert_eq!(contents(&dir).len(), 10, "a certificate and a key each, and no other file");
}

#[test]
fn a_second_run_uses_the_ca_and_renews_only_what_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    make(dir, &["1=localhost", "2=localhost"], &[]).unwrap();
    let first = contents(dir);
    make(dir, &["1=other.example", "3=localhost"], &[]).unwrap();
    let second = contents(dir);
    let changed: Vec<_> = second.iter().filter(|file| !first.contains(file)).map(|(name, _)| name.as_str()).collect();
    assert_eq!(changed, ["node-1.key", "node-1.pem", "node-3.key", "node-3.pem"]);
    assert_eq!((role(dir, "node-1"), role(dir, "node-2"), role(dir, "node-3")), {
        (Role::Node(1), Role::Node(2), Role::Node(3))
    });
}

#[test]
fn a_dry_run_checks_everything_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("certs");
    run(&CertsOptions { dry_run: true, ..options(&dir, &["1=localhost"], &[]) }).unwrap();
    assert!(!dir.exists());
    make(&dir, &["1=localhost"], &[]).unwrap();
    let before = contents(&dir);
    run(&CertsOptions { dry_run: true, ..options(&dir, &["1=localhost"], &["a"]) }).unwrap();
    assert_eq!(contents(&dir), before);
    fs::rename(dir.join("node-1.pem"), dir.join("node-2.pem")).unwrap();
    let refused = run(&CertsOptions { dry_run: true, ..options(&dir, &["2=localhost"], &[]) });
    assert!(error(refused).contains("is the certificate of node 1"));
}

#[test]
fn files_of_another_identity_and_damaged_cas_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    make(dir, &["1=localhost"], &[]).unwrap();
    let before = contents(dir);
    let with = |name: &str, bytes: &[u8], node: &str, wanted: &str| {
        let path = dir.join(name);
        let original = fs::read(&path).ok();
        fs::write(&path, bytes).unwrap();
        let said = error(make(dir, &[node], &[]));
        assert!(said.contains(wanted) && said.contains(name), "{name}: {said}");
        match original {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        assert_eq!(contents(dir), before, "{name}: nothing is written");
    };
    let node_1 = fs::read(dir.join("node-1.pem")).unwrap();
    let ca = fs::read(dir.join("ca.pem")).unwrap();
    let key = fs::read(dir.join("node-1.key")).unwrap();
    with("node-2.pem", &node_1, "2=localhost", "is the certificate of node 1, and not of node 2");
    with("node-1.pem", &ca, "1=localhost", "foreign certificate");
    with("node-1.pem", b"a note", "1=localhost", "holds no certificate");
    with("node-2.key", &key, "2=localhost", "without its certificate");
    with("ca.pem", &ca[..ca.len() / 2], "1=localhost", "no complete certificate");
    with("ca.key", &key[..key.len() / 2], "1=localhost", "no complete private key");
    with("ca.key", &key, "1=localhost", "is not the key of ca.pem");
    with("ca.pem", &node_1, "1=localhost", "is no CA");
    for name in ["ca.pem", "ca.key"] {
        let away = dir.join("away");
        fs::rename(dir.join(name), &away).unwrap();
        assert!(error(make(dir, &["1=localhost"], &[])).contains(&format!("without {name}")));
        fs::rename(&away, dir.join(name)).unwrap();
    }
    let twice = make(dir, &["1=localhost", "1=db.example"], &[]);
    assert!(error(twice).contains("node 1 is given twice"));
    for days in [0, 20 * 365, u64::MAX / 86_400] {
        let validity = Duration::from_secs(days * 86_400);
        let refused = run(&CertsOptions { validity, ..options(dir, &["1=localhost"], &[]) });
        assert!(error(refused).contains("--validity"), "{days}");
    }
    assert_eq!(contents(dir), before);
}

#[test]
fn what_is_no_node_or_router_is_refused() {
    for text in
        ["", "1", "=localhost", "0=localhost", "01=a", "one=a", "1=", "1=a,", "1=a b", "1=a:4041", "1=*.a", "1=[::1]"]
    {
        assert!(Subject::parse_node(text).is_err(), "{text}");
    }
    assert!(Subject::parse_node(&format!("1={}", vec!["a"; 65].join(","))).is_err());
    for text in ["", "=a", "a b", "../a", "a=", "a=b:1"] {
        assert!(Subject::parse_router(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn a_subject_is_parsed_from_its_text(
        id in 1..=u64::MAX,
        name in "[a-zA-Z0-9._-]{1,63}",
        hosts in prop::collection::vec("[a-z]([a-z0-9]{0,9})(\\.[a-z][a-z0-9]{0,9}){0,2}", 1..5),
    ) {
        let listed = hosts.join(",");
        let node = Subject::parse_node(&format!("{id}={listed}")).unwrap();
        prop_assert_eq!(node, Subject { role: Role::Node(id), hosts: hosts.clone() });
        let router = Subject::parse_router(&format!("{name}={listed}")).unwrap();
        prop_assert_eq!(router, Subject { role: Role::router(&name).unwrap(), hosts });
        prop_assert_eq!(Subject::parse_router(&name).unwrap().hosts, Vec::<String>::new());
    }
}
