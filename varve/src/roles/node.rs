//! `varve node`: stores profiles, and serves routers over gRPC.

use std::sync::Arc;

use ::node::{Config, Node, Retention, Site, UnreadyShard};
use anyhow::Context as _;
use transport::Dialer;

use super::operations::Readiness;
use super::servers::{Servers, StopSignals};
use super::{listen, operations, tls};
use crate::command::{DataOptions, NodeRoleOptions, PeerOptions, StorageOptions};
use crate::process::{allocator, open_files};

pub(crate) async fn run(options: NodeRoleOptions) -> anyhow::Result<()> {
    let mut stop_signals = StopSignals::catch()?;
    allocator::return_free_memory()?;
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
    let site = site(&storage, &cluster)?;
    let listener = listen::bind(storage.node_listen, "--node-listen").await?;
    let operations_listener = listen::bind(http_listen, "--http-listen").await?;
    let mut registry = operations::registry();
    let config = Config {
        node_id: cluster.node_id,
        site,
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

/// Returns the address at which others reach the node, and its zone.
///
/// # Errors
/// No option names an address that others can connect to, or two options name it.
fn site(storage: &StorageOptions, cluster: &PeerOptions) -> anyhow::Result<Site> {
    let initial = cluster.initial_nodes.iter().find(|(id, _site)| *id == cluster.node_id).map(|(_id, site)| site);
    if storage.node_advertise.is_some() && !cluster.initial_nodes.is_empty() {
        anyhow::bail!("--initial-nodes names the address of this node: remove --node-advertise");
    }
    let named = storage.node_advertise.as_ref().or(initial);
    // Initial nodes without this one are refused when the node opens.
    if named.is_none() && cluster.initial_nodes.is_empty() && storage.node_listen.ip().is_unspecified() {
        anyhow::bail!(
            "other processes cannot connect to {} (--node-listen): name the address at which they reach this node, \
             such as --node-advertise db{}.example:{}",
            storage.node_listen,
            cluster.node_id,
            storage.node_listen.port(),
        );
    }
    Ok(named.cloned().unwrap_or_else(|| site_of_lone(storage)))
}

/// Returns the address at which others reach a node that is alone.
fn site_of_lone(storage: &StorageOptions) -> Site {
    let listen = || Site { address: storage.node_listen.to_string(), zone: String::new() };
    storage.node_advertise.clone().unwrap_or_else(listen)
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
        site: site_of_lone(storage),
        shards: storage.shards,
        ..Config::new(data.data_dir.clone(), retention, storage.disk_max.as_u64())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        node: NodeRoleOptions,
    }

    /// Returns the site of a node with these options, or the error as text.
    fn site_of(options: &[&str]) -> Result<(String, String), String> {
        let command = CommandLine::try_parse_from([&["node"], options].concat());
        let CommandLine { node } = command.map_err(|error| error.to_string())?;
        let site = site(&node.storage, &node.cluster).map_err(|error| error.to_string())?;
        Ok((site.address, site.zone))
    }

    #[test]
    fn others_reach_a_node_at_the_address_that_its_options_name() {
        let named = |options: &[&str]| site_of(options).unwrap();
        let of = |address: &str, zone: &str| (address.to_owned(), zone.to_owned());
        let everywhere = ["--node-listen", "0.0.0.0:4041"];
        assert_eq!(named(&["--node-listen", "10.0.0.1:1"]), of("10.0.0.1:1", ""));
        let initial = ["--node-id", "2", "--initial-nodes", "1=db1:4041@a,2=db2:4041@b,3=[fd00::3]:4041"];
        assert_eq!(named(&[&everywhere[..], &initial].concat()), of("db2:4041", "b"));
        let advertised = ["--join", "db1:4041", "--node-advertise", "db4.example:4041@rack-7"];
        assert_eq!(named(&[&everywhere[..], &advertised].concat()), of("db4.example:4041", "rack-7"));
        let both = ["--initial-nodes", "1=db1:4041", "--node-advertise", "db2:4041"];
        assert!(site_of(&both).unwrap_err().contains("remove --node-advertise"));
        for alone in [&[][..], &["--join", "db1:4041"]] {
            let refusal = site_of(&[&everywhere[..], alone].concat()).unwrap_err();
            assert!(refusal.contains("--node-advertise db1.example:4041"), "{refusal}");
        }
    }

    #[test]
    fn an_address_that_no_other_host_can_connect_to_is_refused() {
        for address in
            ["0.0.0.0:4041", "[::]:4041", "db1", "db1:x", ":4041", "db1:0", "fd00::3:4041", "db1/x:4041", "db1:4041@"]
        {
            let refusal = site_of(&["--node-advertise", address]).unwrap_err();
            assert!(refusal.contains("--node-advertise"), "{refusal}");
            assert!(site_of(&["--initial-nodes", &format!("1={address}")]).is_err(), "{address}");
        }
    }
}
