//! `varve agent`: samples this host and sends what it sees to any OTLP receiver.

use std::sync::Arc;

use ::agent::{Compression, Config, State, Status, Token};
use router::auth::Auth;
use tokio_util::sync::CancellationToken;

use super::{Servers, StopSignals};
use crate::command::AgentRoleOptions;
use crate::{listen, operations};

pub(crate) async fn run(options: AgentRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    let AgentRoleOptions { endpoint, sampling, compression, token_file, http_listen } = options;
    listen::check_loopback(&[http_listen], "an agent's metrics need no more than loopback")?;
    let listener = listen::bind(http_listen, "--http-listen").await?;
    let mut registry = operations::registry();
    let status = Status::new(&mut registry);
    let servers = Servers::default();
    let shown = status.clone();
    let readiness = Arc::new(move || match shown.snapshot() {
        now if now.state == State::Running => Ok(()),
        now => Err(format!("{}: {}", now.state.name(), now.reason)),
    });
    servers.http(listener, operations::health(readiness).merge(operations::metrics(registry, Auth::Loopback)));
    let config = Config {
        endpoint,
        frequency_hz: sampling.frequency_hz,
        token: token_file.map(|tokens| Token::new(tokens.first().to_owned())),
        compression: if compression == "zstd" { Compression::Zstd } else { Compression::Gzip },
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let mut agent = tokio::spawn(async move { ::agent::run(config, stopped, status).await });
    let outcome = tokio::select! {
        () = stop_signals.asked() => {
            stop.cancel();
            agent.await?.map_err(anyhow::Error::from)
        }
        ended = &mut agent => ended?.map_err(anyhow::Error::from),
    };
    servers.shutdown().await;
    outcome
}
