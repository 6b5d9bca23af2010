//! Tests of `varve agent record`: the content of the file in every format. The file appears when it is complete, or not
//! at all.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use prost::Message as _;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use serde_json::json;
use tempfile::TempDir;
use testkit::conformance;
use tests::payload::pprof::Profile;
use tests::payload::sample::Multiset;
use tests::program::{HOT_AND_COLD, Program, Running, bpf_obstacle};
use tests::report::{alone, bpf_test_ran, figure, skipped};
use tests::shared::{tool, varve_binary};

/// Sampling frequency in Hz. It is high enough to measure shares of CPU time within a few seconds.
const FREQUENCY: &str = "97";
/// Sampling period in nanoseconds: 1 / 97 Hz, less the thousandth by which the agent shortens it
/// (`agent/src/config.rs`).
const PERIOD_NS: i128 = 10_299_181;
/// Longest time that the command may take to exit after Ctrl-C or a refusal. It may need up to two minutes to name
/// frames.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder for the recorded file, and a folder for temporary files.
struct Folders {
    output: TempDir,
    temporary: TempDir,
}

impl Folders {
    fn new() -> Self {
        Self { output: tempfile::tempdir().unwrap(), temporary: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.output.path().join(name)
    }

    fn command(&self, output: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(varve_binary());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_")) {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.temporary.path()).args(["agent", "record", "-o"]).arg(output).args(arguments);
        command
    }

    /// Records while a process is busy. Returns the content of the file, the output of the command, and the CPU time
    /// that the process used during the recording.
    fn record(&self, name: &str, arguments: &[&str], busy: &Running) -> (Vec<u8>, String, f64) {
        let path = self.path(name);
        let mut command = self.command(&path, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut progress = BufReader::new(child.stderr.take().unwrap());
        // This line shows that sampling has begun. Lines before it may name features that the agent cannot use on this
        // host.
        let mut text = String::new();
        while !text.contains("sampling: 0 s of ") {
            assert_ne!(progress.read_line(&mut text).unwrap(), 0, "{text}");
        }
        let began = Instant::now();
        let mut used = vec![(0.0, cpu_seconds(&busy.0))];
        let reader = std::thread::spawn(move || progress.read_to_string(&mut text).map(|_| text));
        while !reader.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            used.push((began.elapsed().as_secs_f64(), cpu_seconds(&busy.0)));
        }
        let progress = reader.join().unwrap().unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{progress}");
        let said = said(&output);
        self.assert_nothing_else(&[name]);
        let sampled = sampled_seconds(&said);
        let until = used.iter().find(|(at, _)| sampled <= *at).or(used.last()).unwrap();
        (std::fs::read(path).unwrap(), said, until.1 - used[0].1)
    }

    /// Checks that no temporary file is left, and that the folder has only the files with these names.
    fn assert_nothing_else(&self, names: &[&str]) {
        let names_in = |folder: &TempDir| -> Vec<_> {
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(
            (names_in(&self.output), names_in(&self.temporary).len()),
            (names.iter().map(Into::into).collect(), 0)
        );
    }
}

/// Returns the output of a recording command, which must have succeeded.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Starts a program in which two functions share a CPU 70 : 30. Returns the program, its process, and its unique name.
fn hot_and_cold(name: &str) -> (Program, Running, String) {
    let name = format!("{name}_{}", std::process::id());
    let program = Program::compile(&name, HOT_AND_COLD, &[]);
    let running = program.start(&[]);
    (program, running, name)
}

/// Returns the CPU time that a process has used since its start, in seconds.
fn cpu_seconds(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// Returns the duration of the recording in seconds, as the output of the command states it.
fn sampled_seconds(said: &str) -> f64 {
    said.split(" s; dropped").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// Checks that the CPU time of the program's stacks adds up to `used`. Two functions must share the time 70 : 30. Each
/// stack must contain `main` or `_start`.
fn check_shares(what: &str, stacks: &BTreeMap<Vec<String>, i128>, used: f64) {
    let sum = |function: &str| {
        let inside = stacks.iter().filter(|(stack, _)| stack.iter().any(|name| name == function));
        inside.map(|(_, value)| *value as f64 / 1e9).sum::<f64>()
    };
    let hot = sum("hot70");
    let cold = sum("cold30");
    let all = sum("main");
    assert!((0.75..1.25).contains(&(all / used)), "{what}: {all} s were recorded, {used} used");
    let share = hot / (hot + cold);
    // A recording has 290 samples, or 70 on a busy machine. Three standard deviations of a share of 70 samples are
    // 0.16.
    assert!((0.53..0.87).contains(&share), "{what}: {hot} : {cold}");
    assert!(stacks.keys().all(|stack| stack.iter().any(|name| name == "main" || name == "_start")), "{stacks:?}");
    figure(&json!({"suite": "record", "format": what, "seconds": all, "used": used, "hot70": share}));
}

#[test]
fn pprof_and_folded_recordings_have_the_cpu_time_of_each_function() {
    let _alone = alone();
    let test = "record_named";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let (_program, running, name) = hot_and_cold("recorded");
    let folders = Folders::new();
    let (bytes, said, used) = folders.record("a.pb.gz", &["--duration", "3s", "--frequency-hz", FREQUENCY], &running);
    // On a busy machine, the recording ends later.
    assert!((3.0..8.0).contains(&sampled_seconds(&said)), "{said}");
    assert!(said.contains(": pprof, ") && said.contains("; dropped: none"), "{said}");
    let profile = Profile::read(&bytes);
    let types = [("samples", "count"), ("cpu", "nanoseconds")].map(|(kind, unit)| (kind.to_owned(), unit.to_owned()));
    assert_eq!(profile.sample_types, types);
    let of_program = |stacks: BTreeMap<Vec<String>, i128>| -> BTreeMap<Vec<String>, i128> {
        let is_of_it = |stack: &[String]| stack.iter().any(|frame| frame == "hot70" || frame == "cold30");
        stacks.into_iter().filter(|(stack, _)| is_of_it(stack)).collect()
    };
    let stacks = of_program(profile.folded(1));
    check_shares("pprof", &stacks, used);
    let counts = of_program(profile.folded(0));
    assert!(stacks.iter().all(|(stack, time)| counts[stack] * PERIOD_NS == *time), "{stacks:?}");
    check_go_tool(test, &folders.path("a.pb.gz"), &name);

    let folders = Folders::new();
    let (bytes, said, used) =
        folders.record("b", &["--duration", "3s", "--format", "folded", "--frequency-hz", FREQUENCY], &running);
    assert!(said.contains(": folded, "), "{said}");
    let mut stacks = BTreeMap::new();
    for line in String::from_utf8(bytes).unwrap().lines() {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        let mut frames = stack.split(';').map(str::to_owned);
        if frames.next() == Some(name.clone()) {
            assert_eq!(stacks.insert(frames.collect::<Vec<_>>(), value.parse::<i128>().unwrap()), None, "{line}");
        }
    }
    check_shares("folded", &of_program(stacks), used);
    bpf_test_ran(test);
}

/// Checks that `go tool pprof` reads functions, files, lines and shares.
fn check_go_tool(test: &str, path: &Path, name: &str) {
    let Some(go) = tool("go") else { return skipped(test, "go tool pprof: there is no go") };
    let pprof = |arguments: &[&str]| {
        let output = Command::new(&go).args(["tool", "pprof"]).args(arguments).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let top =
        pprof(&["-top", "-lines", "-cum", "-symbolize=none", &format!("-tagfocus=process_executable_name={name}")]);
    assert!(top.contains("Type: cpu") && top.contains("Duration: "), "{top}");
    // The line number is that of the loop in hot70 that calls spin.
    assert!(top.lines().any(|line| line.contains(" hot70 ") && line.contains(&format!("{name}.c:"))), "{top}");
    let tags = pprof(&["-tags", "-symbolize=none"]);
    assert!(["process_pid", "thread_name", "thread_id"].iter().all(|tag| tags.contains(tag)), "{tags}");
}

#[test]
fn an_otlp_recording_is_valid_and_has_every_sample() {
    let _alone = alone();
    let test = "record_otlp";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let (_program, running, name) = hot_and_cold("exported");
    let folders = Folders::new();
    // The recording is longer than the agent's export interval, so that several requests are merged into one.
    let (bytes, said, used) =
        folders.record("a.otlp", &["--duration", "6s", "--off-cpu", "--frequency-hz", FREQUENCY], &running);
    let request = ExportProfilesServiceRequest::decode(&bytes[..]).unwrap();
    assert_eq!(conformance::violations(&request), [""; 0]);
    let samples: Multiset = tests::payload::otlp_decoded::read(&bytes);
    assert!(said.contains(&format!(" {} samples of ", samples.count)), "{} samples: {said}", samples.count);
    let of_program = samples.sums.iter().filter(|(sample, _)| sample.names["service_name"] == name);
    let mut ran = 0;
    let mut profiles = BTreeMap::new();
    for (sample, value) in of_program {
        *profiles.entry(sample.names["__profile_type__"].clone()).or_insert(0) += value;
        ran += if sample.names["__profile_type__"].contains("cpu:nanoseconds:cpu") { *value } else { 0 };
    }
    let ran = ran as f64 / 1e9;
    assert!((0.75..1.25).contains(&(ran / used)), "{ran} s were recorded, {used} used: {profiles:?}");
    let waits = samples.sums.keys().any(|sample| sample.names["__profile_type__"].starts_with("off_cpu:"));
    assert!(waits, "nothing waited");
    let of_it = request.resource_profiles.iter().filter(|profiles| format!("{:?}", profiles.resource).contains(&name));
    assert!((1..=2).contains(&of_it.count()), "a process is there once for each kind");
    bpf_test_ran(test);
}

#[test]
fn ctrl_c_writes_the_samples_so_far() {
    let _alone = alone();
    let test = "record_interrupted";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let (_program, _running, name) = hot_and_cold("interrupted");
    let folders = Folders::new();
    let path = folders.path("a.folded");
    // An existing file keeps its content until the recording is complete.
    std::fs::write(&path, "before").unwrap();
    let mut command = folders.command(&path, &["--duration", "1h"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut progress = String::new();
    while !progress.contains("sampling: 0 s of 1h, ") {
        assert_ne!(stderr.read_line(&mut progress).unwrap(), 0, "{progress}");
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
    interrupt(&child);
    let started = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(started.elapsed() < PATIENCE);
    let said = said(&output);
    assert!(said.contains(" samples of "), "{said}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let folded = std::fs::read_to_string(&path).unwrap();
    assert!(folded.lines().any(|line| line.starts_with(&format!("{name};")) && line.contains(";hot70;")), "{folded}");
    folders.assert_nothing_else(&["a.folded"]);
    bpf_test_ran(test);
}

#[allow(unsafe_code, reason = "kill is a system call without a safe form in libc")]
fn interrupt(child: &Child) {
    // SAFETY: it touches no memory; the child has not been waited for, so its number is its own.
    let result = unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
    assert_eq!(result, 0);
}

#[test]
fn a_recording_that_cannot_be_written_is_refused_at_once() {
    let folders = Folders::new();
    std::fs::create_dir(folders.path("folder.otlp")).unwrap();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), folders.path("link.otlp")).unwrap();
    let refusals = [
        ("missing/a.otlp", &[][..], "a.otlp cannot be written"),
        ("folder.otlp", &[][..], "is not a file"),
        ("link.otlp", &[][..], "is not a file"),
        ("a.bin", &[][..], "--format"),
        ("a.otlp", &["--duration", "0s"][..], "must be longer than 0"),
        ("a.otlp", &["--frequency-hz", "0"][..], "from 1 to 1000"),
    ];
    for (name, arguments, reason) in refusals {
        let started = Instant::now();
        let mut all = vec!["--duration", "1h"];
        all.splice(if arguments.first() == Some(&"--duration") { 0..2 } else { 2..2 }, arguments.iter().copied());
        let output = folders.command(&folders.path(name), &all).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.matches(reason).count() == 1, "{name}: {error}");
        assert!(started.elapsed() < PATIENCE);
    }
    let output = folders.command(Path::new("/dev/null"), &["--format", "otlp"]).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is not a file"));
    std::fs::remove_file(folders.path("link.otlp")).unwrap();
    folders.assert_nothing_else(&["folder.otlp"]);
}
