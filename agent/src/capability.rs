//! What the agent needs of this machine, found out by trying: versions and configuration say less than an attempt.
//!
//! RLIMIT_MEMLOCK is no part of it: kernels that have the rest account BPF memory to the cgroup instead.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};
use aya::util::online_cpus;

use crate::kallsyms::KernelSymbols;
use crate::maps::{Backing, Maps};
use crate::procfs;
use crate::sys;

/// Processes whose mappings are tried.
const PROCESSES_TRIED: usize = 256;
/// What /proc/self/ns/pid of the initial pid namespace leads to: a constant of the kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// How the kernel's BTF begins: the magic number 0xeb9f, in the machine's byte order.
const BTF_MAGIC: u16 = 0xeb9f;

/// Something that the agent lacks on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What it is called, e.g. `CAP_PERFMON`.
    pub capability: &'static str,
    /// What happened, and what to do about it.
    pub reason: String,
    /// Whether nothing can be sampled without it; otherwise some frames stay without names.
    pub is_required: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.capability, self.reason)
    }
}

/// Tries everything that the agent needs; what is not in the answer is there.
#[must_use]
pub fn probe() -> Vec<Missing> {
    let required = [btf(), ring_buffer(), program(), pid_namespace(), clock_event()];
    let mut missing: Vec<_> = required.into_iter().flatten().collect();
    if missing.is_empty() {
        // Each of these would only repeat what has failed already.
        missing.extend(helpers());
    }
    missing.extend([kallsyms(), mappings(), mapped_files()].into_iter().flatten());
    missing
}

fn required(capability: &'static str, reason: String) -> Option<Missing> {
    Some(Missing { capability, reason, is_required: true })
}

fn optional(capability: &'static str, reason: String) -> Option<Missing> {
    Some(Missing { capability, reason, is_required: false })
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn setting(name: &str) -> String {
    let value = procfs::read_at_most(format!("/proc/sys/kernel/{name}"), 32).unwrap_or_default();
    format!("kernel.{name} is {}", String::from_utf8_lossy(value.trim_ascii()))
}

fn btf() -> Option<Missing> {
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    let mut magic = [0; 2];
    match File::open(PATH).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) if u16::from_ne_bytes(magic) == BTF_MAGIC => None,
        Ok(()) => required("kernel BTF", format!("{PATH} holds something else")),
        Err(error) => required("kernel BTF", format!("{PATH}: {error}; it takes a kernel with CONFIG_DEBUG_INFO_BTF")),
    }
}

fn bpf_refused(error: &impl fmt::Display) -> Option<Missing> {
    let setting = setting("unprivileged_bpf_disabled");
    required(
        "CAP_BPF",
        format!("the bpf system call was refused ({error}); {setting}; run as root or with CAP_BPF and CAP_PERFMON"),
    )
}

fn ring_buffer() -> Option<Missing> {
    match is_map_supported(MapType::RingBuf) {
        Ok(true) => None,
        Ok(false) => required("BPF ring buffer", "the kernel has none; Linux 5.8 has".to_owned()),
        Err(error) => bpf_refused(&error.io_error),
    }
}

fn program() -> Option<Missing> {
    match is_program_supported(ProgramType::PerfEvent) {
        Ok(true) => None,
        Ok(false) => required("BPF programs on perf events", "the kernel has none".to_owned()),
        Err(error) => {
            let refused =
                format!("loading a program was refused ({error}); run as root or with CAP_BPF and CAP_PERFMON");
            required("CAP_PERFMON", refused)
        }
    }
}

/// The helpers that older kernels lack.
fn helpers() -> Vec<Missing> {
    let helpers = [
        ("bpf_loop", BpfHelper::BPF_FUNC_loop, "5.17"),
        ("bpf_task_pt_regs", BpfHelper::BPF_FUNC_task_pt_regs, "5.15"),
        ("bpf_get_current_task_btf", BpfHelper::BPF_FUNC_get_current_task_btf, "5.11"),
        ("bpf_ringbuf_output", BpfHelper::BPF_FUNC_ringbuf_output, "5.8"),
        ("bpf_probe_read_user", BpfHelper::BPF_FUNC_probe_read_user, "5.5"),
        ("bpf_get_stack", BpfHelper::BPF_FUNC_get_stack, "4.18"),
    ];
    let check = |(name, helper, version)| match is_helper_supported(ProgramType::PerfEvent, helper) {
        Ok(true) => None,
        Ok(false) => required(name, format!("the kernel has none for perf events; Linux {version} has")),
        Err(error) => required(name, format!("cannot be tried: {error}")),
    };
    helpers.into_iter().filter_map(check).collect()
}

fn pid_namespace() -> Option<Missing> {
    let namespace = std::fs::read_link("/proc/self/ns/pid");
    match namespace {
        Ok(namespace) if namespace.as_os_str() == INITIAL_PID_NAMESPACE => None,
        Ok(namespace) => required(
            "host pid namespace",
            format!(
                "this is {}, where the host's processes cannot be looked up; use --pid=host or hostPID",
                namespace.display()
            ),
        ),
        Err(error) => required("host pid namespace", format!("/proc/self/ns/pid: {error}; is /proc mounted?")),
    }
}

fn clock_event() -> Option<Missing> {
    let cpu = online_cpus().ok().and_then(|cpus| cpus.first().copied()).unwrap_or(0);
    let error = sys::try_clock_event(cpu).err()?;
    if is_refusal(&error) {
        let setting = setting("perf_event_paranoid");
        return required(
            "CAP_PERFMON",
            format!("perf_event_open was refused ({error}); {setting}; run as root or with CAP_PERFMON"),
        );
    }
    required("perf_event_open", format!("the CPU clock of CPU {cpu} cannot be opened: {error}"))
}

fn kallsyms() -> Option<Missing> {
    let error = KernelSymbols::check().err()?;
    optional("kernel symbols", format!("{error}; kernel frames stay without names"))
}

fn mappings() -> Option<Missing> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let (mut tried, mut refused) = (0, 0);
    for pid in pids.take(PROCESSES_TRIED) {
        tried += 1;
        refused +=
            usize::from(procfs::read_at_most(format!("/proc/{pid}/maps"), 1).is_err_and(|error| is_refusal(&error)));
    }
    let reason =
        format!("the mappings of {refused} of {tried} processes cannot be read; their frames stay without names");
    (refused != 0).then(|| optional("CAP_SYS_PTRACE", reason))?
}

fn mapped_files() -> Option<Missing> {
    let pid = std::process::id();
    let maps = Maps::of_process(pid).ok()?;
    let (_, mapping) = maps.find(mapped_files as *const () as u64)?;
    let Backing::File { .. } = mapping.backing else { return None };
    let error = procfs::open_mapped(pid, mapping.start, mapping.end).err().filter(is_refusal)?;
    let reason = format!(
        "/proc/<pid>/map_files was refused ({error}); files are opened by path, and frames of replaced or deleted files stay without names"
    );
    optional("CAP_CHECKPOINT_RESTORE", reason)
}
