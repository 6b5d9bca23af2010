//! `varve up`: node, router and agent in one process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ::agent::Status;
use ::node::Node;
use anyhow::Context as _;
use proto::Tokens;
use router::api::agent::{AgentStatus, AgentStatusSource};
use router::auth::Tenants;
use router::nodes::Nodes;
use symbol_store::limits::Limits;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::receiver::{Backing, Receiver};
use super::servers::{Servers, StopSignals};
use super::symbols::open_symbols_of_host;
use super::{listen, operations};
use crate::command::{AccessOptions, SamplingOptions, UpOptions};
use crate::process::{allocator, open_files, random_token};

pub(crate) async fn run(options: UpOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    allocator::return_free_memory()?;
    open_files::raise_limit().context("the limit of open files")?;
    let UpOptions { data, router, storage, sampling, no_agent, access } = options;
    let auth = listen::router_auth(&access, &router)?;
    // Also with --require-token, the port of the node needs a token of the file, or loopback.
    listen::auth(&access, &[storage.node_listen])?;
    if storage.node_listen.ip().is_unspecified() && storage.node_advertise.is_none() {
        tracing::warn!(
            "routers on other hosts cannot reach {}: name this host with --node-advertise",
            storage.node_listen
        );
    }
    let receiver = Receiver::bind(&router).await?;
    let node_listener = listen::bind(storage.node_listen, "--node-listen").await?;
    let page = receiver.http_address()?;
    let otlp_grpc = receiver.otlp_grpc_address()?;

    let mut registry = operations::registry();
    let config = super::node::config(&data, &storage);
    let opened = stop_signals.unless_stopped(Node::open(config, &mut registry)).await;
    let Some(node) = opened.transpose()? else { return Ok(()) };
    let symbols = match open_symbols_of_host(&data.data_dir, Limits::DEFAULT) {
        Ok(symbols) => symbols,
        Err(error) => {
            node.shutdown().await;
            return Err(error);
        }
    };
    let status = Status::new(&mut registry);

    let servers = Servers::default();
    let readiness = super::node::readiness(&node);
    let agent = status_source(status.clone(), sampling.frequency_hz, no_agent);
    let nodes = Nodes::local(Arc::<Node>::clone(&node));
    let tenants = Tenants::of_node(node.watch_cluster());
    let agent_token = agent_token(&access)?;
    let auth = auth.with_own_agent(agent_token.clone());
    receiver.serve(&servers, Backing { nodes, symbols, agent, auth, tenants }, registry, readiness);
    let served = Arc::clone(&node);
    let tokens = access.token_file.clone();
    let stop = servers.stop.clone().cancelled_owned();
    servers.spawn(async move { served.serve(node_listener, None, tokens, stop).await.context("node") });

    let stop_agent = CancellationToken::new();
    let agent = if no_agent {
        None
    } else {
        Some(start_agent(agent_config(sampling, otlp_grpc, &agent_token), stop_agent.clone(), status))
    };
    let said = Arc::clone(&node);
    let tell = tokio::spawn(async move {
        said.ready().await;
        tracing::info!("varve is up: open http://{}/", reachable(page));
    });
    let outcome = tokio::select! {
        () = stop_signals.stop_requested() => Ok(()),
        error = node.failed() => Err(anyhow::anyhow!("the node stopped: {error}")),
        () = servers.failed() => Err(anyhow::anyhow!("a server stopped: see above")),
    };
    tell.abort();
    // The agent is stopped first, so that the router still receives its last samples.
    stop_agent.cancel();
    if let Some(agent) = agent
        && let Err(error) = agent.await
    {
        tracing::error!(%error, "the agent panicked");
    }
    servers.shutdown().await;
    node.shutdown().await;
    outcome
}

/// Returns the token that the agent sends: the first one of the token file, or one that only this process knows.
fn agent_token(access: &AccessOptions) -> anyhow::Result<Tokens> {
    match &access.token_file {
        Some(tokens) => Ok(tokens.clone()),
        None => Tokens::parse(&random_token()?).context("the token of the agent"),
    }
}

fn agent_config(sampling: SamplingOptions, otlp_grpc: SocketAddr, token: &Tokens) -> ::agent::Config {
    ::agent::Config {
        endpoint: format!("http://{}", reachable(otlp_grpc)),
        frequency_hz: sampling.frequency_hz,
        off_cpu: sampling.off_cpu,
        java_parameters: sampling.java_parameters,
        environment_variables: sampling.environment_variables,
        token: Some(::agent::Token::new(token.first().to_owned())),
        // The profiles do not leave the host, so gzip would only cost CPU time.
        compression: ::agent::Compression::Zstd,
        // The receiver is in this process, so profiles never have to wait long for it.
        spool: None,
    }
}

/// Starts the agent, which samples this host. If the agent fails, the other parts continue, and the web UI shows the
/// reason.
fn start_agent(config: ::agent::Config, stop: CancellationToken, status: Status) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Err(error) = ::agent::run(config, stop, status).await {
            tracing::warn!("this host is not sampled: {error}");
        }
    })
}

fn status_source(status: Status, frequency_hz: u32, no_agent: bool) -> AgentStatusSource {
    AgentStatusSource(Arc::new(move || {
        let now = status.snapshot();
        AgentStatus {
            state: now.state.name(),
            reason: if no_agent { "this varve was started with --no-agent".to_owned() } else { now.reason },
            missing: now.missing,
            samples: now.samples,
            dropped: now.dropped,
            frequency_hz,
        }
    }))
}

/// Converts the address of a listener to an address to connect to: loopback if it listens on all interfaces.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    address
}
