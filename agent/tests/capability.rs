//! What the agent says about a machine on which it may not sample.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

#[path = "support/report.rs"]
#[allow(dead_code, reason = "no test here needs BPF")]
mod report;

const CHILD: &str = "VARVE_TEST_PROBE";

/// Runs itself again as nobody, where the machine is the same and the permissions are not.
#[test]
fn without_privileges_every_missing_capability_is_named() {
    let test = "without_privileges_every_missing_capability_is_named";
    if std::env::var_os(CHILD).is_some() {
        for missing in agent::probe() {
            println!("{}{missing}", if missing.is_required { "required " } else { "" });
        }
        return;
    }
    // Neither the folder of this program nor its own need be open to nobody.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("capability");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").current_dir("/").uid(65534).gid(65534);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return report::skipped(test, &format!("becoming another user: {error}")),
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
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// An agent that cannot start says so at once, in its answer and in its status.
#[test]
fn a_config_that_cannot_be_used_is_a_failure_that_says_what_to_do() {
    let config = agent::Config {
        endpoint: "https://collector:4317".to_owned(),
        frequency_hz: 20,
        token: None,
        compression: agent::Compression::Gzip,
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
