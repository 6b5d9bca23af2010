//! Tests of the privileges that the converter has while it reads a file, as the kernel reports them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use proto::TenantId;
use symbol_store::convert::Converter;
use symbol_store::{AddError, Config, Unusable};
use testkit::workshop::{NESTED, have, skip};

use crate::workshop::{StoreWorkshop, open, until};

/// Makes a program to convert, and a copy of the converter that any user may execute.
fn workshop() -> StoreWorkshop {
    let workshop = StoreWorkshop::new();
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O2 nested.c -o nested");
    fs::set_permissions(workshop.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(workshop.config(false).converter.program, workshop.path("converter")).unwrap();
    workshop
}

/// Returns `/proc/<pid>/status` of a converter that waits to write to a full pipe. `way` is the command that executes
/// it, such as `setpriv` with options; empty to execute it directly.
fn status_of_child(workshop: &StoreWorkshop, way: &str) -> String {
    let process = workshop.path("process");
    let converter = workshop.path("converter");
    let process = process.display();
    let converter = converter.display();
    let script = format!("head -c 65536 /dev/zero; echo $$ > {process}; exec {way} {converter} \"$@\"");
    let program = Converter { program: "/bin/sh".into(), arguments: vec!["-c".into(), script, "sh".into()] };
    let store = open(Config { converter: program, ..workshop.config(false) });
    let nested = File::open(workshop.path("nested")).unwrap();
    let mut status = String::new();
    thread::scope(|scope| {
        let conversion = scope.spawn(|| store.add_file(&TenantId::default_tenant(), &nested));
        until("the child waits without its rights", || {
            assert!(!conversion.is_finished(), "{way}: it ended; last seen:\n{status}");
            let Ok(pid) = fs::read_to_string(workshop.path("process")) else { return false };
            let pid = pid.trim();
            status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            // State S is a sleep that a signal can end. The converter is in it only while it waits for the full pipe.
            let waits = status.starts_with("Name:\tconverter\n") && status.contains("\nState:\tS ");
            if waits {
                assert!(Command::new("kill").args(["-KILL", pid]).status().unwrap().success());
            }
            waits
        });
        let ended = conversion.join().unwrap();
        assert!(matches!(ended, Err(AddError::Unusable(Unusable::Killed { signal: 9 }))), "{way}: {ended:?}");
    });
    fs::remove_file(workshop.path("process")).unwrap();
    status
}

/// Returns the words of the field `name` in `status`.
fn field<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}:\n{status}")).split_whitespace().collect()
}

fn assert_without_rights(way: &str, status: &str, user: &str) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(status, set), ["0000000000000000"], "{way}: {set}");
    }
    assert_eq!(field(status, "NoNewPrivs"), ["1"], "{way}");
    assert_eq!(field(status, "Seccomp"), ["2"], "{way}");
    for ids in ["Uid", "Gid"] {
        assert_eq!(field(status, ids), [user; 4], "{way}: {ids}");
    }
}

/// Returns whether the tests run as root with the capabilities that they need. Otherwise the test is skipped, because
/// there are no privileges to drop.
fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    // CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SETFCAP.
    let needed = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 31;
    let is_root = u64::from_str_radix(field(&status, "CapEff")[0], 16).unwrap() & needed == needed;
    if !is_root {
        skip("not root with its capabilities");
    }
    is_root && have(&["setpriv"])
}

#[test]
fn the_child_has_no_privileges_whoever_starts_it() {
    if !have(&["gcc", "sh", "head"]) {
        return;
    }
    let workshop = workshop();
    let own = fs::metadata("/proc/self").map(|process| std::os::unix::fs::MetadataExt::uid(&process)).unwrap();
    let user = if own == 0 { 65_534 } else { own }.to_string();
    let status = status_of_child(&workshop, "");
    if own != 0 {
        for set in ["CapPrm", "CapEff"] {
            assert_eq!(field(&status, set), ["0000000000000000"]);
        }
        assert_eq!(field(&status, "Uid"), [user.as_str(); 4]);
        return;
    }
    if is_root() {
        assert_without_rights("root", &status, &user);
        assert_eq!(field(&status, "Groups"), [""; 0]);
        let way = "setpriv --reuid 12345 --regid 12345 --clear-groups";
        assert_without_rights(way, &status_of_child(&workshop, way), "12345");
        // In a container without the capability to change users, the child stays root. It then owns files, but cannot
        // open any.
        let way = "setpriv --bounding-set -setuid,-setgid";
        assert_without_rights(way, &status_of_child(&workshop, way), "0");
    }
}

#[test]
fn the_child_has_no_privileges_in_a_user_namespace_without_nobody() {
    if !have(&["gcc", "sh", "head", "unshare"]) {
        return;
    }
    if !Command::new("unshare").args(["-r", "true"]).status().unwrap().success() {
        return skip("no user namespace can be made");
    }
    let workshop = workshop();
    let status = status_of_child(&workshop, "unshare -r");
    // The root user of the namespace is, outside of it, the user who made the namespace.
    let own = fs::metadata("/proc/self").map(|process| std::os::unix::fs::MetadataExt::uid(&process)).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(&status, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(field(&status, "Uid")[0], own.to_string());
    assert_eq!(field(&status, "Seccomp"), ["2"]);
}

#[test]
fn capabilities_of_the_converters_own_file_are_dropped_too() {
    if !have(&["gcc", "sh", "head", "setcap"]) || !is_root() {
        return;
    }
    let workshop = workshop();
    let capabilities = "cap_sys_ptrace,cap_dac_read_search";
    let set = |converter: &Path| Command::new("setcap").arg(format!("{capabilities}=p")).arg(converter).status();
    if !set(&workshop.path("converter")).unwrap().success() {
        return skip("files have no capabilities here");
    }
    // A converter that an ordinary user executes gets no capabilities from its file. It also drops those that its
    // parent had.
    let plain = "setpriv --reuid 12345 --regid 12345 --clear-groups";
    let with = "--inh-caps +sys_ptrace,+dac_read_search --ambient-caps +sys_ptrace,+dac_read_search";
    for way in [plain.to_owned(), format!("{plain} {with}")] {
        assert_without_rights(&way, &status_of_child(&workshop, &way), "12345");
    }
}
