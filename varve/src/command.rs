//! The command line.
//!
//! Every option of a role is a flag, an environment variable and a key of the TOML file, with the same name. There is
//! one exception: the agent's endpoint has OpenTelemetry's environment variable. The flag takes precedence over the
//! environment, the environment over the file, and the file over the default.

mod admin;
mod agent;
mod client;
mod cluster_admin;
mod cluster_members;
mod config_file;
mod epoch;
mod role;
mod time;
mod token_file;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::config_file::ConfigFile;

pub(crate) use admin::{AdminCommands, AdminOptions, CertsOptions, ClockOptions, DeleteOptions};
pub(crate) use agent::{AgentCommands, AgentRoleOptions, Format, RecordOptions, SamplingOptions};
pub(crate) use client::{FlamegraphOptions, QueryOptions, ServerOptions, UploadOptions};
pub(crate) use cluster_admin::{
    ChangeOptions, ClusterCommands, ClusterOptions, CreateTokenOptions, DeleteTenantOptions, LabelNames, Limit,
    NodeOptions, PolicyOptions, Resolution, RevokeTokenOptions, ShowTenantOptions, TenantCommands, TokenCommands,
};
pub(crate) use cluster_members::{AcceptOptions, AddShardsOptions, MoveOptions};
pub(crate) use epoch::{EpochOptions, Shards};
pub(crate) use role::{
    AccessOptions, DataOptions, NodeRoleOptions, PeerOptions, RouterOptions, RouterRoleOptions, StorageOptions,
    TlsOptions, UpOptions,
};
pub(crate) use time::Time;

/// Fleet-wide continuous profiling: samples the stacks of every program on many hosts, stores them, and serves PromQL
///
/// `varve up` runs everything on this host. Then open http://127.0.0.1:4040/.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110, after_help = EXAMPLES)]
struct CommandLine {
    /// TOML file with options, such as: http-listen = "127.0.0.1:4040"
    #[arg(long, env = "VARVE_CONFIG", global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Commands,
}

/// Examples that follow the help of `varve`.
const EXAMPLES: &str = "\
Examples:
  varve up                                            Everything on this host
  varve query 'sum by (service_name) (rate(process_cpu[5m]))'
                                                      CPU cores of each service
  varve flamegraph 'process_cpu{service_name=\"api\"}'  Functions of one service by CPU time
  varve agent record -o profile.pb.gz --duration 30s  A recording of this host, without a server";

#[derive(Debug, Subcommand)]
enum Commands {
    /// Runs node, router and agent in one process: everything, on this host
    Up(UpOptions),
    /// Runs a node, which stores profiles on disk and serves routers
    Node(NodeRoleOptions),
    /// Runs a router, which receives profiles and serves queries; a node stores the data
    Router(RouterRoleOptions),
    /// Runs an agent, which samples every CPU of this host with BPF and sends OTLP profiles
    ///
    /// An agent needs root, or the capabilities that `make run` gives the binary: `varve agent doctor` lists missing
    /// ones. `varve agent record` writes a file instead of sending.
    #[command(args_conflicts_with_subcommands = true)]
    Agent(AgentRoleOptions),
    /// Evaluates a PromQL expression on a running varve
    ///
    /// Example: varve query 'topk(10, sum by (leaf_function) (rate(process_cpu[5m])))'
    Query(QueryOptions),
    /// Prints the flame graph of a selector, as a table, folded stacks, JSON or pprof
    ///
    /// Example: varve flamegraph 'process_cpu{service_name="api"}' --format folded
    Flamegraph(FlamegraphOptions),
    /// Uploads debug files (programs, libraries, .debug files), so that frames with the same build ID get names
    Upload(UploadOptions),
    /// Maintains data, and administers tenants, tokens, certificates and the cluster
    #[command(subcommand)]
    Admin(AdminCommands),
    /// Prints the effective options of `varve up`, as a TOML file for --config
    Config(UpOptions),
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) enum Command {
    Up(UpOptions),
    Node(NodeRoleOptions),
    Router(RouterRoleOptions),
    Agent(AgentRoleOptions),
    Query(QueryOptions),
    Flamegraph(FlamegraphOptions),
    Upload(UploadOptions),
    Admin(AdminCommands),
    /// Prints the effective options. The text is a config file with these options.
    Config(String),
}

/// Parses the command line, with the values of the config file as defaults. After `--help`, `--version` or wrong usage,
/// ends the process.
pub(crate) fn parse() -> anyhow::Result<Command> {
    let file = ConfigFile::read(config_file::path_from_arguments(std::env::args_os()))?;
    let command = file.into_defaults(CommandLine::command())?;
    let matches = command.get_matches();
    let parsed = CommandLine::from_arg_matches(&matches).context("command line")?;
    Ok(match parsed.command {
        Commands::Up(options) => Command::Up(options),
        Commands::Node(options) => Command::Node(options),
        Commands::Router(options) => Command::Router(options),
        Commands::Agent(options) => Command::Agent(options),
        Commands::Query(options) => Command::Query(options),
        Commands::Flamegraph(options) => Command::Flamegraph(options),
        Commands::Upload(options) => Command::Upload(options),
        Commands::Admin(command) => Command::Admin(command),
        Commands::Config(_) => {
            let matches = matches.subcommand().map(|(_, matches)| matches).context("subcommand")?;
            Command::Config(config_file::effective(&CommandLine::command(), matches))
        }
    })
}

#[cfg(test)]
mod tests;
