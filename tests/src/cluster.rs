//! A cluster under test: several nodes and routers with mutual TLS and tokens, run by `deploy/local/cluster`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use testkit::ports::free_addresses;

use crate::client::{Labels, series_of};
use crate::http::{self, Lost, Reply};
use crate::server::signal;
use crate::shared::{varve_binary, workspace};

/// A cluster, which is stopped when this value is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    /// Environment variables of all processes.
    environment: Vec<(String, String)>,
    /// Processes that a test, and not the script, has started.
    replaced: Mutex<Vec<Child>>,
}

impl Cluster {
    /// Starts a cluster with two routers, and waits until it serves.
    #[must_use]
    pub fn up(nodes: usize, shards: usize) -> Self {
        Self::up_with(nodes, shards, &[])
    }

    /// Starts a cluster whose processes have these environment variables.
    #[must_use]
    pub fn up_with(nodes: usize, shards: usize, environment: &[(&str, &str)]) -> Self {
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let cluster = Self { folder: tempfile::tempdir().unwrap(), environment, replaced: Mutex::default() };
        // The ports after the first one are of the same block, which is reserved for this process.
        let [first] = free_addresses();
        let base = first.rsplit(':').next().unwrap();
        let numbers = [nodes, shards].map(|number| number.to_string());
        let options = ["--nodes", &numbers[0], "--shards", &numbers[1], "--base-port", base, "--no-agent"];
        cluster.command("up", &options);
        cluster
    }

    fn command(&self, command: &str, options: &[&str]) -> Output {
        let script = workspace().join("deploy/local/cluster");
        let mut run = Command::new(&script);
        run.arg(command).arg("--dir").arg(self.folder.path()).args(options);
        run.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = run.env("VARVE_BINARY", varve_binary()).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Returns the description that the script keeps in `cluster.json`.
    #[must_use]
    pub fn description(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join("cluster.json")).unwrap()).unwrap()
    }

    fn node(&self, id: usize) -> Value {
        self.description()["nodes"][id - 1].clone()
    }

    /// Kills a node with SIGKILL. Nodes are numbered from 1 on.
    pub fn kill(&self, id: usize) {
        signal(self.node(id)["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    }

    /// Starts a node again after it was killed.
    pub fn start(&self, id: usize) {
        self.command("start", &["--node", &id.to_string()]);
    }

    /// Folder of the data, logs, certificates and tokens of all processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills a router with SIGKILL, removes its data, and starts it again. Routers are numbered from 0 on.
    pub fn replace_router(&self, number: usize) {
        let mut description = self.description();
        let pid = description["routers"][number]["pid"].as_i64().unwrap() as i32;
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let arguments: Vec<&str> = command.trim_end_matches('\0').split('\0').collect();
        signal(pid, libc::SIGKILL);
        let data = arguments.iter().position(|argument| *argument == "--data-dir").unwrap() + 1;
        fs::remove_dir_all(arguments[data]).unwrap();
        let address = arguments.iter().position(|argument| *argument == "--http-listen").unwrap() + 1;
        let url = format!("http://{}/ready", arguments[address]);
        let start = Instant::now();
        let patience = || assert!(start.elapsed() < Duration::from_secs(30), "{url} is not ready");
        // The port is free when the killed process is gone.
        while http::request("GET", &url, &[], None).is_ok() {
            patience();
            std::thread::sleep(Duration::from_millis(20));
        }
        // `down` stops the process.
        let log = fs::File::create(self.folder.path().join(format!("replaced-router-{number}.log"))).unwrap();
        let mut run = Command::new(arguments[0]);
        run.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let started = run.args(&arguments[1..]).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        description["routers"][number]["pid"] = started.id().into();
        self.replaced.lock().unwrap().push(started);
        fs::write(self.folder.path().join("cluster.json"), description.to_string()).unwrap();
        while !http::request("GET", &url, &[], None).is_ok_and(|reply| reply.status == 200) {
            patience();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a node says that it is ready.
    pub fn wait_until_ready(&self, id: usize) {
        let url = format!("{}/ready", self.node(id)["http"].as_str().unwrap());
        let start = Instant::now();
        while !http::request("GET", &url, &[], None).is_ok_and(|reply| reply.status == 200) {
            assert!(start.elapsed() < Duration::from_secs(30), "node {id} is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the response of a node's readiness probe.
    ///
    /// # Errors
    /// There was no response.
    pub fn readiness(&self, id: usize) -> Result<Reply, Lost> {
        http::request("GET", &format!("{}/ready", self.node(id)["http"].as_str().unwrap()), &[], None)
    }

    /// Returns the data directory of a node.
    #[must_use]
    pub fn data_dir(&self, id: usize) -> PathBuf {
        PathBuf::from(self.node(id)["data"].as_str().unwrap())
    }

    /// Returns the log of a node, over all its starts.
    #[must_use]
    pub fn log(&self, id: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("node-{id}.log"))).unwrap()
    }

    /// Returns the URLs of the routers: with `kind` `http` those of the API, with `otlp_http` those of the receiver.
    #[must_use]
    pub fn routers(&self, kind: &str) -> Vec<String> {
        let description = self.description();
        let routers = description["routers"].as_array().unwrap();
        routers.iter().map(|router| router[kind].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the token of a role: `push`, `read` or `admin`.
    #[must_use]
    pub fn token(&self, role: &str) -> String {
        self.description()["tokens"][role].as_str().unwrap().to_owned()
    }

    /// Returns the series of an instant query at a router.
    ///
    /// # Errors
    /// The response of the router, if it is an error.
    pub fn try_query(&self, router: usize, promql: &str, at_s: f64) -> Result<Vec<(Labels, f64)>, Reply> {
        let parameters = http::encode(&[("query", promql), ("time", &format!("{at_s:.9}"))]);
        let url = format!("{}/api/v1/query?{parameters}", self.routers("http")[router]);
        let token = format!("Bearer {}", self.token("read"));
        let reply = http::request("GET", &url, &[("authorization", &token)], None);
        let reply = reply.unwrap_or_else(|lost| panic!("{url}: {lost}"));
        if reply.status != 200 {
            return Err(reply);
        }
        Ok(reply.json()["data"]["result"].as_array().unwrap().iter().map(series_of).collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let script = workspace().join("deploy/local/cluster");
        let down = Command::new(script).arg("down").arg("--dir").arg(self.folder.path()).output();
        if std::thread::panicking() {
            // The logs say why the test failed, and are deleted with the folder.
            for id in 1..=self.description()["nodes"].as_array().map_or(0, Vec::len) {
                let log = self.log(id);
                let tail: Vec<&str> = log.lines().rev().take(20).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                // The test fails whether or not this line can be written.
                let _written = writeln!(std::io::stderr(), "node {id}: {tail}").is_ok();
            }
        }
        drop(down);
        for mut process in self.replaced.lock().unwrap().drain(..) {
            let _ended = process.wait().is_ok();
        }
    }
}
