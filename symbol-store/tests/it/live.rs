//! Tests of names for running programs whose files were deleted or replaced, or are in another mount namespace.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proto::{BuildId, TenantId};
use symbol_store::limits::Limits;
use symbol_store::{Config, Reason};
use testkit::workshop::have;

use crate::workshop::{StoreWorkshop, gnu_build_id, names, open};

/// Returns the source of a program that writes one byte when it runs, and then waits in `function` until its input
/// ends.
fn waiting(function: &str) -> String {
    format!(
        "#include <unistd.h>\n\
         __attribute__((noinline)) int {function}(int n) {{ char byte; return n + (int)read(0, &byte, 1); }}\n\
         int main(void) {{ return write(1, \"!\", 1) == 1 ? {function}(1) : 2; }}\n"
    )
}

/// A running program, which ends on drop.
struct Running(Child);

impl Running {
    /// Starts `command`, and waits until its program has written the byte that shows that it runs.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This ends the input of the program, and so the program itself.
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Builds the program `name` with the function `function`. Returns the path and the build ID of the program, and the
/// address of the function.
fn build(workshop: &StoreWorkshop, function: &str, name: &str, flags: &str) -> (PathBuf, BuildId, u64) {
    workshop.write("waiting.c", waiting(function));
    workshop.run(&format!("gcc -g -O1 {flags} waiting.c -o {name}"));
    let path = workshop.path(name);
    let id = gnu_build_id(&path);
    let address = workshop.address_of(name, function);
    (path, id, address)
}

#[test]
fn a_deleted_program_that_still_runs_has_names() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, id, address) = build(&workshop, "deleted", "program", "");
    let running = Running::start(&mut Command::new(&path));
    fs::remove_file(&path).unwrap();
    assert_eq!(names(&workshop.host_store(), &id, &path, address).unwrap(), ["deleted"]);
    // This is the path as the kernel writes it in `/proc/<pid>/maps`.
    let marked = PathBuf::from(format!("{} (deleted)", path.display()));
    fs::remove_dir_all(workshop.path("store")).unwrap();
    assert_eq!(names(&workshop.host_store(), &id, &marked, address).unwrap(), ["deleted"]);
    // After the end of the program, no new table can be made. The existing table is still used.
    drop(running);
    assert_eq!(names(&workshop.host_store(), &id, &path, address).unwrap(), ["deleted"]);
    fs::remove_dir_all(workshop.path("store")).unwrap();
    assert_eq!(names(&workshop.host_store(), &id, &path, address), Err(Reason::NoDebugFile));
}

#[test]
fn a_replaced_program_has_its_own_names_under_each_build_id() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, old_id, old_address) = build(&workshop, "old_name", "program", "");
    let _running = Running::start(&mut Command::new(&path));
    fs::remove_file(&path).unwrap();
    let (_, new_id, new_address) = build(&workshop, "new_name", "program", "");
    assert_ne!(old_id, new_id);
    assert_eq!(old_address, new_address, "only the build ID tells them apart");
    let store = workshop.host_store();
    assert_eq!(names(&store, &old_id, &path, old_address).unwrap(), ["old_name"]);
    assert_eq!(names(&store, &new_id, &path, new_address).unwrap(), ["new_name"]);
}

#[test]
fn a_file_with_another_build_id_gives_no_names() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, id, address) = build(&workshop, "first", "program", "");
    let _running = Running::start(&mut Command::new(&path));
    let BuildId::Gnu(bytes) = &id else { panic!("{id}") };
    let store = workshop.host_store();
    let htlhash = host_files::elf::htlhash(&File::open(&path).unwrap()).unwrap();
    let mut other_hash = htlhash;
    other_hash[15] ^= 1;
    for wrong in [
        BuildId::Gnu([bytes.as_slice(), &[0]].concat()),
        BuildId::Gnu(bytes[..19].to_vec()),
        BuildId::Go(id.to_string()),
        BuildId::Htlhash(other_hash),
    ] {
        assert_eq!(names(&store, &wrong, &path, address), Err(Reason::NoDebugFile), "{wrong}");
    }
    assert_eq!(names(&store, &BuildId::Htlhash(htlhash), &path, address).unwrap(), ["first"]);
    let unknown =
        symbol_store::ObjectKey { tenant: &TenantId::default_tenant(), build_id: None, file: path.to_str().unwrap() };
    let answer = store.symbolize(&unknown, &[symbol_store::Address::Virtual(address)], Duration::ZERO);
    assert_eq!(answer, [Err(Reason::NoBuildId.into())]);
}

#[test]
fn a_program_in_another_root_is_found_there_with_its_debug_file() {
    if !have(&["gcc", "nm", "objcopy", "strip", "unshare", "mount", "pivot_root", "sh"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, id, address) = build(&workshop, "contained", "program", "-static");
    fs::create_dir_all(workshop.path("root/usr/bin/.debug")).unwrap();
    workshop.run("objcopy --only-keep-debug program program.debug");
    workshop.run("cp program root/usr/bin/in-container");
    workshop.run("strip root/usr/bin/in-container");
    workshop.run("objcopy --add-gnu-debuglink=program.debug root/usr/bin/in-container");
    workshop.run("mv program.debug root/usr/bin/.debug/program.debug");
    fs::remove_file(path).unwrap();
    // As in a container, the program runs in its own mount namespace, whose root is another folder.
    fs::create_dir(workshop.path("root/host")).unwrap();
    workshop
        .write("enter.sh", "set -e\nmount --bind root root\ncd root\npivot_root . host\nexec /usr/bin/in-container\n");
    let mount =
        Command::new("unshare").args(["--mount", "mount", "--bind", "/tmp", "/tmp"]).stderr(Stdio::null()).status();
    if !mount.unwrap().success() {
        testkit::workshop::skip("mount namespaces are not allowed here");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "enter.sh"]).current_dir(workshop.path(""));
    let running = Running::start(&mut command);
    let inside = Path::new("/usr/bin/in-container");
    assert!(!inside.exists());
    assert_eq!(names(&workshop.host_store(), &id, inside, address).unwrap(), ["contained"]);
    drop(running);
}

#[test]
fn special_files_are_not_opened_and_cost_no_time() {
    if !have(&["mkfifo"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.run("mkfifo pipe");
    let store = workshop.host_store();
    let id = BuildId::Gnu(vec![7; 20]);
    for path in
        [workshop.path("pipe"), "/dev/zero".into(), "/proc/kcore".into(), "/".into(), "".into(), "[heap]".into()]
    {
        assert_eq!(names(&store, &id, &path, 0), Err(Reason::NoDebugFile), "{}", path.display());
    }
}

#[test]
fn a_failure_is_remembered_for_a_while() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, id, address) = build(&workshop, "late", "built", "");
    let place = workshop.path("place");
    let limits = Limits { failure_remembered: Duration::from_millis(800), ..Limits::DEFAULT };
    let store = open(Config { limits, ..workshop.config(true) });
    assert_eq!(names(&store, &id, &place, address), Err(Reason::NoDebugFile));
    fs::copy(&path, &place).unwrap();
    assert_eq!(names(&store, &id, &place, address), Err(Reason::NoDebugFile), "it is not looked for again at once");
    std::thread::sleep(limits.failure_remembered);
    assert_eq!(names(&store, &id, &place, address).unwrap(), ["late"]);
}

#[test]
fn a_table_without_lines_is_improved_when_a_debug_file_is_installed() {
    if !have(&["gcc", "nm", "objcopy", "strip"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let (path, id, address) = build(&workshop, "improved", "program", "");
    workshop.run("objcopy --only-keep-debug program kept");
    workshop.run("strip --strip-debug program");
    workshop.run("objcopy --add-gnu-debuglink=kept program");
    workshop.run("mv kept elsewhere");
    let limits = Limits { improvement_interval: Duration::ZERO, ..Limits::DEFAULT };
    let store = open(Config { limits, ..workshop.config(true) });
    let line = || crate::workshop::symbolize(&store, &id, &path, address).unwrap()[0].line;
    assert_eq!(line(), 0);
    workshop.run("mv elsewhere kept");
    crate::workshop::until("the line is known", || line() == 2);
}
