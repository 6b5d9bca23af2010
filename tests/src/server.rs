//! A varve under test: `varve up`, or node, router and agent as three processes, on free ports and with a new data
//! directory. Both forms have the same interface here, so that a test can run against either form.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use tempfile::TempDir;
pub use testkit::ports::free_addresses;

use crate::http;
use crate::program::{memory_peak, signal};
use crate::shared::varve_binary;

/// Longest time that varve may take to become ready after its start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Longest time for which a test waits until a process of varve exits.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Number of processes of a varve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processes {
    /// `varve up`.
    One,
    /// `varve node`, `varve router`, and `varve agent` if the setup has an agent.
    Three,
}

/// Options of a varve under test.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of processes.
    pub processes: Processes,
    /// Number of shards of a new data directory.
    pub shards: u16,
    /// Sampling frequency of the agent; `None` for no agent.
    pub agent_hz: Option<u32>,
    /// Further flags of `varve up`, or of `varve node` if there are three processes.
    pub flags: Vec<String>,
    /// Command that runs varve, for example `strace ...`; empty for none.
    pub wrapper: Vec<String>,
    /// Environment variables of all processes.
    pub environment: Vec<(String, String)>,
    /// Data directory; `None` for a new one.
    pub data_dir: Option<PathBuf>,
    /// Binary; `None` for [`varve_binary`].
    pub binary: Option<PathBuf>,
    /// Token that tests send with every request; `None` for no token.
    pub token: Option<String>,
    /// Token file of all processes; `None` for no token file.
    pub token_file: Option<PathBuf>,
    /// Directory of `varve admin certs` with the files of node 1 and router a, if the connection between the processes
    /// of the node and the router has TLS.
    pub certificates: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            processes: Processes::One,
            shards: shards(),
            agent_hz: None,
            flags: Vec::new(),
            wrapper: Vec::new(),
            environment: Vec::new(),
            data_dir: None,
            binary: None,
            token: None,
            token_file: None,
            certificates: None,
        }
    }
}

impl Setup {
    /// Returns the setup with more flags.
    #[must_use]
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self
    }
}

/// Returns the number of shards of tests that do not choose it: the value of `VARVE_TEST_SHARDS`, or 1.
///
/// # Panics
/// The value is no number.
#[must_use]
pub fn shards() -> u16 {
    std::env::var("VARVE_TEST_SHARDS").map_or(1, |value| value.parse().expect("VARVE_TEST_SHARDS is a number"))
}

/// A varve under test. Its processes are killed when this value is dropped.
#[derive(Debug)]
pub struct Varve {
    /// Options of this varve.
    pub setup: Setup,
    /// Address, `127.0.0.1:PORT`, of the web UI and the HTTP API.
    pub http: String,
    /// Address of the OTLP/gRPC receiver.
    pub grpc: String,
    /// Address of the OTLP/HTTP receiver.
    pub otlp: String,
    /// Address of the node's gRPC server.
    pub node: String,
    /// Addresses at which the node and the agent serve /metrics if they are separate processes.
    pub operations: [String; 2],
    folder: TempDir,
    children: Vec<Child>,
}

impl Varve {
    /// Starts `varve up` without an agent; returns when it is ready.
    #[must_use]
    pub fn up() -> Self {
        Self::start(Setup::default())
    }

    /// Starts varve; returns when it is ready.
    ///
    /// # Panics
    /// Varve does not become ready. The message has its output.
    #[must_use]
    pub fn start(setup: Setup) -> Self {
        let mut varve = Self::prepare(setup);
        varve.launch();
        varve
    }

    /// Prepares a varve, without starting it.
    #[must_use]
    pub fn prepare(setup: Setup) -> Self {
        let [http, grpc, otlp, node, node_operations, agent_operations] = free_addresses();
        let folder = tempfile::Builder::new().prefix("varve-tests-").tempdir().unwrap();
        let operations = [node_operations, agent_operations];
        Self { setup, http, grpc, otlp, node, operations, folder, children: Vec::new() }
    }

    /// Returns the data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.setup.data_dir.clone().unwrap_or_else(|| self.folder.path().join("data"))
    }

    /// Returns a folder for further files of the test. The folder is removed when this value is dropped.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts or restarts varve; returns the time until it was ready.
    ///
    /// # Panics
    /// Varve does not become ready.
    pub fn launch(&mut self) -> Duration {
        self.try_launch().unwrap_or_else(|said| panic!("varve did not start; it said:\n{said}"))
    }

    /// Starts or restarts varve.
    ///
    /// # Errors
    /// Varve ended before it was ready, or was not ready within a minute. The error is the output of varve.
    pub fn try_launch(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        self.spawn();
        let ready = |address: &str| {
            http::request("GET", &format!("http://{address}/ready"), &[], None).is_ok_and(|reply| reply.status == 200)
        };
        let mut waiting: Vec<String> = vec![self.http.clone()];
        if self.setup.processes == Processes::Three {
            waiting.push(self.operations[0].clone());
        }
        while began.elapsed() < START_PATIENCE {
            waiting.retain(|address| !ready(address));
            if waiting.is_empty() {
                return Ok(began.elapsed());
            }
            if self.children.iter_mut().any(|child| child.try_wait().unwrap().is_some()) {
                self.kill();
                return Err(self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        Err(format!("not ready after {START_PATIENCE:?}\n{}", self.said()))
    }

    /// Starts the processes, without waiting until they are ready.
    pub fn spawn(&mut self) {
        for arguments in self.commands() {
            let child = self.spawn_one(arguments);
            self.children.push(child);
        }
    }

    /// Returns the arguments of each process. The first process holds the data.
    fn commands(&self) -> Vec<Vec<String>> {
        match self.setup.processes {
            Processes::One => vec![self.up_arguments()],
            Processes::Three => self.role_arguments(),
        }
    }

    fn spawn_one(&self, arguments: Vec<String>) -> Child {
        let binary = self.setup.binary.clone().unwrap_or_else(varve_binary);
        let mut words = self.setup.wrapper.clone();
        words.push(binary.to_str().unwrap().to_owned());
        words.extend(arguments);
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        // The environment of the shell that runs the tests must not configure the varve under test.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_") || name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        command.envs(self.setup.token_file.iter().map(|file| ("VARVE_TOKEN_FILE", file)));
        command.envs(self.setup.environment.iter().cloned());
        command.current_dir(self.folder.path()).spawn().unwrap()
    }

    /// Kills only the process that holds the data.
    pub fn kill_first(&mut self) {
        let mut first = self.children.remove(0);
        signal(-first.id().cast_signed(), libc::SIGKILL);
        first.wait().unwrap();
    }

    /// Starts the process that holds the data, and waits until it is ready.
    ///
    /// # Panics
    /// The process does not become ready.
    pub fn start_first(&mut self) {
        let first = self.spawn_one(self.commands().remove(0));
        self.children.insert(0, first);
        let began = Instant::now();
        let url = format!("http://{}/ready", self.operations[0]);
        while !http::request("GET", &url, &[], None).is_ok_and(|reply| reply.status == 200) {
            assert!(began.elapsed() < START_PATIENCE, "not ready:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn up_arguments(&self) -> Vec<String> {
        let data_dir = self.data_dir();
        let mut arguments = words(&[
            ["up", "--data-dir"],
            [data_dir.to_str().unwrap(), "--http-listen"],
            [&self.http, "--otlp-grpc-listen"],
            [&self.grpc, "--otlp-http-listen"],
            [&self.otlp, "--node-listen"],
        ]);
        arguments.push(self.node.clone());
        arguments.extend(self.node_flags());
        match self.setup.agent_hz {
            None => arguments.push("--no-agent".to_owned()),
            Some(hz) => arguments.extend(["--frequency-hz".to_owned(), hz.to_string()]),
        }
        arguments
    }

    /// Returns the flags of the setup for the process that holds the data.
    fn node_flags(&self) -> Vec<String> {
        let shards = self.setup.shards;
        // One shard is the default.
        let shards = (shards != 1).then(|| ["--shards".to_owned(), shards.to_string()]);
        shards.into_iter().flatten().chain(self.setup.flags.iter().cloned()).collect()
    }

    fn role_arguments(&self) -> Vec<Vec<String>> {
        let data_dir = self.data_dir();
        let router_dir = self.folder.path().join("router");
        let [node_operations, agent_operations] = &self.operations;
        let mut node = words(&[["node", "--data-dir"], [data_dir.to_str().unwrap(), "--node-listen"]]);
        node.extend(words(&[[&self.node, "--http-listen"]]));
        node.push(node_operations.clone());
        node.extend(self.tls_arguments("node-1"));
        node.extend(self.node_flags());
        let mut router = words(&[
            ["router", "--data-dir"],
            [router_dir.to_str().unwrap(), "--http-listen"],
            [&self.http, "--otlp-grpc-listen"],
            [&self.grpc, "--otlp-http-listen"],
            [&self.otlp, "--node-endpoint"],
        ]);
        let scheme = if self.setup.certificates.is_some() { "https" } else { "http" };
        router.push(format!("{scheme}://{}", self.node));
        router.extend(self.tls_arguments("router-a"));
        let mut commands = vec![node, router];
        if let Some(hz) = self.setup.agent_hz {
            let endpoint = format!("http://{}", self.grpc);
            let spool = self.folder.path().join("spool");
            let mut agent = words(&[["agent", "--endpoint"], [&endpoint, "--spool-dir"]]);
            agent.extend(words(&[[spool.to_str().unwrap(), "--frequency-hz"]]));
            agent.extend([hz.to_string(), "--http-listen".to_owned(), agent_operations.clone()]);
            commands.push(agent);
        }
        commands
    }

    fn tls_arguments(&self, name: &str) -> Vec<String> {
        let Some(folder) = &self.setup.certificates else { return Vec::new() };
        let path = |file: &str| folder.join(file).to_str().unwrap().to_owned();
        let ca = path("ca.pem");
        let cert = path(&format!("{name}.pem"));
        let key = path(&format!("{name}.key"));
        words(&[["--tls-ca", &ca], ["--tls-cert", &cert], ["--tls-key", &key]])
    }

    /// Returns the ID of the process that holds the data.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid_of(self.children.first().expect("it runs"))
    }

    /// Returns true if all processes run.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        !self.children.is_empty() && self.children.iter_mut().all(|child| child.try_wait().unwrap().is_none())
    }

    /// Kills all processes at once.
    pub fn kill(&mut self) {
        for child in &self.children {
            signal(-child.id().cast_signed(), libc::SIGKILL);
        }
        for mut child in self.children.drain(..) {
            child.wait().unwrap();
        }
    }

    /// Stops varve with SIGTERM. Returns success if all processes ended with success, or the status of a process that
    /// failed.
    ///
    /// # Panics
    /// A process does not end.
    pub fn terminate(&mut self) -> ExitStatus {
        // Agents and routers are stopped before the node, as an operator would do.
        let mut all = ExitStatus::from_raw(0);
        while let Some(mut child) = self.children.pop() {
            let pid = if self.children.is_empty() { self.pid_of(&child) } else { child.id().cast_signed() };
            signal(pid, libc::SIGTERM);
            let status = self.wait_for(&mut child);
            if !status.success() {
                all = status;
            }
        }
        all
    }

    /// Waits until the process that holds the data has ended by itself. Kills the other processes. Returns the status
    /// of the ended process.
    pub fn ended(&mut self) -> ExitStatus {
        let mut first = self.children.remove(0);
        let status = self.wait_for(&mut first);
        self.kill();
        status
    }

    fn pid_of(&self, child: &Child) -> i32 {
        let pid = child.id().cast_signed();
        if self.setup.wrapper.is_empty() {
            return pid;
        }
        // With a wrapper, varve is the child of the wrapper's process.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or(pid)
    }

    fn wait_for(&self, child: &mut Child) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if began.elapsed() > STOP_PATIENCE {
                signal(-child.id().cast_signed(), libc::SIGKILL);
                child.wait().unwrap();
                panic!("it did not end in {STOP_PATIENCE:?}; it said:\n{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the end of the output of all processes, at most 8,000 bytes.
    #[must_use]
    pub fn said(&self) -> String {
        let text = fs::read(self.folder.path().join("log")).unwrap_or_default();
        let from = text.len().saturating_sub(8000);
        String::from_utf8_lossy(&text[from..]).into_owned()
    }

    /// Returns the largest resident memory that the process that holds the data has had since its start, in MiB.
    #[must_use]
    pub fn peak_mib(&self) -> u64 {
        memory_peak(self.pid()) >> 20
    }
}

impl Drop for Varve {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::report::say(&format!("varve said last:\n{}", self.said()));
        }
        self.kill();
    }
}

fn words(pairs: &[[&str; 2]]) -> Vec<String> {
    pairs.iter().flatten().map(|&word| word.to_owned()).collect()
}
