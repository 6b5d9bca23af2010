//! Benchmarks of a running varve, of its parts, and of the agent.
//!
//! - [`corpus`]: stacks, times and threads that varve's agent recorded. [`generator`]: a synthetic fleet that plays
//!   these recordings.
//! - [`system`]: measurements of a running varve. [`engine`]: measurements of parts of varve, in this process.
//!   [`agent`]: measurements of the cost of sampling.
//! - [`report`]: figures as JSON lines.

mod agent;
mod corpus;
mod engine;
mod generator;
mod process;
mod report;
mod system;

use std::process::ExitCode;

use clap::Parser;

use crate::corpus::record;
use crate::engine::{flamegraph, node, select, statistics, storage};
use crate::system::{cluster, series, up};

/// Benchmarks of varve; prints figures as JSON lines.
#[derive(Debug, Parser)]
enum Command {
    /// Measures a running varve: ingest (1 client, open loop, 32 clients), restart, queries
    Up(up::Arguments),
    /// Measures what replication costs: `varve up`, a cluster of one node and one of three, with the same samples
    Cluster(cluster::Arguments),
    /// Measures the storage engine: bytes per sample, CPU time to apply batches, time of flushes
    Storage(storage::Arguments),
    /// Measures a chart (series by pod in 15 s steps), of samples in memory and of sealed samples
    Series(series::Arguments),
    /// Measures a node without a router: appends per second, restart, disk use under lasting load
    Node(node::Arguments),
    /// Measures selections, which are queries to the storage engine: flame graphs and series
    Select(select::Arguments),
    /// Measures the work of a router for a flame graph: naming, merging, pruning, writing
    Flamegraph(flamegraph::Arguments),
    /// Measures the cost of the agent: CPU, BPF, memory, start-up, and the slowdown of a load
    Agent(agent::Arguments),
    /// Runs one of the load programs of `bench agent`; not for direct use
    #[command(hide = true)]
    AgentLoad(agent::LoadArguments),
    /// Prints statistics of a mix of recorded programs: stacks, threads, times, entropies
    Statistics(statistics::Arguments),
    /// Records a program with varve's agent into a corpus file (see bench/record-corpora)
    Record(record::Arguments),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Up(arguments) => up::run(&arguments),
        Command::Cluster(arguments) => cluster::run(&arguments),
        Command::Storage(arguments) => storage::run(&arguments),
        Command::Series(arguments) => series::run(&arguments),
        Command::Node(arguments) => node::run(&arguments),
        Command::Select(arguments) => select::run(&arguments),
        Command::Flamegraph(arguments) => flamegraph::run(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::AgentLoad(arguments) => agent::run_load(&arguments),
        Command::Statistics(arguments) => statistics::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
