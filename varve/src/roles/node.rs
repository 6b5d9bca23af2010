//! `varve node`: stores profiles, and serves routers over gRPC.

use std::sync::Arc;

use ::node::{Config, Node, Retention, UnreadyShard};
use anyhow::Context as _;
use transport::Dialer;

use super::operations::Readiness;
use super::servers::{Servers, StopSignals};
use super::{listen, operations, tls};
use crate::command::{DataOptions, NodeRoleOptions, StorageOptions};
use crate::process::{allocator, open_files};

pub(crate) async fn run(options: NodeRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    allocator::keep_free_memory().context("starting threads")?;
    open_files::raise_limit().context("the limit of open files")?;
    let NodeRoleOptions { data, storage, cluster, http_listen, tls, access } = options;
    let tls = tls::credentials(tls)?;
    let auth = match &tls {
        // The certificates control the access to the node's port.
        Some(credentials) => {
            tls::check_node(credentials, cluster.node_id)?;
            listen::auth(&access, &[http_listen])?
        }
        None => {
            let auth = listen::auth(&access, &[storage.node_listen, http_listen])?;
            listen::warn_of_plaintext(storage.node_listen);
            auth
        }
    };
    if (cluster.initial_nodes.len() > 1 || !cluster.join.is_empty()) && access.token_file.is_some() && tls.is_none() {
        anyhow::bail!(
            "nodes send no tokens to each other: several nodes need --tls-ca, --tls-cert and --tls-key, which \
             `varve admin certs` makes, or no --token-file"
        );
    }
    let listener = listen::bind(storage.node_listen, "--node-listen").await?;
    let operations_listener = listen::bind(http_listen, "--http-listen").await?;
    let mut registry = operations::registry();
    let config = Config {
        node_id: cluster.node_id,
        initial_nodes: cluster.initial_nodes.into_iter().collect(),
        join: cluster.join,
        dialer: tls.as_ref().map_or_else(Dialer::plaintext, |credentials| Dialer::tls(Arc::clone(credentials))),
        ..config(&data, &storage)
    };
    let opened = stop_signals.unless_stopped(Node::open(config, &mut registry)).await;
    let Some(node) = opened.transpose()? else { return Ok(()) };
    let servers = Servers::default();
    servers.http(operations_listener, operations::alone(readiness(&node), registry, auth));
    let served = Arc::clone(&node);
    let stop = servers.stop.clone().cancelled_owned();
    servers.spawn(async move { served.serve(listener, tls, access.token_file, stop).await.context("node") });
    let outcome = tokio::select! {
        () = stop_signals.stop_requested() => Ok(()),
        error = node.failed() => Err(anyhow::anyhow!("the node stopped: {error}")),
        () = servers.failed() => Err(anyhow::anyhow!("a server stopped: see above")),
    };
    servers.shutdown().await;
    node.shutdown().await;
    outcome
}

/// Returns the function that reports if all shards of the node accept queries.
pub(super) fn readiness(node: &Arc<Node>) -> Readiness {
    let node = Arc::clone(node);
    Arc::new(move || {
        let unready = node.unready_shards();
        if unready.is_empty() {
            return Ok(());
        }
        let text = |&UnreadyShard { shard, state }: &UnreadyShard| match (shard, state) {
            (0, _) => "the cluster has no placement yet".to_owned(),
            (_, "cannot_commit") => format!("shard {shard} cannot commit, because most of its members do not respond"),
            _ => format!("shard {shard} is {state}"),
        };
        let texts: Vec<String> = unready.iter().map(text).collect();
        Err(format!("the node is not ready: {}", texts.join(", ")))
    })
}

/// Returns the configuration of the node for these options.
pub(super) fn config(data: &DataOptions, storage: &StorageOptions) -> Config {
    let retention = Retention {
        raw: storage.retention,
        minutes: storage.retention_1m,
        hours: storage.retention_1h,
        days: storage.retention_1d,
    };
    Config {
        advertise_address: storage.node_listen.to_string(),
        shards: storage.shards,
        ..Config::new(data.data_dir.clone(), retention, storage.disk_max.as_u64())
    }
}
