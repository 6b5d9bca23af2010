//! Test of the web UI in a real browser, against a real `varve up` with its agent.
//!
//! Runs `npm run test:browser`, and checks that the tests that need a real server ran.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use tests::program::{HOT_AND_COLD, Program, bpf_obstacle, signal};
use tests::report::{alone, bpf_test_ran, say, skipped};
use tests::server::{Setup, Varve};
use tests::shared::{payloads, tool, workspace};

/// Names of the browser tests that need a running varve.
const ON_A_REAL_SERVER: [&str; 3] = [
    "a large C++ profile draws within 100 ms",
    "an empty store shows how to send a profile, then the first one",
    "the web UI reports a killed server and reconnects automatically",
];

/// Name of the browser test that also needs samples of this host.
const ON_THIS_HOST: &str = "a user finds the hot function of this host";

/// Names of the browser tests in which a response is incomplete, or changes while the web UI shows it.
const OF_CHANGING_RESPONSES: [&str; 13] = [
    "the view announces missing names, which appear automatically",
    "the zoom and the marked function follow a frame to its name",
    "each frame where unwinding stopped has its own reason",
    "a hidden tab does not poll for names",
    "a store is not called empty if a shard did not answer",
    "a partial response has a banner, and unnamed frames have reasons",
    "the status bar counts warnings, and a click shows all of them",
    "damaged data has a banner that names the first damaged time",
    "the timeline reports data that it is missing",
    "an error of the timeline alone does not call the view old",
    "the reason for no data is looked for once per query",
    "an empty store shows a running agent, or why its state is unknown",
    "a closed dialog does not release what is still open",
];

/// Smallest number of browser tests that run on a machine: all except [`ON_THIS_HOST`] and the test of the large
/// profile.
const TESTS_MIN: usize = 41;

fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("VARVE_CHROMIUM").map(PathBuf::from);
    named.or_else(|| tool("chromium")).or_else(|| tool("chromium-browser")).filter(|path| path.is_file())
}

/// Kills and starts servers for browser tests. To request that, a browser test runs a shell command, which creates a
/// file and waits until the file is removed.
pub(super) struct Switch {
    folder: tempfile::TempDir,
}

impl Switch {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Returns the command that requests `kill` or `start`.
    pub(super) fn command(&self, name: &str) -> String {
        let file = self.folder.path().join(name);
        format!("touch {0}; while [ -e {0} ]; do sleep 0.05; done", file.display())
    }

    /// Calls `act` with `kill` or `start`, if a browser test has requested that since the last call.
    pub(super) fn serve(&self, mut act: impl FnMut(&str)) {
        for name in ["kill", "start"] {
            let file = self.folder.path().join(name);
            if file.exists() {
                act(name);
                std::fs::remove_file(file).unwrap();
            }
        }
    }
}

/// Running browser tests. If they have not ended when this value is dropped, npm and all its descendants are killed.
struct BrowserTests(Child);

impl Drop for BrowserTests {
    fn drop(&mut self) {
        // The process id of an ended process may be that of another one.
        if matches!(self.0.try_wait(), Ok(None)) {
            // Chromium has a process group of its own, so that a signal to a group would not reach it.
            kill_with_descendants(self.0.id().cast_signed());
            drop(self.0.wait());
        }
    }
}

/// Kills a process and all processes that it started, directly or not.
fn kill_with_descendants(pid: i32) {
    // A stopped process starts no more processes. Its death would hide its children, which get another parent then.
    signal(pid, libc::SIGSTOP);
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        // A thread that ends meanwhile has no children.
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(kill_with_descendants);
    }
    signal(pid, libc::SIGKILL);
}

/// Receives the lines of stdout and stderr of a process, as they arrive.
fn lines_of(process: &mut Child) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let outputs: [Box<dyn std::io::Read + Send>; 2] =
        [Box::new(process.stdout.take().unwrap()), Box::new(process.stderr.take().unwrap())];
    for output in outputs {
        let sender = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
    }
    drop(sender);
    lines
}

/// Returns the command that runs the browser tests.
///
/// # Errors
/// This machine lacks something, which the error names.
pub(super) fn browser_tests() -> Result<Command, &'static str> {
    let ui = workspace().join("router/ui");
    let (Some(chromium), Some(npm)) = (chromium(), tool("npm")) else {
        return Err("no chromium (apt-get install chromium, or VARVE_CHROMIUM) or no npm");
    };
    if !ui.join("node_modules/vitest").is_dir() {
        return Err("router/ui/node_modules is not there: run `make build`, or `npm ci` in router/ui");
    }
    let mut command = Command::new(npm);
    command.args(["run", "test:browser"]).current_dir(&ui).env("VARVE_CHROMIUM", chromium);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Runs browser tests, which must pass, and calls `serve` again and again until they have ended. Returns their output.
/// If `serve` panics, the browser tests are killed.
pub(super) fn run(command: &mut Command, mut serve: impl FnMut()) -> Vec<String> {
    let mut tests = BrowserTests(command.spawn().unwrap());
    let lines = lines_of(&mut tests.0);
    let status = loop {
        serve();
        if let Some(status) = tests.0.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let output: Vec<String> = lines.iter().collect();
    assert!(status.success(), "{}", output.join("\n"));
    output
}

/// Returns the lines that name the browser tests that ran, and prints them.
pub(super) fn ran(output: &[String]) -> Vec<&String> {
    let ran = output.iter().filter(|line| line.starts_with("varve-tests: browser test ran: "));
    ran.inspect(|line| say(line)).collect()
}

#[test]
fn the_web_uis_browser_tests_pass_against_a_running_varve() {
    let test = "the_web_uis_browser_tests_pass_against_a_running_varve";
    let _alone = alone();
    let mut command = match browser_tests() {
        Ok(command) => command,
        Err(missing) => return skipped(test, missing),
    };
    let obstacle = bpf_obstacle();
    let name = format!("browser_{}", std::process::id());
    let program = Program::compile(&name, &HOT_AND_COLD.replace("hot70", "hot_function_of_the_browser_test"), &[]);
    let running = obstacle.is_none().then(|| program.start(&[]));
    let mut varve = Varve::start(Setup {
        agent_hz: obstacle.is_none().then_some(97),
        // The samples of large_cpp.cpu are years old, and must not expire.
        flags: vec!["--retention".to_owned(), "100000d".to_owned()],
        ..Setup::default()
    });
    let empty = Varve::up();
    let switch = Switch::new();
    let large = payloads(test, "pprof").into_iter().find(|path| path.ends_with("large_cpp.cpu"));

    command.env("VARVE_URL", format!("http://{}", varve.http));
    command.env("VARVE_EMPTY_URL", format!("http://{}", empty.http));
    command.env("VARVE_KILL_CMD", switch.command("kill")).env("VARVE_START_CMD", switch.command("start"));
    command.envs(large.as_ref().map(|path| ("VARVE_LARGE_PROFILE", path)));
    command.envs(obstacle.is_none().then_some(("VARVE_HOT_FUNCTION", "hot_function_of_the_browser_test")));
    let output = run(&mut command, || {
        switch.serve(|request| match request {
            "kill" => varve.kill(),
            _ => drop(varve.launch()),
        });
    });
    drop(running);
    let ran = ran(&output);
    let mut needed: Vec<&str> = [&ON_A_REAL_SERVER[..], &OF_CHANGING_RESPONSES].concat();
    match &obstacle {
        None => needed.push(ON_THIS_HOST),
        Some(obstacle) => skipped(ON_THIS_HOST, format!("BPF: {obstacle}")),
    }
    if large.is_none() {
        needed.remove(0);
    }
    for name in needed {
        assert!(ran.iter().any(|line| line.ends_with(name)), "{name:?} did not run:\n{}", output.join("\n"));
    }
    let min = TESTS_MIN + usize::from(large.is_some()) + usize::from(obstacle.is_none());
    assert!(ran.len() >= min, "only {} of {min} tests ran:\n{}", ran.len(), output.join("\n"));
    if obstacle.is_none() {
        bpf_test_ran(ON_THIS_HOST);
    }
}
