//! Checks of the agent's requirements on this machine. Each check tries the operation itself, because an attempt proves
//! more than versions and settings.
//!
//! Invariant: a capability that this thread holds is never reported as missing. If an operation is refused although its
//! capability is held, something else refused the operation, and the report says so.
//!
//! RLIMIT_MEMLOCK is not checked: kernels that meet the other requirements account BPF memory to the cgroup.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};
use aya::util::online_cpus;
use memchr::memmem;

use crate::names::kernel_symbols::KernelSymbols;
use crate::process::maps::{Backing, Maps};
use crate::process::procfs;
use crate::process::sys;

/// Largest number of processes that are read to check the access to them.
const PROCESSES_TRIED: usize = 256;
/// Largest number of bytes that are read from /proc/<pid>/status, which has about 60 lines.
const STATUS_BYTES_MAX: u64 = 16 << 10;
/// Target of /proc/self/ns/pid in the initial pid namespace: a constant of the kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// First bytes of the kernel's BTF, in the machine's byte order.
const BTF_MAGIC: u16 = 0xeb9f;
/// Largest number of bytes that are read from the kernel's BTF, which has 5 to 10 MB.
const BTF_BYTES_MAX: u64 = 64 << 20;
/// Name, in BTF, of the field of `struct mm_struct` that leads to its mappings.
const MAPPINGS_TREE: &[u8] = b"\0mm_mt\0";

/// A capability of Linux.
#[derive(Clone, Copy, Debug)]
struct Capability {
    name: &'static str,
    /// Bits, in a set of capabilities, of this capability and of another capability that includes it.
    bits: u64,
}

impl Capability {
    const DAC_READ_SEARCH: Self = Self { name: "CAP_DAC_READ_SEARCH", bits: 1 << 2 | 1 << 1 };
    const SYS_PTRACE: Self = Self { name: "CAP_SYS_PTRACE", bits: 1 << 19 };
    const PERFMON: Self = Self { name: "CAP_PERFMON", bits: 1 << 38 | Self::SYS_ADMIN };
    const BPF: Self = Self { name: "CAP_BPF", bits: 1 << 39 | Self::SYS_ADMIN };
    const CHECKPOINT_RESTORE: Self = Self { name: "CAP_CHECKPOINT_RESTORE", bits: 1 << 40 | Self::SYS_ADMIN };
    const SYS_ADMIN: u64 = 1 << 21;

    /// True if the capability is in effect for this thread.
    fn is_held(self) -> bool {
        let status = procfs::read_at_most("/proc/thread-self/status", STATUS_BYTES_MAX).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        effective.unwrap_or(0) & self.bits != 0
    }

    /// Returns the name of the first capability of `needed` that is not held; `otherwise` if all are held.
    fn missing_of(needed: &[Self], otherwise: &'static str) -> &'static str {
        needed.iter().find(|capability| !capability.is_held()).map_or(otherwise, |capability| capability.name)
    }
}

/// A requirement of the agent that is missing on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the requirement, such as `CAP_PERFMON`.
    pub capability: &'static str,
    /// Description of the refusal, and the remedy.
    pub reason: String,
    /// True if nothing can be sampled without this requirement; false if only some frames stay without names.
    pub is_required: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.capability, self.reason)
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The statement that holds if nothing is missing.
    pub what: &'static str,
    /// Requirements that are missing for this check.
    pub missing: Vec<Missing>,
}

/// Tests all requirements of the agent, and returns the missing ones.
#[must_use]
pub fn probe() -> Vec<Missing> {
    examine().into_iter().flat_map(|finding| finding.missing).collect()
}

/// Tests all requirements of the agent, and returns the result of each check.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let one = |what, missing: Option<Missing>| Finding { what, missing: missing.into_iter().collect() };
    let mut findings = vec![
        one("the kernel has BTF types, with those that unwinding needs", btf()),
        one("BPF maps and ring buffers can be created", ring_buffer()),
        one("BPF programs can be loaded", program()),
        one("the host's processes are visible under their own pids", pid_namespace()),
        one("CPUs can be sampled for all processes", clock_event()),
    ];
    if findings.iter().all(|finding| finding.missing.is_empty()) {
        // Otherwise each helper would repeat the failure.
        findings.push(Finding { what: "the kernel has all helpers that the programs call", missing: helpers() });
    }
    findings.extend([
        one("kernel functions have names", kallsyms()),
        one("executable files can be opened, also replaced and deleted ones", mapped_files()),
        Finding { what: "all processes can be read: names, services, perf maps", missing: processes() },
    ]);
    findings
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
    let mut types = Vec::new();
    match File::open(PATH).and_then(|file| file.take(BTF_BYTES_MAX).read_to_end(&mut types)) {
        Ok(_) if !types.starts_with(&BTF_MAGIC.to_ne_bytes()) => required("kernel BTF", format!("{PATH} is not BTF")),
        Ok(_) if memmem::find(&types, MAPPINGS_TREE).is_none() => required(
            "maple tree of mappings",
            "the kernel keeps no maple tree of mappings; Linux 6.1 or later does".to_owned(),
        ),
        Ok(_) => None,
        Err(error) => {
            required("kernel BTF", format!("{PATH}: {error}; the kernel must be built with CONFIG_DEBUG_INFO_BTF"))
        }
    }
}

fn bpf_refused(error: &impl fmt::Display) -> Option<Missing> {
    let setting = setting("unprivileged_bpf_disabled");
    required(
        Capability::missing_of(&[Capability::BPF], "bpf system call"),
        format!("the bpf system call was refused ({error}); {setting}; run as root or with CAP_BPF and CAP_PERFMON"),
    )
}

fn ring_buffer() -> Option<Missing> {
    match is_map_supported(MapType::RingBuf) {
        Ok(true) => None,
        Ok(false) => required("BPF ring buffer", "the kernel has none; Linux 5.8 or newer has it".to_owned()),
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
            let needed = [Capability::PERFMON, Capability::BPF];
            required(Capability::missing_of(&needed, "BPF programs"), refused)
        }
    }
}

/// Checks the helpers that older kernels do not have.
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
        Ok(false) => required(name, format!("missing for perf events; Linux {version} or newer has it")),
        Err(error) => required(name, format!("the check failed: {error}")),
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
                "this is {}, in which the host's processes have no pids; use --pid=host or hostPID",
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
            Capability::missing_of(&[Capability::PERFMON], "perf_event_open"),
            format!("perf_event_open was refused ({error}); {setting}; run as root or with CAP_PERFMON"),
        );
    }
    required("perf_event_open", format!("the CPU clock of CPU {cpu} cannot be opened: {error}"))
}

fn kallsyms() -> Option<Missing> {
    let error = KernelSymbols::check().err()?;
    optional("kernel symbols", format!("{error}; kernel frames stay without names"))
}

/// Checks that other processes can be read. One capability is needed to read their mappings, and another to read files
/// that only their user may read.
fn processes() -> Vec<Missing> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_refused =
        |pid: u32, file: &str| File::open(format!("/proc/{pid}/{file}")).is_err_and(|error| is_refusal(&error));
    let may_read_files = Capability::DAC_READ_SEARCH.is_held();
    let mut tried = 0;
    let mut mappings_refused = 0;
    let mut files_refused = 0;
    for pid in pids.take(PROCESSES_TRIED) {
        tried += 1;
        let is_mapping_refused = is_refused(pid, "maps");
        mappings_refused += usize::from(is_mapping_refused);
        // This file needs both capabilities. If only the one for mappings is missing, the refusal is counted there.
        files_refused += usize::from(is_refused(pid, "environ") && !(is_mapping_refused && may_read_files));
    }
    let mut missing = Vec::new();
    if mappings_refused != 0 {
        let name = Capability::missing_of(&[Capability::SYS_PTRACE], "access to processes");
        let reason = format!(
            "the mappings of {mappings_refused} of {tried} processes cannot be read; their frames stay without names"
        );
        missing.extend(optional(name, reason));
    }
    if files_refused != 0 {
        let name = Capability::missing_of(&[Capability::DAC_READ_SEARCH], "access to files");
        let reason = format!(
            "files that only their user may read, of {files_refused} of {tried} processes, cannot be read; services \
             stay without their names, and so do frames of such programs and perf maps"
        );
        missing.extend(optional(name, reason));
    }
    missing
}

/// Checks that files can be opened by their mapping. The check opens a file of this process, where nothing but a
/// missing capability can refuse it.
fn mapped_files() -> Option<Missing> {
    let pid = std::process::id();
    let maps = Maps::of_process(pid).ok()?;
    let mapping = maps.find(mapped_files as *const () as u64)?;
    let Backing::File { .. } = mapping.backing else { return None };
    let error = procfs::open_mapped(pid, mapping.start, mapping.end).err().filter(is_refusal)?;
    let reason = format!(
        "/proc/<pid>/map_files was refused ({error}); files are opened by path, and frames of replaced or deleted \
         files stay without names"
    );
    let needed = [Capability::CHECKPOINT_RESTORE, Capability::DAC_READ_SEARCH];
    optional(Capability::missing_of(&needed, "/proc/<pid>/map_files"), reason)
}
