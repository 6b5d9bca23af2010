//! The cost of sampling, measured with a fixed mixed load ([`load`]).
//!
//! The load runs alone, with the agent, and with the agent and `--off-cpu`, in turn. A machine that becomes slower or
//! faster therefore affects all three measurements alike. The run time of a BPF program counts as CPU time of the
//! interrupted program, and not of the agent. The BPF run time is therefore measured separately ([`cost`]).

mod cost;
mod load;
mod sink;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::process::Group;
use crate::report::{Report, rounded};
use crate::system::Client;
use cost::Bpf;
pub(crate) use load::{Arguments as LoadArguments, run as run_load};
use load::{LOADS, Loads};
use sink::{Counts, Sink};

/// Longest time that an agent may take from its start to its first export. An agent exports every five seconds.
const FIRST_EXPORT_MAX: Duration = Duration::from_secs(15);
/// Time for which the load runs before the measurement, so that the agent has built the unwind tables of all programs.
const WARM_UP: Duration = Duration::from_secs(4);
/// Longest time that the agent may take to exit after SIGTERM. Then it is killed.
const END_MAX: Duration = Duration::from_secs(20);
const MB: f64 = 1e6;

/// Measures the cost of the agent: CPU, BPF, memory, start-up, and the slowdown of a load.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// varve binary whose agent is measured [default: the one beside this program]
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Number of rounds. A round measures the load alone, with the agent, and with the agent and --off-cpu
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Sampling frequency of the agent: samples per second on each CPU
    #[arg(long, default_value_t = 20)]
    frequency_hz: u32,
    /// Also writes the figures to bench/results/DATE-NAME.json
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
}

/// Kind of a measurement. It determines the processes that run together with the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    Agent,
    OffCpu,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Alone => "load alone",
            Self::Agent => "agent",
            Self::OffCpu => "agent --off-cpu",
        }
    }
}

/// Figures of one measurement, in which the load runs for some seconds.
#[derive(Debug)]
struct Segment {
    kind: Kind,
    /// Iterations per second of each load program, in the order of [`LOADS`].
    throughput: Vec<f64>,
    seconds: f64,
    agent: Option<Cost>,
}

/// Figures of the agent in one measurement.
#[derive(Debug)]
struct Cost {
    start_up: Duration,
    first_export: Duration,
    cpu: Duration,
    bpf: Duration,
    rss_mean_bytes: u64,
    rss_peak_bytes: u64,
    map_bytes: u64,
    unwind_tables: f64,
    evictions: f64,
    counts: Counts,
}

/// Runs all measurements. Prints the figures of each measurement when it ends.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = crate::process::varve_binary(arguments.binary.as_deref())?;
    ensure!(0 < arguments.rounds && 0 < arguments.seconds, "there is nothing to measure");
    let mut report = Report::start(Some(&binary), Path::new("/"), arguments.save.as_deref())?;
    let rounds = (0..arguments.rounds).flat_map(|_| [Kind::Alone, Kind::Agent, Kind::OffCpu]);
    let mut segments = Vec::new();
    for kind in rounds.chain([Kind::Alone]) {
        let segment = measure(&binary, kind, arguments)?;
        report.add("segment", figures(&[&segment]))?;
        segments.push(segment);
    }
    for kind in [Kind::Agent, Kind::OffCpu] {
        let of = |kind: Kind| segments.iter().filter(|segment| segment.kind == kind).collect::<Vec<_>>();
        let mut summary = figures(&of(kind));
        summary["throughput_part"] = json!(throughput_part(&of(kind), &of(Kind::Alone)));
        report.add("cost", summary)?;
    }
    report.finish()
}

fn measure(binary: &Path, kind: Kind, arguments: &Arguments) -> anyhow::Result<Segment> {
    let bpf = Bpf::before()?;
    let agent = if kind == Kind::Alone { None } else { Some(RunningAgent::start(binary, kind, arguments)?) };
    let mut loads = Loads::start()?;
    sleep(WARM_UP);
    loads.count()?;
    let began = Instant::now();
    let from = unix_ns()?;
    let before = agent.as_ref().map(|agent| anyhow::Ok((cost::cpu_time(agent.pid())?, bpf.run_time()))).transpose()?;
    let mut rss = Vec::new();
    let end = began + Duration::from_secs(arguments.seconds);
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
    {
        sleep(left.min(Duration::from_secs(1)));
        if let Some(agent) = &agent {
            rss.push(cost::memory(agent.pid())?.0);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let Some((agent, (cpu, bpf_before))) = agent.zip(before) else {
        return Ok(Segment { kind, throughput: loads.end()?, seconds, agent: None });
    };
    let cpu = cost::cpu_time(agent.pid())?.saturating_sub(cpu);
    let bpf_time = bpf.run_time().saturating_sub(bpf_before);
    let span = from..unix_ns()?;
    let throughput = loads.end()?;
    let (map_bytes, (_, rss_peak_bytes)) = (bpf.map_bytes(), cost::memory(agent.pid())?);
    let cost = Cost {
        start_up: agent.start_up,
        first_export: agent.first_export,
        cpu,
        bpf: bpf_time,
        rss_mean_bytes: rss.iter().sum::<u64>() / rss.len() as u64,
        rss_peak_bytes,
        map_bytes,
        unwind_tables: agent.metric("unwind_tables")?,
        evictions: agent.metric("unwind_tables_evicted_total")?,
        counts: agent.end()?.count(&span)?,
    };
    Ok(Segment { kind, throughput, seconds, agent: Some(cost) })
}

/// A running agent that has sent its first export. It is started before the load, while the machine is idle.
struct RunningAgent {
    process: Group,
    sink: Sink,
    http: String,
    start_up: Duration,
    first_export: Duration,
}

impl RunningAgent {
    fn start(binary: &Path, kind: Kind, arguments: &Arguments) -> anyhow::Result<Self> {
        let sink = Sink::start()?;
        let http = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut command = Command::new(binary);
        command.args(["agent", "--endpoint", &sink.endpoint, "--http-listen", &http, "--spool-bytes-max", "0"]);
        command.args(["--frequency-hz", &arguments.frequency_hz.to_string()]);
        command.args((kind == Kind::OffCpu).then_some("--off-cpu"));
        // The environment of this shell must not configure the agent.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VARVE_")) {
            command.env_remove(name);
        }
        let began = Instant::now();
        let mut process = Group::start(command.stderr(Stdio::null()))?;
        loop {
            if let Some(came) = sink.first() {
                let start_up = cost::cpu_time(process.0.id())?;
                return Ok(Self { process, sink, http, start_up, first_export: came - began });
            }
            if let Some(status) = process.0.try_wait()? {
                bail!("the agent ended with {status}; `varve agent doctor` says what it needs");
            }
            ensure!(began.elapsed() < FIRST_EXPORT_MAX, "the agent sent nothing for {FIRST_EXPORT_MAX:?}");
            sleep(Duration::from_millis(10));
        }
    }

    fn pid(&self) -> u32 {
        self.process.0.id()
    }

    fn metric(&self, name_end: &str) -> anyhow::Result<f64> {
        Client::new().metric(&self.http, name_end)
    }

    /// Stops the agent, which sends its remaining samples before it exits. Returns the sink, which has all requests of
    /// the agent.
    fn end(mut self) -> anyhow::Result<Sink> {
        self.process.end(END_MAX)?;
        Ok(self.sink)
    }
}

/// Combines the segments of one kind into one set of figures. Of values that are read once per segment, such as
/// start-up time and peak memory, it has the maximum. Of values over time, such as CPU time, it has the mean. Samples
/// and waits are added up.
fn figures(segments: &[&Segment]) -> Value {
    let kind = segments.first().map_or("", |segment| segment.kind.name());
    let mean = |load: usize| segments.iter().map(|of| of.throughput[load]).sum::<f64>() / segments.len() as f64;
    let names = LOADS.iter().enumerate().map(|(load, role)| (format!("{role:?}").to_lowercase(), mean(load)));
    let iterations: serde_json::Map<_, _> = names.map(|(name, mean)| (name, json!(rounded(mean)))).collect();
    let seconds: f64 = segments.iter().map(|segment| segment.seconds).sum();
    let mut figures = json!({"kind": kind, "seconds": rounded(seconds), "iterations_per_s": iterations});
    let costs: Vec<&Cost> = segments.iter().filter_map(|segment| segment.agent.as_ref()).collect();
    if costs.is_empty() {
        return figures;
    }
    let sum = |value: fn(&Cost) -> f64| costs.iter().map(|cost| value(cost)).sum::<f64>();
    let max = |value: fn(&Cost) -> f64| costs.iter().map(|cost| value(cost)).fold(0.0, f64::max);
    let samples = sum(|cost| cost.counts.samples as f64);
    let more = [
        ("cpu_percent_of_one", rounded(100.0 * sum(|cost| cost.cpu.as_secs_f64()) / seconds)),
        ("bpf_us_per_sample", rounded(1e6 * sum(|cost| cost.bpf.as_secs_f64()) / samples)),
        ("bpf_percent_of_one_cpu", rounded(100.0 * sum(|cost| cost.bpf.as_secs_f64()) / seconds)),
        ("start_up_cpu_s", rounded(max(|cost| cost.start_up.as_secs_f64()))),
        ("first_export_s", rounded(max(|cost| cost.first_export.as_secs_f64()))),
        ("rss_steady_mb", rounded(sum(|cost| cost.rss_mean_bytes as f64) / costs.len() as f64 / MB)),
        ("rss_peak_mb", rounded(max(|cost| cost.rss_peak_bytes as f64) / MB)),
        ("map_mb", rounded(max(|cost| cost.map_bytes as f64) / MB)),
        ("unwind_tables", max(|cost| cost.unwind_tables)),
        ("evictions", max(|cost| cost.evictions)),
        ("samples", samples),
        ("user_stacks_whole_percent", {
            let whole = sum(|cost| cost.counts.whole as f64);
            let user = sum(|cost| cost.counts.user as f64);
            (10_000.0 * whole / user).round() / 100.0
        }),
        ("waits", sum(|cost| cost.counts.waits as f64)),
    ];
    more.into_iter().for_each(|(name, value)| figures[name] = json!(value));
    figures
}

/// Returns the throughput of the load with the agent, divided by its throughput without the agent. This is the
/// geometric mean over the two load programs that use all the CPU time that they get.
fn throughput_part(with: &[&Segment], without: &[&Segment]) -> f64 {
    const BUSY: usize = 2;
    let mean = |segments: &[&Segment], load: usize| {
        segments.iter().map(|segment| segment.throughput[load].ln()).sum::<f64>() / segments.len() as f64
    };
    let differences = (0..BUSY).map(|load| mean(with, load) - mean(without, load)).sum::<f64>();
    ((differences / BUSY as f64).exp() * 10_000.0).round() / 10_000.0
}

fn unix_ns() -> anyhow::Result<u64> {
    Ok(u64::try_from(SystemTime::UNIX_EPOCH.elapsed()?.as_nanos())?)
}
