//! Options of the agent, alone or within `varve up`, and of recordings.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};

use super::token_file::WatchedFile;

#[derive(Clone, Debug, Args)]
pub(crate) struct SamplingOptions {
    /// Number of samples per second on each CPU
    #[arg(long, env = "VARVE_FREQUENCY_HZ", default_value_t = 20, value_name = "HZ")]
    pub(crate) frequency_hz: u32,
    /// Also record where threads wait (for locks, disks, the network, timers), as profile type off_cpu
    #[arg(long, env = "VARVE_OFF_CPU")]
    pub(crate) off_cpu: bool,
    /// Add the types of parameters to the names of Java methods: String.indexOf(String, int)
    #[arg(long, env = "VARVE_JAVA_PARAMETERS")]
    pub(crate) java_parameters: bool,
    /// Environment variables of each process that become labels of its profiles: REGION becomes
    /// process_environment_variable_REGION
    #[arg(long, env = "VARVE_ENVIRONMENT_VARIABLES", value_delimiter = ',', value_name = "NAME,...")]
    pub(crate) environment_variables: Vec<String>,
}

/// Subcommands of `varve agent`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AgentCommands {
    /// Tests all requirements of an agent on this host, and prints what is missing, why, and what to do
    ///
    /// Fails if this host cannot be sampled.
    Doctor,
    /// Samples this host for a while and writes a file: pprof, folded stacks or OTLP
    ///
    /// Example: varve agent record -o profile.pb.gz --duration 30s
    Record(RecordOptions),
}

/// Options of `varve agent`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgentRoleOptions {
    #[command(subcommand)]
    pub(crate) command: Option<AgentCommands>,
    /// URL of the OTLP/gRPC receiver to which the profiles are sent
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", default_value = "http://127.0.0.1:4317", value_name = "URL")]
    pub(crate) endpoint: String,
    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
    /// Compression of the profiles that are sent
    #[arg(long, env = "VARVE_COMPRESSION", default_value = "gzip", value_parser = ["gzip", "zstd"])]
    pub(crate) compression: String,
    /// File whose first line is the bearer token to send; a new token in it is used within a second
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = WatchedFile::read)]
    pub(crate) token_file: Option<WatchedFile>,
    /// Address of /healthz, /ready and /metrics
    #[arg(long, env = "VARVE_HTTP_LISTEN", default_value = "127.0.0.1:4043", value_name = "ADDR:PORT")]
    pub(crate) http_listen: SocketAddr,
    /// Spool directory of one agent, for profiles that wait for the receiver; created if it does not exist [default:
    /// /var/lib/varve-agent for root, else varve-agent in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, env = "VARVE_SPOOL_DIR", value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,
    /// Cap on the disk space of the spool; beyond it the oldest profiles are dropped. 0: profiles wait in memory only
    #[arg(long, env = "VARVE_SPOOL_BYTES_MAX", default_value = "256MiB", value_name = "SIZE")]
    pub(crate) spool_bytes_max: ByteSize,
}

/// Format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// An OTLP ExportProfilesServiceRequest in protobuf: every sample with its time and CPU; the receiver names native
    /// frames
    Otlp,
    /// A gzipped profile.proto: stacks with functions, files, lines and inlined calls, by process and thread; with
    /// --off-cpu also their waits
    Pprof,
    /// Lines `process;root;...;leaf nanoseconds`; with --off-cpu only waits
    Folded,
}

impl Format {
    /// Returns the format that belongs to the extension of a file name; `None` if the extension is unknown.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let endings = [
            (".otlp", Self::Otlp),
            (".pb.gz", Self::Pprof),
            (".pprof", Self::Pprof),
            (".folded", Self::Folded),
            (".txt", Self::Folded),
        ];
        let name = path.file_name()?.to_string_lossy();
        endings.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }
}

/// Options of `varve agent record`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordOptions {
    /// File to write; it appears when it is complete, and replaces an existing file of this name. Its extension is the
    /// format: .pb.gz or .pprof for `go tool pprof`, .folded or .txt for flame graph tools, .otlp for OTLP receivers
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Format of the file [default: by the extension]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// Duration of the sampling, such as 30s or 2m; Ctrl-C ends it earlier and writes the samples so far
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub(crate) duration: Duration,
    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("must be longer than 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_of_a_file_is_its_format() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!(of("/tmp/a.pb.gz"), Some(Format::Pprof));
        assert_eq!((of("a.pprof"), of("a.folded")), (Some(Format::Pprof), Some(Format::Folded)));
        assert_eq!((of("a.txt"), of("a.otlp")), (Some(Format::Folded), Some(Format::Otlp)));
        // The extension .pb is refused, because it could mean OTLP or pprof.
        assert_eq!((of("a.pb"), of("a.gz"), of("otlp"), of("/")), (None, None, None, None));
    }

    #[test]
    fn a_recording_needs_a_duration() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("0s").is_err() && duration("10").is_err());
    }
}
