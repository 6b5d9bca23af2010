//! The command line. Every option of a role is a flag, an environment variable and a key of the TOML file, of the same name (an
//! agent's endpoint has OpenTelemetry's variable); the flag wins over the environment, that over the file, that over the default.

mod agent_options;
mod time;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytesize::ByteSize;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use proto::Tokens;

use crate::config_file::{self, ConfigFile};
use crate::token_file;

pub(crate) use agent_options::{AgentCommands, AgentRoleOptions, Format, RecordOptions, SamplingOptions};
pub(crate) use time::Time;

/// Fleet-wide continuous profiling: record which line of which program spends CPU, keep it, ask in PromQL.
///
/// `varve up` runs everything on this host; open http://127.0.0.1:4040/ then.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 110)]
struct CommandLine {
    /// TOML file with options, for example: http-listen = "127.0.0.1:4040"
    #[arg(long, env = "VARVE_CONFIG", global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    /// Runs node, router and agent in one process: everything, on this host.
    Up(UpOptions),
    /// Runs a node: keeps profiles on disk. Routers reach it on --node-listen.
    Node(NodeRoleOptions),
    /// Runs a router: takes pushes in and answers queries, from the node at --node-endpoint.
    Router(RouterRoleOptions),
    /// Runs an agent: samples every CPU of this host with BPF and sends OTLP profiles to --endpoint. Needs root, or the
    /// capabilities that `make run` gives the binary: `varve agent doctor` says what this host lacks. `varve agent record` writes a file
    /// instead.
    #[command(args_conflicts_with_subcommands = true)]
    Agent(AgentRoleOptions),
    /// Asks a running varve in PromQL, for example: varve query 'topk(10, sum by (leaf_function) (rate(process_cpu[5m])))'
    Query(QueryOptions),
    /// Prints the stacks of a selector, for example: varve flamegraph 'process_cpu{service_name="api"}' --format folded
    Flamegraph(FlamegraphOptions),
    /// Sends debug files (programs, libraries, .debug files), so that frames of their build IDs get names.
    Upload(UploadOptions),
    /// Looks after the data of a running varve: settle, stats, verify, clock, delete.
    #[command(subcommand)]
    Admin(AdminCommands),
    /// Prints the effective options of `varve up`, as a TOML file that --config reads.
    Config(UpOptions),
}

/// Subcommands of `varve admin`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AdminCommands {
    /// Seals all samples, builds every rollup whose time is over, compacts, and cuts the Raft log. Returns when that is done: what
    /// `du -sb DATA-DIR` says then is what the samples cost.
    Settle(AdminOptions),
    /// Prints what each part of the data takes, to the byte: sections, tiers, dictionaries, bytes per sample.
    Stats(AdminOptions),
    /// Reads everything on disk again and checks it: checksums, references, sums against samples, rollups against what they were
    /// made of. Fails if anything is wrong, and says which key.
    Verify(AdminOptions),
    /// Prints the system clock, the time that retention counts from, and how they differ. Retention does not follow a system clock
    /// that jumps ahead by more than a day, or an eighth of the retention, until --accept confirms it or a time server keeps it.
    Clock(ClockOptions),
    /// Deletes the samples of matching series, for good, for example: varve admin delete 'process_cpu{service_name="api"}' --start
    /// 2026-01-01T00:00:00Z --end 2026-01-02T00:00:00Z
    Delete(DeleteOptions),
}

/// Options of `varve admin delete`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteOptions {
    /// A PromQL selector of series, by their labels
    pub(crate) selector: String,
    /// Start of the window, not included: RFC 3339, Unix seconds, now, or for example now-1h
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) start: Time,
    /// End of the window, included
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) end: Time,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve admin clock`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClockOptions {
    /// Accept the system clock as it is: retention counts from it, and drops for good what is too old by it
    #[arg(long)]
    pub(crate) accept: bool,
    #[command(flatten)]
    pub(crate) admin: AdminOptions,
}

/// Options of `varve admin`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminOptions {
    /// table or json
    #[arg(long, default_value = "table", value_parser = ["table", "json"])]
    pub(crate) format: String,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// What is to be done.
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
    /// The text to print.
    Config(String),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct DataOptions {
    /// Where the data is kept; made if it is not there
    #[arg(long, env = "VARVE_DATA_DIR", default_value = "./varve-data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StorageOptions {
    /// How long every sample is kept with its own time and attributes; older pushes are refused
    #[arg(long, env = "VARVE_RETENTION", default_value = "30d", value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) retention: Duration,
    /// How long sums of minutes are kept, at least as long as samples
    #[arg(long = "retention-1m", env = "VARVE_RETENTION_1M", default_value = "90d", value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) retention_1m: Duration,
    /// How long sums of hours are kept
    #[arg(long = "retention-1h", env = "VARVE_RETENTION_1H", default_value = "1y", value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) retention_1h: Duration,
    /// How long sums of days are kept
    #[arg(long = "retention-1d", env = "VARVE_RETENTION_1D", default_value = "5y", value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) retention_1d: Duration,
    /// Most disk space that profiles take; near it the oldest are dropped
    #[arg(long, env = "VARVE_DISK_MAX", default_value = "20GiB", value_name = "SIZE")]
    pub(crate) disk_max: ByteSize,
    /// Where routers reach the node (gRPC)
    #[arg(long, env = "VARVE_NODE_LISTEN", default_value = "127.0.0.1:4041", value_name = "ADDR:PORT")]
    pub(crate) node_listen: SocketAddr,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RouterOptions {
    /// The page and the HTTP API
    #[arg(long, env = "VARVE_HTTP_LISTEN", default_value = "127.0.0.1:4040", value_name = "ADDR:PORT")]
    pub(crate) http_listen: SocketAddr,
    /// OTLP profiles over gRPC
    #[arg(long, env = "VARVE_OTLP_GRPC_LISTEN", default_value = "127.0.0.1:4317", value_name = "ADDR:PORT")]
    pub(crate) otlp_grpc_listen: SocketAddr,
    /// OTLP profiles over HTTP
    #[arg(long, env = "VARVE_OTLP_HTTP_LISTEN", default_value = "127.0.0.1:4318", value_name = "ADDR:PORT")]
    pub(crate) otlp_http_listen: SocketAddr,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AccessOptions {
    /// File with bearer tokens, one per line: pushes and reads need one of them; a router sends the first to its node
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = token_file::read)]
    pub(crate) token_file: Option<Tokens>,
    /// Listen beyond loopback without a token: everybody who reaches the port may read and write
    #[arg(long, env = "VARVE_INSECURE_LISTEN")]
    pub(crate) insecure_listen: bool,
}

/// Options of `varve up`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) data: DataOptions,
    #[command(flatten)]
    pub(crate) router: RouterOptions,
    #[command(flatten)]
    pub(crate) storage: StorageOptions,
    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
    /// Do not sample this host
    #[arg(long, env = "VARVE_NO_AGENT")]
    pub(crate) no_agent: bool,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

/// Options of `varve node`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeRoleOptions {
    #[command(flatten)]
    pub(crate) data: DataOptions,
    #[command(flatten)]
    pub(crate) storage: StorageOptions,
    /// /healthz, /ready and /metrics
    #[arg(long, env = "VARVE_HTTP_LISTEN", default_value = "127.0.0.1:4042", value_name = "ADDR:PORT")]
    pub(crate) http_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

/// Options of `varve router`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RouterRoleOptions {
    /// Where symbol tables are kept; made if it is not there
    #[arg(long, env = "VARVE_DATA_DIR", default_value = "./varve-router-data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) router: RouterOptions,
    /// The node
    #[arg(long, env = "VARVE_NODE_ENDPOINT", default_value = "http://127.0.0.1:4041", value_name = "URL")]
    pub(crate) node_endpoint: String,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ServerOptions {
    /// The varve to ask
    #[arg(long, env = "VARVE_ENDPOINT", default_value = "http://127.0.0.1:4040", value_name = "URL")]
    pub(crate) endpoint: String,
    /// File whose first token is sent as bearer token
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = token_file::read)]
    pub(crate) token_file: Option<Tokens>,
}

/// Options of `varve query`.
#[derive(Clone, Debug, Args)]
pub(crate) struct QueryOptions {
    /// PromQL
    pub(crate) promql: String,
    /// Time of the query: RFC 3339, Unix seconds, or for example now-1h [default: now]
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) time: Option<Time>,
    /// table or json
    #[arg(long, default_value = "table", value_parser = ["table", "json"])]
    pub(crate) format: String,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve flamegraph`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FlamegraphOptions {
    /// A PromQL selector
    #[arg(default_value = "process_cpu")]
    pub(crate) selector: String,
    /// Start of the window: RFC 3339, Unix seconds, or for example now-1h
    #[arg(long, value_name = "TIME", value_parser = Time::parse, conflicts_with = "range")]
    pub(crate) start: Option<Time>,
    /// End of the window, as --start [default: now]
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) end: Option<Time>,
    /// Length of the window, where --start is not given
    #[arg(long, default_value = "15m", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub(crate) range: Duration,
    /// table (functions by self time), folded, json or pprof
    #[arg(long, default_value = "table", value_parser = ["table", "folded", "json", "pprof"])]
    pub(crate) format: String,
    /// File to write instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Rows of the table, nodes of the rest
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve upload`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UploadOptions {
    /// Programs, libraries and .debug files (ELF), and directories: all such files in them
    #[arg(required = true, value_name = "FILE|DIRECTORY")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Parses the command line, with the file's values as defaults. `--help` and wrong usage end the process here.
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
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_option_of_a_role_has_an_environment_variable_of_its_name() {
        for role in ["up", "node", "router", "agent"] {
            let command = CommandLine::command();
            let role = command.find_subcommand(role).unwrap();
            for argument in role.get_arguments().filter(|argument| argument.get_id() != "help") {
                let name = argument.get_long().unwrap().replace('-', "_").to_uppercase();
                let variable = argument.get_env().unwrap().to_str().unwrap();
                // OpenTelemetry's name, which every exporter reads.
                let wanted =
                    if name == "ENDPOINT" { "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned() } else { format!("VARVE_{name}") };
                assert_eq!(variable, wanted);
            }
        }
    }

    #[test]
    fn what_is_printed_as_effective_is_read_back_the_same() {
        let read = |text: &str| {
            let file = ConfigFile::parse("test", text).unwrap();
            let matches = file.into_defaults(CommandLine::command()).unwrap().get_matches_from(["varve", "config"]);
            config_file::effective(&CommandLine::command(), matches.subcommand().unwrap().1)
        };
        let changed = "http-listen = \"127.0.0.1:1\"\nfrequency-hz = 97\nno-agent = true\nretention = \"1h\"\n";
        let effective = read(changed);
        for line in changed.lines() {
            assert!(effective.lines().any(|printed| printed == line), "{line} is not in:\n{effective}");
        }
        assert_eq!(read(&effective), effective);
    }

    #[test]
    fn a_files_endpoint_is_the_agents_and_not_the_one_that_clients_ask() {
        let endpoint = |arguments: &[&str]| {
            let file = ConfigFile::parse("test", "endpoint = \"http://collector:4317\"").unwrap();
            let command = file.into_defaults(CommandLine::command()).unwrap();
            match CommandLine::from_arg_matches(&command.get_matches_from(arguments)).unwrap().command {
                Commands::Agent(options) => options.endpoint,
                Commands::Query(options) => options.server.endpoint,
                _ => panic!(),
            }
        };
        assert_eq!(endpoint(&["varve", "agent"]), "http://collector:4317");
        assert_eq!(endpoint(&["varve", "query", "up"]), "http://127.0.0.1:4040");
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let file = ConfigFile::parse("test", "frequency-hz = 97").unwrap();
        let command = file.into_defaults(CommandLine::command()).unwrap();
        let matches = command.get_matches_from(["varve", "up", "--frequency-hz", "5"]);
        let Commands::Up(options) = CommandLine::from_arg_matches(&matches).unwrap().command else { panic!() };
        assert_eq!(options.sampling.frequency_hz, 5);
    }

    #[test]
    fn a_recording_has_the_files_values_too() {
        let file = ConfigFile::parse("test", "frequency-hz = 97").unwrap();
        let command = file.into_defaults(CommandLine::command()).unwrap();
        let matches = command.get_matches_from(["varve", "agent", "record", "-o", "x.folded"]);
        let Commands::Agent(options) = CommandLine::from_arg_matches(&matches).unwrap().command else { panic!() };
        let Some(AgentCommands::Record(options)) = options.command else { panic!() };
        assert_eq!(options.sampling.frequency_hz, 97);
    }

    #[test]
    fn an_unknown_key_or_a_value_that_is_no_option_is_refused_by_name() {
        let error = |text: &str| {
            let file = ConfigFile::parse("varve.toml", text);
            file.and_then(|file| file.into_defaults(CommandLine::command())).unwrap_err().to_string()
        };
        assert!(error("http_listen = \"x\"").contains("http_listen"), "{}", error("http_listen = \"x\""));
        assert!(error("frequency-hz = [1]").contains("frequency-hz"));
        assert!(error("duration = \"1m\"").contains("duration"), "a recording's, and no role's");
        assert!(error("frequency-hz = ").contains("varve.toml"));
    }
}
