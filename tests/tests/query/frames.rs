//! Tests of frames of functions without names, and of downloaded pprof files as `go tool pprof` reads them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use prost::Message as _;
use proto::pprof::{Location, Mapping, Profile, Sample, ValueType};
use serde_json::Value;
use tests::http::Reply;
use tests::payload::otlp::{Frame, PERIOD_NS, Request, now_ns};
use tests::payload::pprof::unpacked;
use tests::program::{Program, output_of};
use tests::report::skipped;
use tests::server::Varve;
use tests::shared::{tool, varve_binary};

/// Assembly code with call frame information, like the hand-written code in cryptography libraries.
const ASSEMBLY: &str = r#"
__asm__(".text\n.p2align 4\n.type block, @function\nblock:\n.cfi_startproc\n.rept 120\nnop\n.endr\nret\n.cfi_endproc\n"
        ".size block, .-block\n.p2align 4\n.type tail, @function\ntail:\n.cfi_startproc\n.rept 40\nnop\n.endr\nret\n"
        ".cfi_endproc\n.size tail, .-tail\n"
        ".p2align 4\n.type silent, @function\nsilent:\n.rept 9\nnop\n.endr\nret\n.size silent, .-silent\n");
int main(void) { return 0; }
"#;

// Regression test: each address was a frame of its own, so that OpenSSL's SHA function became 120 narrow frames.
#[test]
fn a_function_without_a_name_is_one_frame_until_its_name_comes() {
    let varve = Varve::up();
    let program = Program::compile("whole", ASSEMBLY, &[]);
    let bare = program.folder().join("libbare.so.3");
    let _said = output_of("strip", &["-o".as_ref(), bare.as_os_str(), program.path.as_os_str()]);
    let build_id = Program::build_id(&bare);
    let [block, tail] = ["block", "tail"].map(|function| Program::symbol(&program.path, function).0);
    let mut request = Request::new("assembly");
    let addresses = (0..120).map(|i| block + i).chain((0..40).map(|i| tail + i));
    for address in addresses {
        let file = bare.to_str().unwrap().to_owned();
        let leaf = Frame::Native { build_id: build_id.clone(), file, address };
        request = request.seen(vec![leaf, "caller".into()], vec![now_ns()]);
    }
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let sums =
        |names: [&str; 2]| [(names[0], 120 * PERIOD_NS), (names[1], 40 * PERIOD_NS)].map(|(n, v)| (n.to_owned(), v));
    let nameless = [format!("libbare.so.3+{block:#x}"), format!("libbare.so.3+{tail:#x}")];
    let nameless = sums([&nameless[0], &nameless[1]]);
    // The symbol table may still be built in the background.
    let mut leaves = Vec::new();
    for _ in 0..100 {
        leaves = leaves_of(&written(&varve, "assembly", "json").json());
        if leaves.len() == 2 {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(leaves, nameless, "one frame a function");
    let asked = written(&varve, "assembly", "json").json();
    let unnamed = &asked["symbolization"]["unnamed"][0];
    assert_eq!((&unnamed["reason"], &unnamed["frames"]), (&"stripped".into(), &2.into()), "{unnamed}");
    assert_eq!(by_leaf(&varve), nameless, "PromQL");
    assert_eq!(folded_leaves(&varve), nameless, "folded stacks");
    assert_eq!(pprof_leaves(&varve), (nameless.to_vec(), 160), "pprof, in which each address is a location");

    upload(&varve, &program.path);
    let named = sums(["block", "tail"]);
    assert_eq!(leaves_of(&written(&varve, "assembly", "json").json()), named, "the addresses were kept");
    assert_eq!((by_leaf(&varve), folded_leaves(&varve)), (named.to_vec(), named.to_vec()));
    assert_eq!(pprof_leaves(&varve).0, named);
}

/// Returns a pprof with one sample at each of these file offsets.
fn pprof_of_offsets(file: &str, build_id: &str, offsets: &[u64]) -> Vec<u8> {
    let strings = ["", "cpu", "nanoseconds", file, build_id];
    let cpu = ValueType { kind: 1, unit: 2 };
    let mut profile = Profile {
        sample_type: vec![cpu],
        period_type: Some(cpu),
        period: 1,
        time_nanos: now_ns() as i64,
        mapping: vec![Mapping { id: 1, memory_limit: 1 << 47, filename: 3, build_id: 4, ..Mapping::default() }],
        string_table: strings.map(str::to_owned).to_vec(),
        ..Profile::default()
    };
    for (id, offset) in (1..).zip(offsets) {
        profile.location.push(Location { id, mapping_id: 1, address: *offset, line: Vec::new() });
        profile.sample.push(Sample { location_id: vec![id], value: vec![id as i64], label: Vec::new() });
    }
    profile.encode_to_vec()
}

// Regression test: the start of one function and a file offset in another function got the same name, and were shown as
// one frame.
#[test]
fn unnamed_file_offsets_are_shown_as_virtual_addresses() {
    let varve = Varve::up();
    let program = Program::compile("whole", ASSEMBLY, &["-no-pie"]);
    let bare = program.folder().join("bare");
    let _said = output_of("strip", &["-o".as_ref(), bare.as_os_str(), program.path.as_os_str()]);
    let [block, silent] = ["block", "silent"].map(|function| Program::symbol(&program.path, function).0);
    // The linker places this program at address 0x400000. The file offset of its code is the address minus 0x400000.
    let offsets = [block + 7, silent + 3].map(|address| address - 0x40_0000);
    let body = pprof_of_offsets(bare.to_str().unwrap(), &Program::build_id(&bare), &offsets);
    assert_eq!(varve.push_pprof(&body, &[("service_name", "assembly")], None).status, 200);
    let expected = format!("bare+{:#x} 2\nbare+{block:#x} 1\n", silent + 3);
    let mut text = String::new();
    for _ in 0..100 {
        text = written(&varve, "assembly", "folded").text();
        if text == expected {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(text, expected);
}

// Regression test: a file was shown under the first name that any service of the tenant had pushed with its build ID.
#[test]
fn frames_of_a_service_have_the_file_name_that_it_pushed() {
    let varve = Varve::up();
    let build_id = "0123456789abcdef0123456789abcdef01234567".to_owned();
    let files = [("whole", "/usr/bin/app"), ("stripped", "/opt/app.stripped")];
    for (service, file) in files {
        let leaf = Frame::Native { build_id: build_id.clone(), file: file.to_owned(), address: 0x1234 };
        let request = Request::new(service).seen(vec![leaf, "caller".into()], vec![now_ns()]);
        assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    }
    for (service, file) in files {
        let graph = written(&varve, service, "json").json();
        let binaries: Vec<&str> =
            graph["frames"].as_array().unwrap().iter().filter_map(|frame| frame["binary"].as_str()).collect();
        assert_eq!(binaries, [file], "{graph}");
        let query = format!("sum by (leaf_binary) (sum_over_time(process_cpu{{service_name=\"{service}\"}}[10m]))");
        let series = varve.query(&query, now_ns() as f64 / 1e9 + 1.0);
        let leaves: Vec<&str> = series.iter().map(|(labels, _)| labels["leaf_binary"].as_str()).collect();
        assert_eq!(leaves, [file]);
    }
}

type Leaves = Vec<(String, u64)>;

/// Returns the names and sums of the leaves below `caller`, the largest sum first.
fn leaves_of(graph: &Value) -> Leaves {
    let nodes = graph["nodes"].as_array().unwrap();
    let leaf = |node: &Value| {
        let name = graph["names"][node[1].as_u64().unwrap() as usize].as_str().unwrap().to_owned();
        (name, node[2].as_u64().unwrap())
    };
    nodes.iter().skip(2).map(leaf).collect()
}

fn by_leaf(varve: &Varve) -> Leaves {
    let query = "sum by (leaf_function) (sum_over_time(process_cpu{service_name=\"assembly\"}[10m]))";
    let series = varve.query(query, now_ns() as f64 / 1e9 + 1.0);
    let mut leaves: Leaves =
        series.iter().map(|(labels, value)| (labels["leaf_function"].clone(), *value as u64)).collect();
    leaves.sort_by_key(|(_, value)| Reverse(*value));
    leaves
}

fn written(varve: &Varve, service: &str, format: &str) -> Reply {
    let now_s = now_ns() as f64 / 1e9;
    let selector = format!("process_cpu{{service_name=~\"{service}\"}}");
    varve.flamegraph(&selector, (now_s - 600.0, now_s + 10.0), format, 1000).expect(200)
}

fn folded_leaves(varve: &Varve) -> Leaves {
    let text = written(varve, "assembly", "folded").text();
    let leaf = |line: &str| {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        (stack.strip_prefix("caller;").unwrap().to_owned(), value.parse().unwrap())
    };
    text.lines().map(leaf).collect()
}

/// Downloads a pprof. Returns the sum of each leaf function, and the number of distinct locations of the leaves.
fn pprof_leaves(varve: &Varve) -> (Leaves, usize) {
    let profile = Profile::decode(unpacked(&written(varve, "assembly", "pprof").body).as_slice()).unwrap();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut locations = BTreeSet::new();
    for sample in &profile.sample {
        let leaf = &profile.location[sample.location_id[0] as usize - 1];
        assert!(leaf.address > 0, "an address stays: {leaf:?}");
        locations.insert(leaf.id);
        let function = &profile.function[leaf.line[0].function_id as usize - 1];
        *sums.entry(profile.string_table[function.name as usize].clone()).or_default() += sample.value[0] as u64;
    }
    let mut leaves: Leaves = sums.into_iter().collect();
    leaves.sort_by_key(|(_, value)| Reverse(*value));
    (leaves, locations.len())
}

fn upload(varve: &Varve, file: &Path) {
    let endpoint = format!("http://{}", varve.http);
    let output = Command::new(varve_binary()).arg("upload").arg(file).args(["--endpoint", &endpoint]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// Regression test: the frame had the name `[unknown]+0xfb2`, and the reason that no build ID was sent.
#[test]
fn an_error_frame_of_an_agent_says_that_unwinding_stopped_there_and_why() {
    let varve = Varve::up();
    let request = Request::new("assembly").seen(vec!["leaf".into(), Frame::Abort(0xfb2)], vec![now_ns()]);
    assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    let name = "[unwinding stopped here: native code: code in a mapping that cannot be unwound (error 4018)]";
    assert_eq!(written(&varve, "assembly", "folded").text(), format!("{name};leaf {PERIOD_NS}\n"));
    let graph = written(&varve, "assembly", "json").json();
    assert_eq!(graph["symbolization"]["unnamed"][0]["reason"], "unwinding_stopped", "{graph}");
}

// Regression test: no sample of the pprof had a label, and the period was 0.
#[test]
fn go_tool_pprof_reads_labels_period_build_ids_and_addresses() {
    let test = "go_tool_pprof_reads_labels_period_build_ids_and_addresses";
    let varve = Varve::up();
    let build_id = "00112233445566778899aabbccddeeff";
    let now = now_ns();
    let leaf = Frame::Native { build_id: build_id.to_owned(), file: "/opt/lib/libwork.so".to_owned(), address: 0x1234 };
    for (service, threads) in [("front", [("reader", 3), ("writer", 2)]), ("back", [("reader", 1), ("cleaner", 4)])] {
        let mut request = Request::new(service).with("host.name", "one");
        for (thread, times) in threads {
            request =
                request.seen(vec![leaf.clone(), "main".into()], (0..times).map(|i| now - i * 1_000_000).collect());
            request.samples.last_mut().unwrap().attributes = vec![("thread.name".to_owned(), thread.to_owned())];
        }
        assert_eq!(varve.push_otlp(&request.bytes(), None).status, 200);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.pb.gz");
    std::fs::write(&path, written(&varve, "front|back", "pprof").body).unwrap();
    let Some(go) = tool("go") else { return skipped(test, "there is no go") };
    let pprof = |arguments: &[&str]| {
        let output = Command::new(&go).args(["tool", "pprof", "-symbolize=none"]).args(arguments).arg(&path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let raw = pprof(&["-raw"]);
    assert!(raw.contains("PeriodType: cpu nanoseconds") && raw.contains(&format!("Period: {PERIOD_NS}\n")), "{raw}");
    assert!(raw.contains("Duration: 10m"), "{raw}");
    assert!(raw.lines().any(|line| line.contains("/opt/lib/libwork.so") && line.contains(build_id)), "{raw}");
    assert!(raw.lines().any(|line| line.contains(": 0x1234 M=")), "{raw}");
    let tags = pprof(&["-tags"]);
    for (tag, values) in
        [("thread_name", ["reader", "writer", "cleaner"].as_slice()), ("service_name", &["front", "back"])]
    {
        assert!(
            tags.contains(&format!("{tag}: Total 500ms")) || tags.contains(&format!("{tag}: Total 0.50s")),
            "{tags}"
        );
        assert!(values.iter().all(|value| tags.contains(value)), "{tag}: {tags}");
    }
    assert!(!tags.contains("host_name"), "what all series have says nothing: {tags}");
    let readers = pprof(&["-top", "-tagfocus=thread_name=reader", "-tagignore=service_name=back"]);
    assert!(readers.contains("Total samples = 150ms") || readers.contains("150ms"), "{readers}");
}
