//! The varve under measurement: one process, on free ports, with a new data directory.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use testkit::ports::free_addresses;

use crate::process::{cpu_s, peak_rss_bytes, stat};
use crate::system::client::Client;

/// Longest time that a server may take to become ready after its start, or to exit after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(120);

/// The varve to measure: its binary, and the number of shards of its data directories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) shards: u16,
}

/// A process `varve up --no-agent`. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    binary: PathBuf,
    shards: u16,
    data_dir: PathBuf,
    /// Address, `127.0.0.1:PORT`, of the HTTP API.
    pub(crate) http: String,
    /// Address, `127.0.0.1:PORT`, of the OTLP/HTTP receiver.
    pub(crate) otlp: String,
    /// Addresses of the OTLP/gRPC receiver and of the node.
    other_ports: [String; 2],
    child: Option<Child>,
}

impl Server {
    /// Prepares a server, without starting it.
    pub(crate) fn prepare(Measured { binary, shards }: Measured<'_>, data_dir: &Path) -> anyhow::Result<Self> {
        let [http, otlp, grpc, node] = free_addresses();
        let other_ports = [grpc, node];
        let binary = binary.to_owned();
        let data_dir = data_dir.to_owned();
        Ok(Self { binary, shards, data_dir, http, otlp, other_ports, child: None })
    }

    /// Starts the server. Returns the time from the start of the process until /ready responds with 200.
    pub(crate) fn launch(&mut self) -> anyhow::Result<Duration> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let [grpc, node] = &self.other_ports;
        let mut command = Command::new(&self.binary);
        command.args(["up", "--no-agent", "--data-dir"]).arg(&self.data_dir);
        // One shard is the default. Older binaries do not have the option.
        if self.shards != 1 {
            command.args(["--shards", &self.shards.to_string()]);
        }
        command.args(["--http-listen", &self.http, "--otlp-http-listen", &self.otlp]);
        command.args(["--otlp-grpc-listen", grpc, "--node-listen", node]);
        // The environment of this shell must not configure the measured varve.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VARVE_")) {
            command.env_remove(name);
        }
        command.stdout(log.try_clone()?).stderr(log);
        let client = Client::new();
        let began = Instant::now();
        let child = self.child.insert(command.spawn().with_context(|| self.binary.display().to_string())?);
        loop {
            if client.get(&self.http, "/ready", &[]).is_ok() {
                return Ok(began.elapsed());
            }
            let ended = child.try_wait()?;
            if ended.is_some() || began.elapsed() > PATIENCE {
                bail!("varve is not ready ({ended:?}); it said:\n{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn log_path(&self) -> PathBuf {
        self.data_dir.with_extension("log")
    }

    /// Returns the end of the server's output, at most 4,000 bytes.
    pub(crate) fn said(&self) -> String {
        let text = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned()
    }

    fn child(&mut self) -> anyhow::Result<&mut Child> {
        self.child.as_mut().context("varve does not run")
    }

    fn pid(&self) -> anyhow::Result<u32> {
        Ok(self.child.as_ref().context("varve does not run")?.id())
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child()?.kill()?;
        self.child()?.wait()?;
        self.child = None;
        Ok(())
    }

    /// Stops the server with SIGTERM. Returns the time that it took to exit, and the CPU time that it used from its
    /// start to its exit, both in seconds.
    pub(crate) fn stop(&mut self) -> anyhow::Result<(f64, f64)> {
        let pid = self.pid()?;
        let began = Instant::now();
        Command::new("kill").args(["-TERM", &pid.to_string()]).status().context("kill")?;
        // An ended process is in state Z until its parent waits for it. Until then, /proc still has its CPU time.
        while self.state()? != "Z" {
            if began.elapsed() > PATIENCE {
                bail!("varve does not end; it said:\n{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let took_s = began.elapsed().as_secs_f64();
        let cpu_s = self.cpu_s()?;
        let status = self.child()?.wait()?;
        self.child = None;
        if !status.success() {
            bail!("varve ended with {status}; it said:\n{}", self.said());
        }
        Ok((took_s, cpu_s))
    }

    /// Seals, rolls up and compacts all data.
    pub(crate) fn compact(&self) -> anyhow::Result<()> {
        let endpoint = format!("http://{}", self.http);
        let output = Command::new(&self.binary).args(["admin", "compact", "--endpoint", &endpoint]).output()?;
        if !output.status.success() {
            bail!("varve admin compact: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    fn state(&self) -> anyhow::Result<String> {
        stat(&self.pid()?.to_string())?.into_iter().next().context("/proc/PID/stat has no state")
    }

    /// Returns the CPU time that the server has used since its start, in seconds, with a resolution of 10 ms. This is
    /// user and kernel time, including that of children that ended.
    pub(crate) fn cpu_s(&self) -> anyhow::Result<f64> {
        cpu_s(&self.pid()?.to_string())
    }

    /// Returns the largest resident memory that the server has had since its start, in bytes.
    pub(crate) fn peak_rss_bytes(&self) -> anyhow::Result<u64> {
        peak_rss_bytes(&self.pid()?.to_string())
    }

    /// Returns the disk space of the data directory in bytes, as `du` counts it: the total, and the space of each entry
    /// directly in the directory.
    pub(crate) fn disk_bytes(&self) -> anyhow::Result<(u64, Vec<(String, u64)>)> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(&self.data_dir)? {
            let entry = entry?;
            parts.push((entry.file_name().to_string_lossy().into_owned(), allocated_bytes(&entry.path())?));
        }
        parts.sort();
        Ok((parts.iter().map(|(_, bytes)| bytes).sum(), parts))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error is ignored: the process may have ended already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn allocated_bytes(path: &Path) -> anyhow::Result<u64> {
    // A file may be removed by the running varve before it is read here. It counts as 0 bytes.
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(0) };
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            bytes += allocated_bytes(&entry?.path())?;
        }
    }
    Ok(bytes)
}
