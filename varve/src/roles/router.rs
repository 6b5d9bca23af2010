//! `varve router`: receives pushes and serves queries, with a remote node.

use std::sync::Arc;

use ::router::api::agent::{AgentStatus, AgentStatusSource};
use ::router::auth::Tenants;
use ::router::nodes::Nodes;
use anyhow::Context as _;
use symbol_store::limits::Limits;
use transport::Dialer;

use super::receiver::{Backing, Receiver};
use super::servers::{Servers, StopSignals};
use super::symbols::open_symbols;
use super::{listen, operations, tls};
use crate::command::RouterRoleOptions;
use crate::process::allocator;

pub(crate) async fn run(options: RouterRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    allocator::keep_free_memory().context("starting threads")?;
    let RouterRoleOptions { data_dir, router, node_endpoint, tls, access } = options;
    let auth = listen::router_auth(&access, &router)?;
    let credentials = tls::credentials(tls)?;
    // A certificate replaces the token: the node does not get a credential of users.
    let tokens = access.token_file.as_ref().filter(|_| credentials.is_none());
    let dialer = credentials.map_or_else(Dialer::plaintext, Dialer::tls);
    let seeds = node_endpoint.iter().map(|url| dialer.endpoint_of_url(url));
    let seeds = seeds.collect::<Result<Vec<_>, _>>().context("--node-endpoint")?;
    let require_token = router.require_token;
    let receiver = Receiver::bind(&router).await?;
    std::fs::create_dir_all(&data_dir).with_context(|| format!("--data-dir {}", data_dir.display()))?;
    let symbols = open_symbols(&data_dir, Limits::DEFAULT)?;
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
    // The router has no state of its own, so it is ready when it listens. If the node does not respond, a request
    // fails. A router whose tokens are in the cluster is ready when it knows them.
    let needs_tokens = require_token.then(|| tenants.clone());
    let readiness = Arc::new(move || match &needs_tokens {
        Some(tenants) if !tenants.are_known() => Err("the router has not reached a node of the cluster yet".to_owned()),
        _ => Ok(()),
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
