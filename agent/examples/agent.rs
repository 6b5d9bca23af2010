//! The agent alone, for benchmarks: samples this host until SIGTERM or Ctrl-C.

use agent::{Compression, Config, Status, Token};
use anyhow::Result;
use clap::Parser;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
struct Arguments {
    /// Where to send, http://host:port.
    #[arg(long, default_value = "http://127.0.0.1:4317")]
    endpoint: String,
    /// Samples a second and CPU.
    #[arg(long, default_value_t = 20)]
    frequency_hz: u32,
    /// Record waits of threads, too.
    #[arg(long)]
    off_cpu: bool,
    /// Bearer token to send.
    #[arg(long)]
    token: Option<String>,
    /// Compress with zstd instead of gzip.
    #[arg(long)]
    zstd: bool,
    /// Where requests wait that cannot be sent at once.
    #[arg(long)]
    spool_dir: Option<std::path::PathBuf>,
}

fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments = Arguments::parse();
    let config = Config {
        endpoint: arguments.endpoint,
        frequency_hz: arguments.frequency_hz,
        off_cpu: arguments.off_cpu,
        environment_variables: Vec::new(),
        token: arguments.token.map(Token::new),
        compression: if arguments.zstd { Compression::Zstd } else { Compression::Gzip },
        spool: arguments.spool_dir.map(|dir| agent::SpoolConfig { dir, bytes_max: 256 << 20 }),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let on_signal = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            on_signal.cancel();
        });
        let status = Status::new(&mut Registry::default());
        let result = agent::run(config, shutdown, status.clone()).await;
        tracing::info!(?result, status = ?status.snapshot(), "ended");
        Ok(result?)
    })
}
