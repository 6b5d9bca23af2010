//! Containers and pods of programs whose functions a language runtime runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::agent::RunningAgent;
use testkit::interpreters::{Interpreter, nodes, perls, phps, pythons, rubies};
use testkit::report;

const CONTAINER: &str = "3f4ab6c8d0e1f2030405060708090a0b0c0d0e0f101112131415161718191a1b";
const POD: &str = "9a5c3f2e-7d1b-4b59-9d3f-0123456789ab";

/// Options of an interpreter and its program, which calls `spin` until it has used a second of CPU time.
const PROGRAMS: [(&str, &str, &str); 5] = [
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

/// The cgroup of a container in a pod, as Kubernetes with systemd creates it. Dropping this value removes it.
struct Container {
    folders: Vec<PathBuf>,
}

impl Container {
    /// Creates the cgroup, whose name is the same in each run. `None` if this machine has no cgroups of version 2, or
    /// does not allow it.
    fn create() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let root = mounts.lines().find_map(|mount| match mount.split(' ').collect::<Vec<_>>()[..] {
            [_, path, "cgroup2", ..] => Some(path),
            _ => None,
        });
        let pod = Path::new(root?).join(format!("varve-test-pod{}.slice", POD.replace('-', "_")));
        let folders = vec![pod.join(format!("cri-containerd-{CONTAINER}.scope")), pod];
        fs::create_dir_all(&folders[0]).ok()?;
        Some(Self { folders })
    }

    /// Starts a program in the container.
    fn start(&self, interpreter: &Interpreter, arguments: [&str; 2]) -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-ec", r#"echo $$ > "$0/cgroup.procs"; exec "$@""#]).arg(&self.folders[0]);
        shell.arg(&interpreter.program).args(&interpreter.arguments).args(arguments);
        shell.stdout(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _removed = fs::remove_dir(folder);
        }
    }
}

#[test]
fn functions_of_each_language_have_their_container_and_pod() {
    let test = "functions_of_each_language_have_their_container_and_pod";
    let interpreters = [pythons(), perls(), rubies(), phps(), nodes()].map(|mut all| all.pop());
    let Some(container) = Container::create() else {
        return report::skipped(test, "no cgroup of version 2 can be made");
    };
    let Some(agent) = RunningAgent::start(test, 99) else { return };
    let mut started = Vec::new();
    for (interpreter, (kind, option, code)) in interpreters.iter().zip(PROGRAMS) {
        match interpreter {
            Some(interpreter) => started.push((interpreter, kind, container.start(interpreter, [option, code]))),
            None => report::skipped(test, format!("there is no interpreter for {kind}")),
        }
    }
    for (interpreter, _, child) in &mut started {
        assert!(child.wait().unwrap().success(), "{interpreter}");
    }
    let (samples, _) = agent.stop(test);
    for (interpreter, kind, child) in started {
        let of_function = samples.iter().filter(|sample| {
            let mut own = sample.frames.iter().filter(|frame| frame.kind == kind);
            sample.is_of(child.id()) && own.any(|frame| frame.name.rsplit(':').next() == Some("spin"))
        });
        let mut count = 0;
        for sample in of_function {
            let labels = ["container.id", "k8s.pod.uid"].map(|key| sample.resource.get(key).map(String::as_str));
            assert_eq!(labels, [Some(CONTAINER), Some(POD)], "{interpreter}");
            count += sample.times.len();
        }
        assert!(SAMPLES_MIN <= count, "{interpreter}: {count} samples");
    }
}
