//! Tests of commands against a running varve: their output and their errors.

use std::path::Path;
use std::process::{Command, Output};

use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::payload::pprof::Profile;
use tests::program::{HOT_AND_COLD, Program};
use tests::server::{Varve, free_addresses};
use tests::shared::varve_binary;

fn run_at(endpoint: &str, arguments: &[&str]) -> Output {
    Command::new(varve_binary()).args(arguments).args(["--endpoint", &format!("http://{endpoint}")]).output().unwrap()
}

/// Runs a command that must succeed. Returns its stdout and stderr.
fn run(varve: &Varve, arguments: &[&str]) -> (String, String) {
    let output = run_at(&varve.http, arguments);
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).unwrap());
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (stdout, stderr)
}

/// Runs a command that must fail. Returns its stderr.
fn refusal(endpoint: &str, arguments: &[&str]) -> String {
    let output = run_at(endpoint, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{arguments:?} succeeded: {stderr}");
    stderr
}

/// Starts a varve, and pushes two samples: one from 90 minutes ago, and one from now.
fn with_two_samples() -> Varve {
    let varve = Varve::up();
    let now = now_ns();
    let times = vec![now - 5_400_000_000_000, now - 1_000_000];
    let body = Request::new("cli").seen(stack(&["leaf", "main"]), times).bytes();
    assert_eq!(varve.push_otlp(&body, None).status, 200);
    varve
}

#[test]
fn all_commands_understand_the_same_times() {
    let varve = with_two_samples();
    let one = format!("main;leaf {PERIOD_NS}\n");
    let two = format!("main;leaf {}\n", 2 * PERIOD_NS);
    let seconds = now_ns() as f64 / 1e9;
    let rfc_3339 = |seconds: f64| {
        let date =
            Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ", "-d", &format!("@{seconds:.3}")]).output();
        String::from_utf8(date.unwrap().stdout).unwrap().trim().to_owned()
    };
    let unix = |seconds: f64| format!("{seconds:.3}");
    for (window, folded) in [
        (vec![], &one),
        (vec!["--range", "2h"], &two),
        (vec!["--start", "now-2h"], &two),
        (vec!["--start", "now-2h", "--end", "now-1h"], &one),
        (vec!["--end", "now-1h", "--range", "1h"], &one),
        (vec!["--start", &unix(seconds - 7200.0), "--end", &unix(seconds - 3600.0)], &one),
        (vec!["--start", &rfc_3339(seconds - 7200.0), "--end", "now"], &two),
    ] {
        let arguments = [vec!["flamegraph", "--format", "folded"], window].concat();
        assert_eq!(run(&varve, &arguments).0, *folded, "{arguments:?}");
    }
    for time in ["now-1h", &unix(seconds - 3600.0), &rfc_3339(seconds - 3600.0)] {
        let (table, _) = run(&varve, &["query", "sum(sum_over_time(process_cpu[2h]))", "--time", time]);
        assert!(table.contains(&PERIOD_NS.to_string()), "{time}: {table}");
    }
    let (said, _) =
        run(&varve, &["admin", "delete", "{service_name=\"cli\"}", "--start", "now-2h", "--end", "now-1h", "--yes"]);
    assert!(said.contains("deleted 1 samples"), "{said}");
    for arguments in [
        &["query", "up", "--time", "yesterday"][..],
        &["flamegraph", "--start", "yesterday"],
        &["flamegraph", "--end", "now+1h"],
        &["admin", "delete", "x", "--start", "yesterday", "--end", "now"],
    ] {
        let stderr = refusal(&varve.http, arguments);
        assert!(stderr.contains("RFC 3339") && stderr.contains("now-1h"), "{arguments:?}: {stderr}");
    }
    let stderr = refusal(&varve.http, &["flamegraph", "--start", "now", "--end", "now-1h"]);
    assert!(stderr.contains("--start must be before --end"), "{stderr}");
}

#[test]
fn an_empty_flame_graph_names_the_selector_and_window_on_stderr() {
    let varve = with_two_samples();
    let window = ["--start", "2026-01-01T00:00:00Z", "--end", "2026-01-01T01:00:00.5Z"];
    let flamegraph = |format: &str| {
        let selector = "process_cpu{service_name=\"none\"}";
        run(&varve, &[&["flamegraph", selector, "--format", format][..], &window].concat())
    };
    let note =
        "no samples match process_cpu{service_name=\"none\"} from 2026-01-01T00:00:00Z to 2026-01-01T01:00:00.5Z\n";
    assert_eq!(flamegraph("table"), (note.to_owned(), String::new()));
    assert_eq!(flamegraph("folded"), (String::new(), note.to_owned()));
    let (table, _) = run(&varve, &["query", "process_cpu", "--time", "2026-01-01T00:00:00Z"]);
    assert_eq!(table, "no series match process_cpu at 2026-01-01T00:00:00Z\n");
}

#[test]
fn a_flame_graph_is_downloaded_as_pprof_to_a_file_or_a_pipe() {
    let varve = with_two_samples();
    let path = varve.folder().join("profile.pb.gz");
    let pprof = ["flamegraph", "--format", "pprof"];
    let (stdout, _) = run(&varve, &[&pprof[..], &["--output", path.to_str().unwrap()]].concat());
    assert_eq!(stdout, "");
    let in_pipe = run_at(&varve.http, &pprof).stdout;
    for bytes in [std::fs::read(&path).unwrap(), in_pipe] {
        let profile = Profile::read(&bytes);
        assert_eq!(profile.sample_types, [("cpu".to_owned(), "nanoseconds".to_owned())]);
        let stack = ["main", "leaf"].map(str::to_owned).to_vec();
        assert_eq!(profile.folded(0), [(stack, i128::from(PERIOD_NS))].into());
    }
    let nowhere = refusal(&varve.http, &[&pprof[..], &["-o", "/nowhere/profile.pb.gz"]].concat());
    assert!(nowhere.contains("/nowhere/profile.pb.gz"), "{nowhere}");
}

#[test]
fn a_directory_is_uploaded_with_all_programs_in_it_that_have_symbols() {
    let varve = Varve::up();
    let program = Program::compile("hot-and-cold", HOT_AND_COLD, &[]);
    let folder = varve.folder().join("upload");
    std::fs::create_dir_all(folder.join("bin")).unwrap();
    std::fs::copy(&program.path, folder.join("bin/program")).unwrap();
    std::fs::write(folder.join("README"), "no program").unwrap();
    let stripped = Command::new("strip").arg("-o").arg(folder.join("stripped")).arg(&program.path).output().unwrap();
    assert!(stripped.status.success(), "{stripped:?}");
    let (stdout, stderr) = run(&varve, &["upload", folder.to_str().unwrap()]);
    assert!(
        stdout.lines().count() == 1 && stdout.contains("bin/program") && stdout.contains("functions of gnu:"),
        "{stdout}"
    );
    assert!(stderr.lines().count() == 1 && stderr.contains("stripped: skipped"), "{stderr}");
    // If the stripped file itself is an argument, its refusal is an error.
    let stderr = refusal(&varve.http, &["upload", folder.join("stripped").to_str().unwrap()]);
    assert!(stderr.contains("1 of 1 files were not added"), "{stderr}");
}

#[test]
fn a_directory_without_programs_is_refused_before_any_request() {
    let folder = tempfile::tempdir().unwrap();
    let [nobody] = free_addresses();
    let stderr = refusal(&nobody, &["upload", folder.path().to_str().unwrap()]);
    assert!(stderr.contains("no programs or libraries (ELF files)") && !stderr.contains(&nobody), "{stderr}");
}

#[test]
fn an_error_for_a_wrong_port_names_its_server_and_the_right_port() {
    let varve = Varve::up();
    for (address, what) in [(&varve.grpc, "gRPC"), (&varve.node, "gRPC"), (&varve.otlp, "OTLP")] {
        for command in [&["query", "up"][..], &["flamegraph"], &["admin", "stats"]] {
            let stderr = refusal(address, command);
            assert!(stderr.contains(what) && stderr.contains("--http-listen") && stderr.contains("4040"), "{stderr}");
        }
    }
    let [nobody] = free_addresses();
    let stderr = refusal(&nobody, &["query", "up"]);
    assert!(stderr.contains("no response") && !stderr.contains("gRPC"), "{stderr}");
}

#[test]
fn an_unusable_data_directory_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let [http, grpc, otlp, node] = free_addresses();
    let listen =
        ["--http-listen", &http, "--otlp-grpc-listen", &grpc, "--otlp-http-listen", &otlp, "--node-listen", &node];
    let start = |data_dir: &Path| {
        let command = ["up", "--no-agent", "--data-dir", data_dir.to_str().unwrap()];
        let output = Command::new(varve_binary()).args(command).args(listen).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let stderr = start(&file);
    assert!(stderr.lines().last().unwrap().starts_with("varve: the data directory"), "{stderr}");
    for part in ["the data directory", file.to_str().unwrap(), "os error"] {
        assert_eq!(stderr.matches(part).count(), 1, "{part}: {stderr}");
    }
}
