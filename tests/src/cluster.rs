//! A cluster under test: several nodes and routers with mutual TLS and tokens, run by `deploy/local/cluster`.
//! [`administration`] runs `varve admin` against its nodes, or those of another varve.

pub mod members;

pub mod administration;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use testkit::ports::free_addresses;
use testkit::report::say;

use self::administration::Administration;
use crate::client::{Labels, series_of};
use crate::http::{self, Lost, Reply};
use crate::program::{is_running, signal};
use crate::shared::{varve_binary, workspace};

/// Size of a cluster, and its differences from that of `make cluster`.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of routers.
    pub routers: usize,
    /// Number of shards.
    pub shards: usize,
    /// True if a proxy of the test has to forward the connections to nodes ([`Cluster::proxy_address`]).
    pub is_proxied: bool,
    /// Program that is run for varve; `None` for varve itself.
    pub binary: Option<PathBuf>,
    /// Environment variables of all processes.
    pub environment: Vec<(String, String)>,
}

/// A cluster, which is stopped when this value is dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    shape: Shape,
    base_port: u16,
}

/// Distance of the ports of proxies from the base port.
const PROXY_PORTS: u16 = 300;

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
        let cluster = Self::new(Shape { nodes, routers: 2, shards, is_proxied: false, binary: None, environment });
        cluster.launch();
        cluster
    }

    /// Makes the folder of a cluster, and starts nothing.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        // The ports after the first one are of the same block, which is reserved for this process.
        let [first] = free_addresses();
        let base_port = first.rsplit(':').next().unwrap().parse().unwrap();
        Self { folder: tempfile::Builder::new().prefix("varve-cluster-").tempdir().unwrap(), shape, base_port }
    }

    /// Starts all processes of a new cluster, and waits until it serves.
    pub fn launch(&self) {
        self.launch_by(&[], &["--no-agent"]);
    }

    /// Starts all processes of a new cluster and an agent, as a user does. `wrapper` is a command that runs the script;
    /// it is empty for none. Returns the output of the script.
    #[must_use]
    pub fn launch_with_agent(&self, wrapper: &[&str]) -> String {
        self.launch_by(wrapper, &[])
    }

    fn launch_by(&self, wrapper: &[&str], more: &[&str]) -> String {
        let Shape { nodes, routers, shards, is_proxied, .. } = self.shape;
        let numbers = [nodes, routers, shards].map(|number| number.to_string());
        let base = self.base_port.to_string();
        let proxies = (self.base_port + PROXY_PORTS).to_string();
        let mut options = vec!["--nodes", &numbers[0], "--routers", &numbers[1], "--shards", &numbers[2]];
        options.extend(["--base-port", &base]);
        options.extend(more);
        if is_proxied {
            options.extend(["--proxy-port", &proxies]);
        }
        String::from_utf8(self.command(wrapper, "up", &options).stdout).unwrap()
    }

    /// Returns the size of the cluster.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the folder of all files of the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the address at which other processes call a node if the cluster is proxied.
    #[must_use]
    pub fn proxy_address(&self, id: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + PROXY_PORTS + u16::try_from(id).unwrap()))
    }

    /// Returns the address at which a node listens.
    #[must_use]
    pub fn node_address(&self, id: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.base_port + 100 + 10 * u16::try_from(id).unwrap()))
    }

    fn command(&self, wrapper: &[&str], command: &str, options: &[&str]) -> Output {
        let script = workspace().join("deploy/local/cluster");
        let words: Vec<&str> = wrapper.iter().copied().chain(script.to_str()).collect();
        let mut run = Command::new(words[0]);
        run.args(&words[1..]).arg(command).arg("--dir").arg(self.folder.path()).args(options);
        let binary = self.shape.binary.clone().unwrap_or_else(varve_binary);
        run.envs(self.shape.environment.iter().cloned());
        let output = run.env("VARVE_BINARY", binary).output().unwrap();
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

    /// Returns the process id of a node. Nodes are numbered from 1 on.
    #[must_use]
    pub fn pid(&self, id: usize) -> i32 {
        i32::try_from(self.node(id)["pid"].as_i64().unwrap()).unwrap()
    }

    /// Returns the process id of a router. Routers are numbered from 0 on.
    #[must_use]
    pub fn router_pid(&self, router: usize) -> i32 {
        i32::try_from(self.description()["routers"][router]["pid"].as_i64().unwrap()).unwrap()
    }

    /// Kills a node with SIGKILL, and waits until it is dead. Nodes are numbered from 1 on.
    pub fn kill(&self, id: usize) {
        kill_and_wait(self.pid(id));
    }

    /// Starts a node again after it was killed.
    pub fn start(&self, id: usize) {
        self.command(&[], "start", &["--node", &id.to_string()]);
    }

    /// Starts a router again after it was killed.
    pub fn start_router(&self, router: usize) {
        self.command(&[], "start", &["--router", &router.to_string()]);
    }

    /// Kills a router with SIGKILL, removes its data, and starts it again. Routers are numbered from 0 on.
    pub fn replace_router(&self, router: usize) {
        kill_and_wait(self.router_pid(router));
        fs::remove_dir_all(self.folder.path().join(format!("router-r{}", router + 1))).unwrap();
        self.start_router(router);
        let url = format!("{}/ready", self.routers("http")[router]);
        let start = Instant::now();
        while !http::request("GET", &url, &[], None).is_ok_and(|reply| reply.status == 200) {
            assert!(start.elapsed() < Duration::from_secs(30), "{url} is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `varve admin cluster` with the certificate of node 1, and returns its JSON.
    #[must_use]
    pub fn admin(&self, arguments: &[&str]) -> Value {
        let certs = self.folder.path().join("certs");
        let endpoints: Vec<String> = self.description()["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| format!("https://{}", node["address"].as_str().unwrap()))
            .collect();
        let mut run = Command::new(varve_binary());
        run.args(["admin", "cluster"]).args(arguments).args(["--json", "--node-endpoint", &endpoints.join(",")]);
        for (option, file) in [("--tls-ca", "ca.pem"), ("--tls-cert", "node-1.pem"), ("--tls-key", "node-1.key")] {
            run.arg(option).arg(certs.join(file));
        }
        let output = run.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
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

    /// Returns the sum of the values of a node's metric, over all series whose names and labels begin with `name`.
    #[must_use]
    pub fn metric(&self, id: usize, name: &str) -> f64 {
        let url = format!("{}/metrics", self.node(id)["http"].as_str().unwrap());
        let text = http::request("GET", &url, &[], None).unwrap().expect(200).text();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
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

    /// Administers the cluster with the certificate of its administrator.
    #[must_use]
    pub fn administration(&self) -> Administration {
        self.administration_as("admin-operator")
    }

    /// Administers the cluster with a certificate of its CA, such as `router-r1`.
    #[must_use]
    pub fn administration_as(&self, name: &str) -> Administration {
        let nodes = self.description()["nodes"].as_array().unwrap().clone();
        let urls: Vec<String> =
            nodes.iter().map(|node| format!("https://{}", node["address"].as_str().unwrap())).collect();
        let mut options = vec!["--node-endpoint".to_owned(), urls.join(",")];
        let certs = self.folder.path().join("certs");
        for (option, file) in [
            ("--tls-ca", "ca.pem".to_owned()),
            ("--tls-cert", format!("{name}.pem")),
            ("--tls-key", format!("{name}.key")),
        ] {
            options.extend([option.to_owned(), certs.join(file).to_str().unwrap().to_owned()]);
        }
        Administration { options }
    }

    /// Returns the series of an instant query at a router.
    ///
    /// # Errors
    /// The response of the router, if it is an error.
    pub fn try_query(&self, router: usize, promql: &str, at_s: f64) -> Result<Vec<(Labels, f64)>, Reply> {
        self.try_query_as(&self.token("read"), router, promql, at_s)
    }

    /// Returns the series of an instant query with a token.
    ///
    /// # Errors
    /// The response of the router, if it is an error.
    pub fn try_query_as(
        &self,
        token: &str,
        router: usize,
        promql: &str,
        at_s: f64,
    ) -> Result<Vec<(Labels, f64)>, Reply> {
        // A test that compares sums must not take a response without some shards for a loss.
        let parameters = http::encode(&[("query", promql), ("time", &format!("{at_s:.9}")), ("partial", "refuse")]);
        let url = format!("{}/api/v1/query?{parameters}", self.routers("http")[router]);
        let token = format!("Bearer {token}");
        let reply = http::request("GET", &url, &[("authorization", &token)], None);
        let reply = reply.unwrap_or_else(|lost| panic!("{url}: {lost}"));
        if reply.status != 200 {
            return Err(reply);
        }
        Ok(reply.json()["data"]["result"].as_array().unwrap().iter().map(series_of).collect())
    }
}

fn kill_and_wait(pid: i32) {
    signal(pid, libc::SIGKILL);
    while is_running(pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let script = workspace().join("deploy/local/cluster");
        // A test that fails unwinds, and a second panic would hide the first one.
        let error = match Command::new(script).arg("down").arg("--dir").arg(self.folder.path()).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(error.to_string()),
        };
        // Nothing was started without the description.
        if let Some(error) = error
            && self.folder.path().join("cluster.json").exists()
        {
            say(&format!("processes of {} may still run: {error}", self.folder.path().display()));
        }
        if std::thread::panicking() {
            // The logs say why the test failed, and are deleted with the folder.
            for id in 1..=self.shape.nodes {
                let log = fs::read_to_string(self.folder.path().join(format!("node-{id}.log"))).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(20).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                say(&format!("node {id}: {tail}"));
            }
        }
    }
}
