//! Test that the agent's spool survives `kill -9` while the receiver is unreachable. Each spooled sample is stored
//! once, even if it is sent twice.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tests::program::{HOT_AND_COLD, Program, Running, bpf_obstacle};
use tests::report::{alone, bpf_test_ran, figure, skipped};
use tests::server::{Setup, Varve, free_addresses};
use tests::shared::varve_binary;

/// Sampling period in nanoseconds: 1 / 20 Hz, less the thousandth by which the agent shortens it
/// (`agent/src/config.rs`).
const PERIOD_NS: f64 = 49_951_029.0;
/// Time for which the agent runs without a receiver. The agent makes a request every 5 s, so it spools several requests
/// in this time.
const AWAY: Duration = Duration::from_secs(17);
/// Longest time that an agent may take to send all requests of its spool.
const PATIENCE: Duration = Duration::from_secs(60);

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn start_agent(endpoint: &str, spool: &Path) -> Running {
    let [operations] = free_addresses::<1>();
    let mut command = Command::new(varve_binary());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VARVE_") || name.starts_with("OTEL_")) {
        command.env_remove(name);
    }
    command.args(["agent", "--endpoint", endpoint, "--http-listen", &operations, "--spool-dir"]).arg(spool);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Returns the sequence number and the number of samples of each spooled request, the oldest first. Both numbers are in
/// the name of the request's file.
fn spooled(spool: &Path) -> Vec<(u64, u64)> {
    let names = std::fs::read_dir(spool).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let parsed = |name: &str| {
        let (number, samples) = name.strip_suffix(".export")?.split_once('-')?;
        Some((u64::from_str_radix(number, 16).unwrap(), samples.parse().unwrap()))
    };
    let mut requests: Vec<_> = names.filter_map(|name| parsed(name.to_str().unwrap())).collect();
    requests.sort_unstable();
    requests
}

/// Runs an agent until its spool is empty.
fn deliver(endpoint: &str, spool: &Path, varve: &Varve) {
    let agent = start_agent(endpoint, spool);
    let started = Instant::now();
    while !spooled(spool).is_empty() {
        assert!(started.elapsed() < PATIENCE, "{:?} are still on disk: {}", spooled(spool), varve.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(agent);
}

#[test]
fn profiles_spooled_by_a_killed_agent_arrive_once() {
    let _alone = alone();
    let test = "agent_spool";
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let program = Program::compile(&format!("spooled_{}", std::process::id()), HOT_AND_COLD, &[]);
    // This varve has its ports, but does not run yet.
    let mut varve = Varve::prepare(Setup::default());
    let endpoint = format!("http://{}", varve.grpc);
    let spool = varve.folder().join("agent-spool");
    let began = now_s() - 1.0;
    let running = program.start(&[]);
    let agent = start_agent(&endpoint, &spool);
    std::thread::sleep(AWAY);
    // Both processes are killed when they are dropped.
    drop((agent, running));
    let killed = now_s();
    let requests = spooled(&spool);
    assert!(2 <= requests.len(), "only {requests:?} were spooled");
    assert!(requests.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0), "some are missing: {requests:?}");
    let (number, samples) = requests[0];
    let name = format!("{number:016x}-{samples}.export");
    let first = std::fs::read(spool.join(&name)).unwrap();

    varve.launch();
    deliver(&endpoint, &spool, &varve);
    let arrived = || {
        let graph = varve.flamegraph("process_cpu", (began, killed), "json", 1 << 20).expect(200).json();
        graph["total"].as_f64().unwrap() / PERIOD_NS
    };
    let samples: u64 = requests.iter().map(|(_, samples)| samples).sum();
    assert!((arrived() - samples as f64).abs() < 0.5, "{samples} samples were spooled, {} arrived", arrived());
    // Restores the file of the first request. The agent would leave this state if it was killed between the response
    // and the removal of the file.
    std::fs::write(spool.join(&name), first).unwrap();
    deliver(&endpoint, &spool, &varve);
    assert!((arrived() - samples as f64).abs() < 0.5, "{samples} samples were spooled, {} counted", arrived());
    let arrived = arrived();
    bpf_test_ran(test);
    figure(&json!({"suite": test, "requests": requests.len(), "samples": samples, "arrived": arrived}));
}
