//! C programs that are compiled for a test, and running processes: their memory, and signals to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// C source of a program with two functions that share a thread's CPU time 70 : 30. The environment variable `SECONDS`
/// is the CPU time that the program uses. Without it, the program runs until it is killed.
pub const HOT_AND_COLD: &str = include_str!("programs/hot_and_cold.c");

/// C source of a library that a test preloads into varve. While a flag file exists, reads of a state database do not
/// return. An exit handler creates a file, which shows that exit handlers ran.
pub const STUCK_READS: &str = include_str!("programs/stuck_reads.c");

/// A compiled program in a temporary folder.
#[derive(Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    folder: TempDir,
}

/// A process that a test started. The process is killed when this value is dropped.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // An error is ignored: the process may have ended by itself.
        drop(self.0.kill());
        self.0.wait().unwrap();
    }
}

impl Program {
    /// Compiles a source to a program `name`, with frame pointers, debug information and a build ID.
    ///
    /// # Panics
    /// Gcc is missing, or the source does not compile.
    #[must_use]
    pub fn compile(name: &str, source: &str, flags: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("varve-program-").tempdir().unwrap();
        let source_path = folder.path().join(format!("{name}.c"));
        std::fs::write(&source_path, source).unwrap();
        let path = folder.path().join(name);
        let all = ["-g", "-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-Wl,--build-id"];
        let output = Command::new("gcc")
            .args(all)
            .args(["-o".as_ref(), path.as_os_str(), source_path.as_os_str()])
            .args(flags)
            .output();
        let output = output.expect("gcc is installed: scripts/install-build-tools installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { path, folder }
    }

    /// Folder of the executable and its source.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the program.
    #[must_use]
    pub fn start(&self, environment: &[(&str, &str)]) -> Running {
        let mut command = Command::new(&self.path);
        let child = command.envs(environment.iter().copied()).stdout(Stdio::null()).stdin(Stdio::null()).spawn();
        Running(child.unwrap())
    }

    /// Returns the GNU build ID of an ELF file, in hexadecimal.
    #[must_use]
    pub fn build_id(path: &Path) -> String {
        let text = output_of("readelf", &["-n".as_ref(), path.as_os_str()]);
        let line = text.lines().find(|line| line.contains("Build ID:")).expect("a build ID");
        line.rsplit(' ').next().unwrap().to_owned()
    }

    /// Returns the ELF address of a function, and its size in bytes.
    #[must_use]
    pub fn symbol(path: &Path, function: &str) -> (u64, u64) {
        let text = output_of("nm", &["-S".as_ref(), path.as_os_str()]);
        let line = text.lines().find(|line| line.split(' ').next_back() == Some(function)).expect("the function");
        let mut words = line.split(' ');
        let mut number = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        (number(), number())
    }
}

/// Runs a tool that must succeed, and returns its output.
#[must_use]
pub fn output_of(tool: &str, arguments: &[&std::ffi::OsStr]) -> String {
    let output = Command::new(tool).args(arguments).output().unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the reason why this process cannot sample this host with BPF; `None` if it can. If it can, tests fail
/// where the agent cannot.
#[must_use]
pub fn bpf_obstacle() -> Option<String> {
    const BTF: &str = "/sys/kernel/btf/vmlinux";
    // Link of the initial pid namespace, whose number is a constant of the kernel.
    const PID_NAMESPACE: &str = "pid:[4026531836]";
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim().to_owned();
    let capabilities = u64::from_str_radix(&capabilities, 16).unwrap();
    let is_missing = |bit: u32| capabilities & 1 << bit == 0;
    let admin = 21;
    let perfmon = 38;
    let bpf = 39;
    if is_missing(admin) && (is_missing(perfmon) || is_missing(bpf)) {
        return Some("neither CAP_SYS_ADMIN nor CAP_BPF and CAP_PERFMON: run the tests as root".to_owned());
    }
    if !Path::new(BTF).exists() {
        return Some(format!("the kernel has no {BTF}"));
    }
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if namespace.to_str() != Some(PID_NAMESPACE) {
        return Some(format!(
            "this is a pid namespace of its own ({}): samples carry pids of the host",
            namespace.display()
        ));
    }
    bpf_call_refused()
}

/// Tries to create a BPF map. Returns the reason why the call failed; `None` if it succeeded. A sandbox may refuse the
/// call even to root.
#[allow(unsafe_code, reason = "bpf is a system call without a wrapper in libc")]
fn bpf_call_refused() -> Option<String> {
    const BPF_MAP_CREATE: libc::c_long = 0;
    // map_type (2: array), key_size, value_size, max_entries; the rest of the kernel's struct is zero.
    let attributes: [u32; 32] = std::array::from_fn(|i| *[2, 4, 4, 1].get(i).unwrap_or(&0));
    // SAFETY: the kernel reads `attributes`, whose size is given, and keeps no pointer to it.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attributes.as_ptr(), std::mem::size_of_val(&attributes))
    };
    if result < 0 {
        return Some(format!("the bpf system call is refused: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was made above, and nobody else knows it.
    unsafe { libc::close(i32::try_from(result).unwrap()) };
    None
}

/// Returns the largest resident memory that a process has had since its start, in bytes.
#[must_use]
pub fn memory_peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    peak.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Returns the CPU time that a process has used since its start, in seconds.
#[must_use]
pub fn cpu_seconds(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name: state, and ten other fields, before the ticks in user mode and in the kernel.
    let ticks = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Sends a signal to a process, or to a process group if `pid` is negative.
#[allow(unsafe_code, reason = "kill is a C call")]
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: kill takes numbers and touches no memory of ours.
    unsafe { libc::kill(pid, signal) };
}

/// Returns the state of a process, such as `R`, `S`, `T` for a stopped one, or `Z`; `None` if it has ended.
#[must_use]
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Returns true if a process runs. A process that nobody has waited for is a zombie, and does not run. It still has its
/// files and ports while other threads of it end.
#[must_use]
pub fn is_running(pid: i32) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X') || threads() > 1)
}
