//! Structured logs on stderr: text for a terminal, JSON for a collector. `VARVE_LOG` filters as `RUST_LOG` does elsewhere.

use std::io::IsTerminal as _;

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

/// Starts logging.
pub(crate) fn start() -> anyhow::Result<()> {
    let filter = match std::env::var("VARVE_LOG") {
        Ok(filter) => EnvFilter::try_new(&filter).map_err(|error| anyhow!("VARVE_LOG={filter}: {error}"))?,
        // openraft tells every step at info.
        Err(_unset) => EnvFilter::new("info,openraft=warn"),
    };
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() { logs.try_init() } else { logs.json().try_init() };
    started.map_err(|error| anyhow!("logging: {error}"))
}
