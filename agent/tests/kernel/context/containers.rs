//! Containers and pods of programs whose functions a language runtime runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::agent::RunningAgent;
use crate::support::scripts::{self, Script};
use testkit::interpreters::Interpreter;
use testkit::report;

/// Programs that call `spin` until they have used a second of CPU time.
const PROGRAMS: [Script; 5] = [
    (
        "cpython",
        "-c",
        "import time
def spin():
    for _ in range(10000): pass
while time.process_time() < 1: spin()",
    ),
    ("perl", "-e", "sub spin { my $s = 0; $s += $_ for 1 .. 10000; $s } spin() while (times)[0] < 1"),
    (
        "ruby",
        "-e",
        "def spin; i = 0; i += 1 while i < 10000; end
         spin while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 1",
    ),
    (
        "php",
        "-r",
        "function spin() { for ($i = 0; $i < 10000; $i++); }
         while (getrusage()['ru_utime.tv_sec'] < 1) spin();",
    ),
    (
        "v8js",
        "-e",
        "function spin() { let s = 0; for (let i = 0; i < 100000; i++) s += i % 7; return s; }
         while (process.cpuUsage().user < 1e6) spin();",
    ),
];

/// Least number of samples of a program that have its function, of about a hundred.
const SAMPLES_MIN: usize = 50;

/// The cgroup of a container in a pod, as Kubernetes with systemd creates it. Dropping this value kills its processes
/// and removes it.
struct Container {
    id: String,
    pod: String,
    folder: PathBuf,
}

impl Container {
    /// Creates the cgroup. `None` if this machine has no cgroups of version 2, or allows no process in it.
    fn create() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let root = mounts.lines().find_map(|mount| match mount.split(' ').collect::<Vec<_>>()[..] {
            [_, path, "cgroup2", ..] => Some(path),
            _ => None,
        });
        let process = std::process::id();
        let (id, pod) = (format!("{process:064x}"), format!("9a5c3f2e-7d1b-4b59-9d3f-{process:012x}"));
        let folder = Path::new(root?).join(format!("varve-test-pod{}.slice", pod.replace('-', "_")));
        let folder = folder.join(format!("cri-containerd-{id}.scope"));
        fs::create_dir_all(&folder).ok()?;
        let container = Self { id, pod, folder };
        let is_allowed = container.command().arg("true").status().is_ok_and(|status| status.success());
        is_allowed.then_some(container)
    }

    /// Returns a command that runs its arguments in the container.
    fn command(&self) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-ec", r#"echo $$ > "$0/cgroup.procs"; exec "$@""#]).arg(&self.folder);
        shell
    }

    fn start(&self, interpreter: &Interpreter, arguments: [&str; 2]) -> Child {
        let mut command = self.command();
        command.arg(&interpreter.program).args(&interpreter.arguments).args(arguments);
        command.stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _killed = fs::write(self.folder.join("cgroup.kill"), "1");
        // The kernel removes only a cgroup whose processes have ended.
        let is_removed = |_| {
            std::thread::sleep(Duration::from_millis(10));
            fs::remove_dir(&self.folder).is_ok()
        };
        let _removed = (0..100).any(is_removed) && self.folder.parent().map(fs::remove_dir).is_some();
    }
}

#[test]
fn functions_of_each_language_have_their_container_and_pod() {
    let test = "functions_of_each_language_have_their_container_and_pod";
    let Some(container) = Container::create() else {
        return report::skipped(test, "no cgroup of version 2 can be made");
    };
    let Some(agent) = RunningAgent::start(test, 99) else { return };
    let ended = scripts::run(test, PROGRAMS, |interpreter, arguments| container.start(interpreter, arguments));
    let (samples, _) = agent.stop(test);
    for (interpreter, kind, pid) in ended {
        let of_function = samples.iter().filter(|sample| {
            let mut own = sample.frames.iter().filter(|frame| frame.kind == kind);
            sample.is_of(pid) && own.any(|frame| frame.name.rsplit(':').next() == Some("spin"))
        });
        let mut count = 0;
        for sample in of_function {
            let labels = ["container.id", "k8s.pod.uid"].map(|key| sample.resource.get(key).map(String::as_str));
            assert_eq!(labels, [Some(&*container.id), Some(&*container.pod)], "{interpreter}");
            count += sample.times.len();
        }
        assert!(SAMPLES_MIN <= count, "{interpreter}: {count} samples");
    }
}
