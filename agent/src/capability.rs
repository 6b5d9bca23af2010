//! What the agent needs of this machine, found out by trying: versions and configuration say less than an attempt.
//!
//! Invariant: a capability that this thread holds is never said to be missing. What is refused although it is held was refused by
//! something else, which is named instead.
//!
//! RLIMIT_MEMLOCK is no part of it: kernels that have the rest account BPF memory to the cgroup instead.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

use aya::maps::MapType;
use aya::programs::ProgramType;
use aya::sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported};
use aya::util::online_cpus;
use memchr::memmem;

use crate::kallsyms::KernelSymbols;
use crate::maps::{Backing, Maps};
use crate::procfs;
use crate::sys;

/// Processes that are tried.
const PROCESSES_TRIED: usize = 256;
/// /proc/<pid>/status is some 60 lines.
const STATUS_BYTES_MAX: u64 = 16 << 10;
/// What /proc/self/ns/pid of the initial pid namespace leads to: a constant of the kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// How the kernel's BTF begins: the magic number 0xeb9f, in the machine's byte order.
const BTF_MAGIC: u16 = 0xeb9f;
/// It is 5 to 10 MB.
const BTF_BYTES_MAX: u64 = 64 << 20;
/// The field of `struct mm_struct` that leads to its mappings, as BTF has its name.
const MAPPINGS_TREE: &[u8] = b"\0mm_mt\0";

/// A capability of Linux.
#[derive(Clone, Copy, Debug)]
struct Capability {
    name: &'static str,
    /// Its bit, and that of an older capability that includes it.
    bits: u64,
}

impl Capability {
    const DAC_READ_SEARCH: Self = Self { name: "CAP_DAC_READ_SEARCH", bits: 1 << 2 | 1 << 1 };
    const SYS_PTRACE: Self = Self { name: "CAP_SYS_PTRACE", bits: 1 << 19 };
    const PERFMON: Self = Self { name: "CAP_PERFMON", bits: 1 << 38 | Self::SYS_ADMIN };
    const BPF: Self = Self { name: "CAP_BPF", bits: 1 << 39 | Self::SYS_ADMIN };
    const CHECKPOINT_RESTORE: Self = Self { name: "CAP_CHECKPOINT_RESTORE", bits: 1 << 40 | Self::SYS_ADMIN };
    const SYS_ADMIN: u64 = 1 << 21;

    /// Whether it is in effect for this thread.
    fn is_held(self) -> bool {
        let status = procfs::read_at_most("/proc/thread-self/status", STATUS_BYTES_MAX).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        effective.unwrap_or(0) & self.bits != 0
    }

    /// The name of the first of `needed` that is not held; `otherwise` if all are.
    fn missing_of(needed: &[Self], otherwise: &'static str) -> &'static str {
        needed.iter().find(|capability| !capability.is_held()).map_or(otherwise, |capability| capability.name)
    }
}

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

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What works if nothing is missing.
    pub what: &'static str,
    /// What it lacks.
    pub missing: Vec<Missing>,
}

/// Tries everything that the agent needs; what is not in the answer is there.
#[must_use]
pub fn probe() -> Vec<Missing> {
    examine().into_iter().flat_map(|finding| finding.missing).collect()
}

/// Tries everything that the agent needs, and tells of each whether it is there.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let one = |what, missing: Option<Missing>| Finding { what, missing: missing.into_iter().collect() };
    let mut findings = vec![
        one("the kernel describes its types, among them what stacks are unwound by", btf()),
        one("BPF maps may be made, also ring buffers", ring_buffer()),
        one("BPF programs may be loaded", program()),
        one("the host's processes are seen under their own numbers", pid_namespace()),
        one("CPUs may be sampled, whatever they run", clock_event()),
    ];
    if findings.iter().all(|finding| finding.missing.is_empty()) {
        // Each of these would only repeat what has failed already.
        findings.push(Finding { what: "the kernel has all that the programs call", missing: helpers() });
    }
    findings.extend([
        one("functions of the kernel have names", kallsyms()),
        one("files that run are found, also replaced and deleted ones", mapped_files()),
        Finding { what: "all processes may be looked at: names, services, perf maps", missing: processes() },
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
        Ok(_) if !types.starts_with(&BTF_MAGIC.to_ne_bytes()) => {
            required("kernel BTF", format!("{PATH} holds something else"))
        }
        Ok(_) if memmem::find(&types, MAPPINGS_TREE).is_none() => required(
            "maple tree of mappings",
            "the kernel keeps the mappings of processes in another form; Linux 6.1 has it".to_owned(),
        ),
        Ok(_) => None,
        Err(error) => required("kernel BTF", format!("{PATH}: {error}; it takes a kernel with CONFIG_DEBUG_INFO_BTF")),
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
            let needed = [Capability::PERFMON, Capability::BPF];
            required(Capability::missing_of(&needed, "BPF programs"), refused)
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

/// Whether other processes can be looked at: their mappings take one capability, what only their user may read takes another.
fn processes() -> Vec<Missing> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_refused =
        |pid: u32, file: &str| File::open(format!("/proc/{pid}/{file}")).is_err_and(|error| is_refusal(&error));
    let may_read_files = Capability::DAC_READ_SEARCH.is_held();
    let (mut tried, mut mappings_refused, mut files_refused) = (0, 0, 0);
    for pid in pids.take(PROCESSES_TRIED) {
        tried += 1;
        let is_mapping_refused = is_refused(pid, "maps");
        mappings_refused += usize::from(is_mapping_refused);
        // Both capabilities are needed for these: of a process that may not be looked at, they are refused to either.
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
            "what only its user may read of {files_refused} of {tried} processes cannot be read; services stay without their \
             names, and so do frames of programs and perf maps that only their user may read"
        );
        missing.extend(optional(name, reason));
    }
    missing
}

/// Whether files can be opened by their mapping: tried on this process, where nothing else can be in the way.
fn mapped_files() -> Option<Missing> {
    let pid = std::process::id();
    let maps = Maps::of_process(pid).ok()?;
    let mapping = maps.find(mapped_files as *const () as u64)?;
    let Backing::File { .. } = mapping.backing else { return None };
    let error = procfs::open_mapped(pid, mapping.start, mapping.end).err().filter(is_refusal)?;
    let reason = format!(
        "/proc/<pid>/map_files was refused ({error}); files are opened by path, and frames of replaced or deleted files stay without names"
    );
    let needed = [Capability::CHECKPOINT_RESTORE, Capability::DAC_READ_SEARCH];
    optional(Capability::missing_of(&needed, "/proc/<pid>/map_files"), reason)
}
