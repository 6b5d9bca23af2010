//! Tests of the names of native frames. The names come from files with the build ID of the frame, on the host or
//! uploaded, and are never wrong.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tests::http::request;
use tests::payload::otlp::{Frame, PERIOD_NS, Request, now_ns};
use tests::program::{Program, output_of};
use tests::server::Varve;
use tests::shared::varve_binary;

const SOURCE: &str = r#"
#include <stdint.h>
static volatile uint64_t sink;
static inline __attribute__((always_inline)) uint64_t inlined_leaf(uint64_t x) { return x * 3 + sink; }
__attribute__((noinline, noipa)) uint64_t outer_function(uint64_t x) {
  sink += inlined_leaf(x);
  return sink;
}
int main(void) { return (int)outer_function(1); }
"#;

/// Returns the source of an impostor: it has the structure of the tested program, but other names. These names must
/// never appear.
fn impostor_source() -> String {
    SOURCE.replace("outer_function", "wrong_function").replace("inlined_leaf", "wrong_leaf")
}

/// Returns an ELF address in `outer`, in the code of a function that is inlined there.
fn inlined_address(program: &Path, outer: &str) -> u64 {
    let (start, size) = Program::symbol(program, outer);
    let addresses: Vec<String> = (start..start + size).map(|address| format!("{address:x}")).collect();
    let mut arguments: Vec<&std::ffi::OsStr> =
        vec!["-i".as_ref(), "-f".as_ref(), "-a".as_ref(), "-e".as_ref(), program.as_os_str()];
    arguments.extend(addresses.iter().map(std::ffi::OsStr::new));
    let text = output_of("addr2line", &arguments);
    let mut at = 0;
    for line in text.lines() {
        match line.strip_prefix("0x") {
            Some(address) => at = u64::from_str_radix(address, 16).unwrap(),
            None if line.ends_with("_leaf") => return at,
            None => {}
        }
    }
    panic!("{outer} has nothing inlined:\n{text}");
}

/// Pushes one sample. Its leaf is this address of the program, and its caller is a frame with a name.
fn push(varve: &Varve, service: &str, file: &str, build_id: &str, address: u64) {
    let leaf = Frame::Native { build_id: build_id.to_owned(), file: file.to_owned(), address };
    let request = Request::new(service).seen(vec![leaf, "caller".into()], vec![now_ns()]);
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
}

fn graph(varve: &Varve, service: &str) -> Value {
    let now_s = now_ns() as f64 / 1e9;
    let selector = format!("process_cpu{{service_name=\"{service}\"}}");
    varve.flamegraph(&selector, (now_s - 600.0, now_s + 10.0), "json", 1000).expect(200).json()
}

/// Returns the names in a flame graph that has one stack, root first, and the description of the leaf's frame.
fn names(graph: &Value) -> (Vec<String>, Value) {
    let name =
        |node: &Value| graph["names"][usize::try_from(node[1].as_u64().unwrap()).unwrap()].as_str().unwrap().to_owned();
    let nodes = graph["nodes"].as_array().unwrap();
    let leaf = usize::try_from(nodes.last().unwrap()[1].as_u64().unwrap()).unwrap();
    (nodes.iter().skip(1).map(name).collect(), graph["frames"][leaf].clone())
}

fn upload(varve: &Varve, files: &[&Path]) -> (bool, String) {
    let endpoint = format!("http://{}", varve.http);
    let output =
        Command::new(varve_binary()).arg("upload").args(files).args(["--endpoint", &endpoint]).output().unwrap();
    (
        output.status.success(),
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

/// Checks that the frame keeps its value, and is shown as `shown` (an address in a file) with one of these reasons.
fn assert_unnamed(varve: &Varve, service: &str, shown: &str, reasons: &[&str]) {
    let graph = graph(varve, service);
    let (names, frame) = names(&graph);
    assert_eq!(names, ["caller", shown], "{graph}");
    let reason = frame["reason"].as_str().unwrap_or_default();
    assert!(reasons.contains(&reason), "{service}: {frame}");
    let unnamed = &graph["symbolization"]["unnamed"][0];
    assert_eq!(unnamed["reason"], reason);
    assert!(unnamed["text"].as_str().unwrap().len() > 20 && unnamed["value"] == PERIOD_NS, "{unnamed}");
    assert_eq!(graph["total"], PERIOD_NS, "what has no name keeps its weight");
}

#[test]
fn frames_pushed_before_an_upload_have_names_after_it() {
    let varve = Varve::up();
    let program = Program::compile("late", SOURCE, &["-O2"]);
    let build_id = Program::build_id(&program.path);
    let address = inlined_address(&program.path, "outer_function");
    push(&varve, "late", "/not/on/this/host/late", &build_id, address);
    assert_unnamed(&varve, "late", &format!("late+{address:#x}"), &["no_debug_file"]);
    assert_eq!(graph(&varve, "late")["symbolization"]["unnamed"][0]["build_id"], format!("gnu:{build_id}"));
    let by_name = |name: &str| {
        let selector = format!("process_cpu{{service_name=\"late\",stack_function=\"{name}\"}}");
        varve.query(&format!("sum(sum_over_time({selector}[10m]))"), now_ns() as f64 / 1e9 + 1.0)
    };
    assert!(by_name("outer_function").is_empty(), "nothing has that name yet");
    assert_eq!(by_name("caller").len(), 1);

    let (is_ok, said) = upload(&varve, &[&program.path]);
    assert!(is_ok && said.contains(&format!("gnu:{build_id}")) && said.contains("functions"), "{said}");
    let graph = graph(&varve, "late");
    let (names, frame) = names(&graph);
    assert_eq!(names, ["caller", "outer_function", "inlined_leaf"], "{graph}");
    assert!(frame["file"].as_str().unwrap().ends_with("late.c"), "{frame}");
    let line = SOURCE.lines().position(|line| line.contains("uint64_t inlined_leaf")).unwrap() + 1;
    assert_eq!(frame["line"], line, "{frame}");
    assert_eq!(frame["binary"], "/not/on/this/host/late", "{frame}");
    assert_eq!(graph["symbolization"]["unnamed"], serde_json::json!([]));
    let by_leaf = varve.query(
        "sum by (leaf_function) (sum_over_time(process_cpu{service_name=\"late\"}[10m]))",
        now_ns() as f64 / 1e9 + 1.0,
    );
    assert_eq!(by_leaf[0].0["leaf_function"], "inlined_leaf");
    assert_eq!(by_name("outer_function")[0].1, PERIOD_NS as f64, "a matcher sees it as soon as graphs do");
}

#[test]
fn names_from_a_separate_debug_file_survive_a_restart() {
    let mut varve = Varve::up();
    let program = Program::compile("split", SOURCE, &["-O2"]);
    let build_id = Program::build_id(&program.path);
    let address = inlined_address(&program.path, "outer_function");
    let debug = program.folder().join("split.debug");
    let _said = output_of("objcopy", &["--only-keep-debug".as_ref(), program.path.as_os_str(), debug.as_os_str()]);
    push(&varve, "split", "/not/on/this/host/split", &build_id, address);
    let (is_ok, said) = upload(&varve, &[&debug]);
    assert!(is_ok, "{said}");
    for _ in 0..2 {
        assert_eq!(names(&graph(&varve, "split")).0, ["caller", "outer_function", "inlined_leaf"]);
        assert!(varve.terminate().success());
        varve.launch();
    }
}

#[test]
fn files_of_this_host_name_frames_of_their_build_id() {
    let varve = Varve::up();
    let program = Program::compile("here", SOURCE, &["-O2"]);
    let build_id = Program::build_id(&program.path);
    let address = inlined_address(&program.path, "outer_function");
    push(&varve, "here", program.path.to_str().unwrap(), &build_id, address);
    let mut seen = Vec::new();
    // The symbol table may still be built in the background.
    for _ in 0..100 {
        seen = names(&graph(&varve, "here")).0;
        if seen.len() == 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(seen, ["caller", "outer_function", "inlined_leaf"]);
}

#[test]
fn a_replaced_library_never_names_samples_of_the_old_one() {
    let varve = Varve::up();
    let old = Program::compile("libreplaced.so", SOURCE, &["-shared", "-fPIC"]);
    let new = Program::compile("libreplaced.so", &impostor_source(), &["-shared", "-fPIC"]);
    let (build_id, (address, _)) = (Program::build_id(&old.path), Program::symbol(&old.path, "outer_function"));
    assert_ne!(build_id, Program::build_id(&new.path));
    fs::rename(&new.path, &old.path).unwrap();
    push(&varve, "replaced", old.path.to_str().unwrap(), &build_id, address);
    assert_unnamed(&varve, "replaced", &format!("libreplaced.so+{address:#x}"), &["no_debug_file"]);
    // The library that is at the path now has names for its own samples.
    let (build_id, (address, _)) = (Program::build_id(&old.path), Program::symbol(&old.path, "wrong_function"));
    push(&varve, "new", old.path.to_str().unwrap(), &build_id, address);
    let (names, _) = names(&graph(&varve, "new"));
    assert!(names.contains(&"wrong_function".to_owned()) || names[1].starts_with("libreplaced.so+"), "{names:?}");
}

#[test]
fn a_replaced_library_changes_no_name_that_was_already_shown() {
    let varve = Varve::up();
    let program = Program::compile("seen", SOURCE, &[]);
    let (build_id, (address, _)) = (Program::build_id(&program.path), Program::symbol(&program.path, "outer_function"));
    push(&varve, "seen", program.path.to_str().unwrap(), &build_id, address);
    let first = |varve: &Varve| names(&graph(varve, "seen")).0[1].clone();
    for _ in 0..100 {
        if first(&varve) == "outer_function" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let impostor = Program::compile("seen", &impostor_source(), &[]);
    fs::rename(&impostor.path, &program.path).unwrap();
    for _ in 0..5 {
        let name = first(&varve);
        assert!(name == "outer_function" || name == format!("seen+{address:#x}"), "{name}");
    }
}

#[test]
fn a_deleted_binary_shows_its_addresses_and_why() {
    let varve = Varve::up();
    let program = Program::compile("deleted", SOURCE, &[]);
    let (build_id, (address, _)) = (Program::build_id(&program.path), Program::symbol(&program.path, "outer_function"));
    let path = program.path.to_str().unwrap().to_owned();
    drop(program);
    push(&varve, "deleted", &path, &build_id, address);
    assert_unnamed(&varve, "deleted", &format!("deleted+{address:#x}"), &["no_debug_file"]);
    // Another program is at the path that the kernel marked as deleted.
    let impostor = Program::compile("deleted", &impostor_source(), &[]);
    push(&varve, "marked", &format!("{} (deleted)", impostor.path.display()), "0123456789abcdef", address);
    assert_unnamed(&varve, "marked", &format!("deleted (deleted)+{address:#x}"), &["no_debug_file"]);
}

#[test]
fn an_upload_with_another_build_id_names_nothing() {
    let varve = Varve::up();
    let program = Program::compile("mine", SOURCE, &[]);
    let impostor = Program::compile("mine", &impostor_source(), &[]);
    let (build_id, (address, _)) = (Program::build_id(&program.path), Program::symbol(&program.path, "outer_function"));
    push(&varve, "mine", "/not/on/this/host/mine", &build_id, address);
    push(&varve, "anonymous", "/not/on/this/host/mine", "", address);
    let (is_ok, said) = upload(&varve, &[&impostor.path]);
    assert!(is_ok, "{said}");
    assert_unnamed(&varve, "mine", &format!("mine+{address:#x}"), &["no_debug_file"]);
    assert_unnamed(&varve, "anonymous", &format!("mine+{address:#x}"), &["no_build_id"]);
    let (is_ok, said) = upload(&varve, &[&program.path]);
    assert!(is_ok, "{said}");
    assert_eq!(names(&graph(&varve, "mine")).0[..2], ["caller", "outer_function"]);
    assert_unnamed(&varve, "anonymous", &format!("mine+{address:#x}"), &["no_build_id"]);
}

#[test]
fn an_address_outside_of_code_has_a_reason_instead_of_a_name() {
    let varve = Varve::up();
    let program = Program::compile("bounds", SOURCE, &[]);
    let build_id = Program::build_id(&program.path);
    let (is_ok, said) = upload(&varve, &[&program.path]);
    assert!(is_ok, "{said}");
    push(&varve, "bounds", "/x/bounds", &build_id, 0x7fff_ffff_0000);
    assert_unnamed(&varve, "bounds", "bounds+0x7fffffff0000", &["address_outside_file"]);
}

#[test]
fn unusable_files_are_refused_with_a_reason_and_the_others_added() {
    let mut varve = Varve::up();
    let program = Program::compile("usable", SOURCE, &[]);
    let folder = program.folder().to_owned();
    let text = folder.join("text");
    fs::write(&text, "this is no ELF file").unwrap();
    let cut = folder.join("cut");
    fs::write(&cut, &fs::read(&program.path).unwrap()[..1000]).unwrap();
    let stripped = folder.join("stripped");
    let _said = output_of("strip", &["-o".as_ref(), stripped.as_os_str(), program.path.as_os_str()]);
    let (is_ok, said) = upload(&varve, &[&text, &cut, &stripped, &program.path, Path::new("/does/not/exist")]);
    assert!(!is_ok, "{said}");
    for name in ["text", "cut", "stripped", "/does/not/exist"] {
        assert!(said.lines().any(|line| line.contains(name) && line.len() > name.len() + 20), "{name}: {said}");
    }
    assert!(said.contains(&Program::build_id(&program.path)) && said.contains("4 of 5"), "{said}");
    assert!(varve.is_running());
}

#[test]
fn varve_upload_retries_while_there_are_too_many_uploads() {
    let varve = Varve::up();
    let program = Program::compile("waits", SOURCE, &["-O2"]);
    let head = format!("POST /api/v1/debuginfo HTTP/1.1\r\nHost: {}\r\nContent-Length: 1000\r\n\r\n", varve.http);
    let url = format!("http://{}/api/v1/debuginfo", varve.http);
    let mut others = Vec::new();
    // Uploads that stall use up the number of allowed uploads. The next upload is then refused before its body is read.
    let refused = loop {
        let reply = request("POST", &url, &[("Expect", "100-continue")], Some(&vec![0; 1 << 20])).unwrap();
        if reply.status == 429 || others.len() > 100 {
            break reply;
        }
        let mut other = TcpStream::connect(varve.http.to_string()).unwrap();
        other.write_all(head.as_bytes()).unwrap();
        others.push(other);
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(refused.refused_with(&[429]).header("retry-after"), "1");
    let endpoint = format!("http://{}", varve.http);
    let mut upload = Command::new(varve_binary());
    let mut upload = upload.arg("upload").arg(&program.path).args(["--endpoint", &endpoint]).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    assert!(upload.try_wait().unwrap().is_none(), "it waits");
    drop(others);
    assert!(upload.wait().unwrap().success());
}
