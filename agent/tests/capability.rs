//! Reports of the agent on a machine where it is not permitted to sample.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use testkit::report;

const CHILD: &str = "VARVE_TEST_PROBE";

/// Copies this program to a folder that the user nobody may read.
fn copy_for_nobody() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("capability");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    (folder, copy)
}

/// Runs this test again as nobody: the same machine, without permissions.
#[test]
fn without_privileges_every_missing_capability_is_named() {
    let test = "without_privileges_every_missing_capability_is_named";
    if std::env::var_os(CHILD).is_some() {
        for missing in agent::probe() {
            println!("{}{missing}", if missing.is_required { "required " } else { "" });
        }
        return;
    }
    let (_folder, copy) = copy_for_nobody();
    let mut command = Command::new(&copy);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").current_dir("/").uid(65534).gid(65534);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return report::skipped(test, format!("becoming another user: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    for expected in [
        "required CAP_BPF: the bpf system call was refused",
        "kernel.unprivileged_bpf_disabled is",
        "required CAP_PERFMON: perf_event_open was refused",
        "kernel.perf_event_paranoid is",
        "kernel symbols: /proc/kallsyms hides the addresses",
        "CAP_SYS_PTRACE: the mappings of",
        "CAP_CHECKPOINT_RESTORE: /proc/<pid>/map_files was refused",
        "CAP_DAC_READ_SEARCH: files that only their user may read",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Runs as nobody, with all needed capabilities but one.
#[test]
fn exactly_the_capability_that_is_missing_is_named() {
    let test = "exactly_the_capability_that_is_missing_is_named";
    let all = ["bpf", "perfmon", "sys_ptrace", "checkpoint_restore", "dac_read_search", "syslog"];
    let (_folder, copy) = copy_for_nobody();
    for withheld in all.map(Some).into_iter().chain([None]) {
        let held: String = all.iter().filter(|name| Some(**name) != withheld).map(|name| format!(",+{name}")).collect();
        let inheritable = format!("--inh-caps=-all{held}");
        let ambient = format!("--ambient-caps=-all{held}");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &inheritable, &ambient]).arg(&copy);
        command.args(["without_privileges_every_missing_capability_is_named", "--exact", "--nocapture"]);
        let output = match command.env(CHILD, "1").current_dir("/").output() {
            Ok(output) if output.status.success() => output,
            Ok(output) => return report::skipped(test, String::from_utf8_lossy(&output.stderr)),
            Err(error) => return report::skipped(test, format!("setpriv: {error}")),
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let mut named: Vec<_> = text
            .lines()
            .filter_map(|line| line.trim_start_matches("required ").split_once(": "))
            .map(|(name, _)| name.to_lowercase())
            .filter_map(|name| name.strip_prefix("cap_").map(str::to_owned))
            .collect();
        named.sort_unstable();
        named.dedup();
        // Kernel symbols may also be visible without CAP_SYSLOG, and are reported under another name.
        let expected: Vec<_> = withheld.into_iter().filter(|name| *name != "syslog").collect();
        assert_eq!(named, expected, "{text}");
    }
}

/// An agent that cannot start returns an error at once, and shows it in its status.
#[test]
fn an_invalid_config_is_an_error_with_a_reason() {
    let config = agent::Config {
        endpoint: "https://collector:4317".to_owned(),
        off_cpu: false,
        java_parameters: false,
        environment_variables: Vec::new(),
        frequency_hz: 20,
        token: None,
        compression: agent::Compression::Gzip,
        spool: None,
    };
    let status = agent::Status::new(&mut prometheus_client::registry::Registry::default());
    let shutdown = tokio_util::sync::CancellationToken::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(agent::run(config, shutdown, status.clone())).unwrap_err();
    assert!(matches!(error, agent::AgentError::Config(_)));
    let snapshot = status.snapshot();
    assert_eq!(snapshot.state, agent::State::Failed);
    assert_eq!(snapshot.reason, error.to_string());
}
