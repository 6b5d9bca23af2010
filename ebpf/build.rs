//! Compiles the BPF programs with clang. They include no header from outside this crate, so clang is all they need.

use std::path::PathBuf;
use std::process::Command;

/// Compilers that support BPF type relocations, newest first.
const COMPILERS: [&str; 7] = ["clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14", "clang"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=bpf");
    let machine = match std::env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => "-DTARGET_X86_64",
        "aarch64" => "-DTARGET_AARCH64",
        other => {
            return Err(
                format!("the sampler has no register layout for {other}: add one to ebpf/bpf/registers.h").into()
            );
        }
    };
    let object = PathBuf::from(std::env::var("OUT_DIR")?).join("sampler.bpf.o");
    let clang = COMPILERS
        .into_iter()
        .find(|clang| Command::new(clang).arg("--version").output().is_ok_and(|found| found.status.success()))
        .ok_or("no clang found: scripts/install-build-tools installs it")?;
    let output = Command::new(clang)
        .args(["-target", "bpfel", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-nostdinc", "-Wall", "-Werror", machine])
        // Some types are used only by the loader or the kernel, and not every helper is called.
        .args(["-Wno-unused-const-variable", "-Wno-unused-function", "-ffile-prefix-map=bpf/="])
        .args(["-c", "bpf/sampler.bpf.c", "-o"])
        .arg(&object)
        .output()?;
    if !output.status.success() {
        return Err(format!("{clang} refused the BPF programs:\n{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}
