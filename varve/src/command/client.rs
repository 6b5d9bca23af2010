//! Options of commands that query or change a running varve.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use proto::Tokens;

use super::time::Time;
use super::token_file;

/// The running varve to which a command sends its requests.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerOptions {
    /// URL of the HTTP API of a running varve
    #[arg(long, env = "VARVE_ENDPOINT", default_value = "http://127.0.0.1:4040", value_name = "URL")]
    pub(crate) endpoint: String,
    /// File whose first line is the bearer token to send
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = token_file::read)]
    pub(crate) token_file: Option<Tokens>,
}

/// Shortfalls that a query accepts from a cluster in which some members do not respond.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadOptions {
    /// Response if some shards do not answer: allow prints what there is, and a warning; refuse prints an error
    #[arg(long, default_value = "allow", value_parser = ["allow", "refuse"])]
    pub(crate) partial: String,
    /// State that is read: linearizable has everything acknowledged before the query; stale may lack the latest
    /// samples, but needs only one member of each shard
    #[arg(long, default_value = "linearizable", value_parser = ["linearizable", "stale"])]
    pub(crate) consistency: String,
}

impl ReadOptions {
    /// Returns the options as parameters of a request.
    pub(crate) fn parameters(&self) -> [(&'static str, String); 2] {
        [("partial", self.partial.clone()), ("consistency", self.consistency.clone())]
    }
}

/// Options of `varve query`.
#[derive(Clone, Debug, Args)]
pub(crate) struct QueryOptions {
    /// PromQL expression
    pub(crate) promql: String,
    /// Time of the query: RFC 3339, Unix seconds, or relative, such as now-1h [default: now]
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) time: Option<Time>,
    /// Output format
    #[arg(long, default_value = "table", value_parser = ["table", "json"])]
    pub(crate) format: String,
    #[command(flatten)]
    pub(crate) read: ReadOptions,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve flamegraph`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FlamegraphOptions {
    /// PromQL selector: a profile type and label matchers
    #[arg(default_value = "process_cpu")]
    pub(crate) selector: String,
    /// Start of the window: RFC 3339, Unix seconds, or relative, such as now-1h
    #[arg(long, value_name = "TIME", value_parser = Time::parse, conflicts_with = "range")]
    pub(crate) start: Option<Time>,
    /// End of the window, in the formats of --start [default: now]
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) end: Option<Time>,
    /// Length of the window, if --start is not given
    #[arg(long, default_value = "15m", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub(crate) range: Duration,
    /// Output format; table lists functions by self time
    #[arg(long, default_value = "table", value_parser = ["table", "folded", "json", "pprof"])]
    pub(crate) format: String,
    /// Frames of language interpreters, such as _PyEval_EvalFrameDefault: shown, or folded into the functions they run
    #[arg(long, default_value = "show", value_parser = ["show", "fold"])]
    pub(crate) interpreter: String,
    /// File to write, instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Maximum number of rows of the table, or of nodes of the other formats
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) read: ReadOptions,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve upload`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UploadOptions {
    /// ELF files (programs, libraries, .debug files), or directories that contain them
    #[arg(required = true, value_name = "FILE|DIRECTORY")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}
