//! Structured logs on stderr: text on a terminal, otherwise JSON. `VARVE_LOG` has the syntax of `RUST_LOG`.

use std::io::IsTerminal as _;

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

/// Starts the logging of a role.
pub(crate) fn start() -> anyhow::Result<()> {
    // openraft logs every step at level info.
    let logs = tracing_subscriber::fmt().with_env_filter(filter("info,openraft=warn")?).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() { logs.try_init() } else { logs.json().try_init() };
    started.map_err(|error| anyhow!("logging: {error}"))
}

/// Starts the logging of a command: text, and only warnings and errors.
pub(crate) fn start_for_command() -> anyhow::Result<()> {
    let logs = tracing_subscriber::fmt().with_env_filter(filter("warn")?).with_writer(std::io::stderr);
    let logs = logs.without_time().with_target(false).with_ansi(std::io::stderr().is_terminal());
    logs.try_init().map_err(|error| anyhow!("logging: {error}"))
}

fn filter(default: &str) -> anyhow::Result<EnvFilter> {
    match std::env::var("VARVE_LOG") {
        Ok(filter) => EnvFilter::try_new(&filter).map_err(|error| anyhow!("VARVE_LOG={filter}: {error}")),
        Err(_unset) => Ok(EnvFilter::new(default)),
    }
}
