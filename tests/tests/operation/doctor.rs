//! Tests of `varve agent doctor` on a host where a capability or the kernel's type information is missing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tests::program::bpf_obstacle;
use tests::report::{bpf_test_ran, skipped};
use tests::shared::varve_binary;

/// Copies the binary to a folder that the user `nobody` can read.
fn copy_for_nobody() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = folder.path().join("varve");
    std::fs::copy(varve_binary(), &copy).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    (folder, copy)
}

/// Runs `varve agent doctor` as the user `nobody`, with these capabilities.
fn doctor_with(held: &[&str], varve: &Path) -> std::io::Result<Output> {
    let held: String = held.iter().map(|name| format!(",+{name}")).collect();
    let inheritable = format!("--inh-caps=-all{held}");
    let ambient = format!("--ambient-caps=-all{held}");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &inheritable, &ambient]);
    command.arg(varve).args(["agent", "doctor"]).current_dir("/").output()
}

#[test]
fn doctor_names_each_missing_capability_with_its_effect() {
    let test = "doctor_capabilities";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let all = ["bpf", "perfmon", "sys_ptrace", "checkpoint_restore", "dac_read_search", "syslog"];
    let (_folder, copy) = copy_for_nobody();
    for left_out in all.map(Some).into_iter().chain([None]) {
        let held: Vec<_> = all.into_iter().filter(|name| Some(*name) != left_out).collect();
        let output = match doctor_with(&held, &copy) {
            Ok(output) => output,
            Err(error) => return skipped(test, format!("setpriv: {error}")),
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let can_sample = !matches!(left_out, Some("bpf" | "perfmon"));
        assert_eq!(output.status.success(), can_sample, "{left_out:?}: {text}");
        assert!(text.contains("this host can be sampled") == can_sample, "{left_out:?}: {text}");
        // Some hosts show the symbols of the kernel even without CAP_SYSLOG, so that nothing is missing there.
        if let Some(name) = left_out.filter(|name| *name != "syslog") {
            let name = format!("CAP_{}: ", name.to_uppercase());
            let mark = if can_sample { "partly" } else { "NO" };
            assert!(text.contains(&name) && text.lines().any(|line| line.starts_with(mark)), "{name}: {text}");
        }
        if !can_sample {
            assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be sampled"), "{left_out:?}");
        }
    }
    bpf_test_ran(test);
}

#[test]
fn doctor_names_the_missing_types_of_a_kernel() {
    let test = "doctor_btf";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    const NO_MOUNT: i32 = 77;
    let varve = varve_binary();
    let hidden =
        format!("mount -t tmpfs none /sys/kernel/btf || exit {NO_MOUNT}; exec {} agent doctor", varve.display());
    let can_unshare =
        Command::new("unshare").args(["--mount", "true"]).output().is_ok_and(|output| output.status.success());
    if !can_unshare {
        return skipped(test, "no mount namespace can be made");
    }
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &hidden]).output();
    let output = match output {
        Ok(output) if output.status.code() != Some(NO_MOUNT) => output,
        Ok(output) => return skipped(test, String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => return skipped(test, format!("unshare: {error}")),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && text.contains("kernel BTF: /sys/kernel/btf/vmlinux: "), "{text}");
    assert!(text.contains("CONFIG_DEBUG_INFO_BTF") && text.contains("this host cannot be sampled"), "{text}");
    bpf_test_ran(test);
}
