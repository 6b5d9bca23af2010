//! The agent as a sender: it samples the host, on which a program uses CPU time.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::Cluster;
use tests::program::{HOT_AND_COLD, Program, Running, signal};
use tests::server::free_addresses;
use tests::shared::varve_binary;

use super::{PATIENCE, replace};

/// Sampling period of the agent in nanoseconds: 1 / 20 Hz, less the thousandth by which the agent shortens it.
pub(super) const PERIOD_NS: f64 = 49_951_029.0;

/// A running agent with a token file, a spool and a log, and a program that runs all the time.
pub(super) struct Agent {
    process: Running,
    folder: PathBuf,
    load: Running,
    _program: Program,
}

impl Agent {
    pub(super) fn start(cluster: &Cluster, token: &str) -> Self {
        let program = Program::compile(&format!("sent_{}", std::process::id()), HOT_AND_COLD, &[]);
        let load = program.start(&[]);
        let folder = cluster.folder().join("agent");
        std::fs::create_dir(&folder).unwrap();
        let [operations] = free_addresses::<1>();
        let mut command = Command::new(varve_binary());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_") || name.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        replace(&folder.join("token"), token);
        command.args(["agent", "--endpoint", &cluster.routers("otlp_grpc")[0], "--http-listen", &operations]);
        command.arg("--token-file").arg(folder.join("token")).arg("--spool-dir").arg(folder.join("spool"));
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        Self { process, folder, load, _program: program }
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    /// Waits until the agent's token is refused, and gives the agent another one.
    pub(super) fn change_refused_token(&self, token: &str) {
        let began = Instant::now();
        while !self.log().contains("Unauthenticated") {
            assert!(began.elapsed() < PATIENCE, "the old token is not refused: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        replace(&self.folder.join("token"), token);
    }

    /// Ends the program and the agent, which sends what it has. Returns the number of samples that the agent took.
    pub(super) fn end(self) -> u64 {
        let Self { mut process, folder, load, _program } = self;
        drop(load);
        let log = || std::fs::read_to_string(folder.join("log")).unwrap();
        signal(process.0.id().cast_signed(), libc::SIGTERM);
        assert!(process.0.wait().unwrap().success(), "{}", log());
        let log = log();
        let line = log.lines().find(|line| line.contains("sampling has ended")).unwrap_or_else(|| panic!("{log}"));
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| line["fields"][name].as_u64().unwrap_or_else(|| panic!("{line}"));
        assert_eq!(number("dropped"), 0, "{log}");
        let spooled = std::fs::read_dir(folder.join("spool")).unwrap().flatten();
        let spooled = spooled.filter(|file| file.path().extension().is_some_and(|extension| extension == "export"));
        assert_eq!(spooled.count(), 0, "requests are left in the spool: {log}");
        number("samples")
    }
}
