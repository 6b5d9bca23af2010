//! `varve agent`: samples this host and sends the profiles to any OTLP receiver.

use std::path::PathBuf;
use std::sync::Arc;

use ::agent::{Compression, Config, SpoolConfig, State, Status};
use bytesize::ByteSize;
use router::auth::Auth;
use tokio_util::sync::CancellationToken;

use super::servers::{Servers, StopSignals};
use super::{listen, operations};
use crate::command::AgentRoleOptions;
use crate::process::privileges;

pub(crate) async fn run(options: AgentRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    let AgentRoleOptions {
        command: _,
        endpoint,
        sampling,
        compression,
        token_file,
        http_listen,
        spool_dir,
        spool_bytes_max,
    } = options;
    listen::check_loopback(&[http_listen], "an agent's metrics need no more than loopback")?;
    let listener = listen::bind(http_listen, "--http-listen").await?;
    let mut registry = operations::registry();
    let status = Status::new(&mut registry);
    let servers = Servers::default();
    let (shown, counted) = (status.clone(), status.clone());
    let readiness = Arc::new(move || match shown.snapshot() {
        now if now.state == State::Running => Ok(()),
        now => Err(format!("{}: {}", now.state.name(), now.reason)),
    });
    servers.http(listener, operations::alone(readiness, registry, Auth::loopback()));
    let config = Config {
        endpoint,
        frequency_hz: sampling.frequency_hz,
        off_cpu: sampling.off_cpu,
        java_parameters: sampling.java_parameters,
        environment_variables: sampling.environment_variables,
        token: token_file.map(|file| file.token),
        compression: if compression == "zstd" { Compression::Zstd } else { Compression::Gzip },
        spool: spool(spool_dir, spool_bytes_max),
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let mut agent = tokio::spawn(async move { ::agent::run(config, stopped, status).await });
    let outcome = tokio::select! {
        () = stop_signals.stop_requested() => {
            stop.cancel();
            agent.await?.map_err(anyhow::Error::from)
        }
        ended = &mut agent => ended?.map_err(anyhow::Error::from),
    };
    let now = counted.snapshot();
    tracing::info!(samples = now.samples, dropped = now.dropped, "sampling has ended");
    servers.shutdown().await;
    outcome
}

/// Returns the configuration of the spool; `None` if the spool is disabled or has no folder.
fn spool(dir: Option<PathBuf>, bytes_max: ByteSize) -> Option<SpoolConfig> {
    let bytes_max = bytes_max.as_u64();
    if bytes_max == 0 {
        return None;
    }
    let Some(dir) = dir.or_else(state_dir) else {
        tracing::warn!(
            "no HOME: profiles that cannot be sent wait in memory only; --spool-dir gives them a place on disk"
        );
        return None;
    };
    Some(SpoolConfig { dir, bytes_max })
}

/// Returns the default folder of the spool: `/var/lib/varve-agent` for root, otherwise `varve-agent` in the user's
/// folder for state. `None` if the environment names neither this folder nor the user's home.
fn state_dir() -> Option<PathBuf> {
    if privileges::is_root() {
        return Some(PathBuf::from("/var/lib/varve-agent"));
    }
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("varve-agent"))
}
