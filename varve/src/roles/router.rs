//! `varve router`: receives pushes and serves queries, with a remote node.

use std::sync::Arc;

use ::router::api::agent::{AgentStatus, AgentStatusSource};
use ::router::auth::Tenants;
use ::router::nodes::Nodes;
use anyhow::Context as _;
use transport::Dialer;

use super::receiver::{Backing, Receiver};
use super::servers::{Servers, StopSignals};
use super::symbols::open_symbols_of_router;
use super::{listen, operations, tls};
use crate::command::RouterRoleOptions;
use crate::process::allocator;

pub(crate) async fn run(options: RouterRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    allocator::return_free_memory()?;
    let RouterRoleOptions { data_dir, debug_files, router, node_endpoint, tls, access } = options;
    let auth = listen::router_auth(&access, &router)?;
    let credentials = tls::credentials(tls)?;
    // A certificate replaces the token: the node does not get a credential of users.
    let tokens = access.token_file.as_ref().filter(|_| credentials.is_none());
    let dialer = credentials.map_or_else(Dialer::plaintext, Dialer::tls);
    let seeds = node_endpoint.iter().map(|url| dialer.endpoint_of_url(url));
    let seeds = seeds.collect::<Result<Vec<_>, _>>().context("--node-endpoint")?;
    let receiver = Receiver::bind(&router).await?;
    std::fs::create_dir_all(&data_dir).with_context(|| format!("--data-dir {}", data_dir.display()))?;
    let symbols = open_symbols_of_router(&data_dir, debug_files)?;
    let agent = AgentStatusSource(Arc::new(|| AgentStatus {
        state: "off",
        reason: "this is a router: agents run as `varve agent`".to_owned(),
        missing: Vec::new(),
        samples: 0,
        dropped: 0,
        frequency_hz: 0,
    }));
    let servers = Servers::default();
    let nodes = Nodes::remote(&dialer, seeds, tokens);
    let tenants = Tenants::of_cluster(&nodes);
    // The router has no state, so it stays ready when nodes stop responding. Errors then say why a request fails.
    let asked = nodes.clone();
    let readiness = Arc::new(move || match asked.know_placement() {
        true => Ok(()),
        false => Err("the router is not ready: no node of --node-endpoint has named the shards yet".to_owned()),
    });
    let backing = Backing { nodes, symbols, agent, auth, tenants };
    receiver.serve(&servers, backing, operations::registry(), readiness);
    let outcome = tokio::select! {
        () = stop_signals.stop_requested() => Ok(()),
        () = servers.failed() => Err(anyhow::anyhow!("a server stopped: see above")),
    };
    servers.shutdown().await;
    outcome
}
