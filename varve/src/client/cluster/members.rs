//! `varve admin cluster accept`, `move` and `add-shards`: changes of the members and shards of a cluster.
//!
//! A command changes only the state of the meta group. The nodes then make the change, also if this process ends.

use std::time::Duration;

use anyhow::{Context as _, bail};
use node::meta::{REPLICAS, propose_shards};
use proto::meta::{Command, DirectoryId, Member, Shard, State};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::connection::Connection;
use super::{change, outcome};
use crate::client::output::print;
use crate::client::table;
use crate::command::{AcceptOptions, AddShardsOptions, ChangeOptions, MoveOptions};
use crate::process::random_bytes;

/// Longest time that the nodes may take to create new shards.
const CREATION_PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn accept(options: &AcceptOptions) -> anyhow::Result<()> {
    let AcceptOptions { node, change: options } = options;
    let connection = Connection::new(&options.nodes)?;
    let state = connection.state().await?;
    let known = state.nodes.get(node).with_context(|| {
        let known: Vec<String> = state.nodes.keys().map(ToString::to_string).collect();
        format!("node {node} is unknown: the cluster has the nodes {}", known.join(", "))
    })?;
    let address = &known.address;
    let identity = connection.identity(address).await;
    let identity = identity.with_context(|| format!("node {node} at {address} must run with its new directory"))?;
    if identity.node != *node {
        bail!("node {}, and not node {node}, is at {address}: correct the options of that node", identity.node);
    }
    let found: [u8; 16] = identity.directory.as_ref().try_into().context("the node has no identity")?;
    let directory = DirectoryId(u128::from_be_bytes(found));
    let affected: Vec<u32> =
        state.shards.values().filter_map(|shard| shard.replica_on(*node).map(|_| shard.number)).collect();
    if known.directory == directory {
        let text = format!("node {node} has its known directory {directory}: nothing is to be done\n");
        return show(options, json!({"node": node, "directory": directory.to_string(), "changed": false}), &text);
    }
    if identity.has_cluster {
        bail!(
            "node {node} at {address} has a directory that already belongs to a cluster: start it with an empty one, \
             because a directory with data may be a backup or that of another cluster"
        );
    }
    let changed =
        change(&connection, state.clone(), &Command::AcceptDirectory { node: *node, directory }, options).await?;
    let report = json!({"node": node, "directory": directory.to_string(), "shards": affected, "changed": changed});
    let verb = if options.dry_run { "would be" } else { "is" };
    let text = format!(
        "the directory {directory} of node {node} {verb} accepted: {} replicas are built again\n",
        affected.len()
    );
    show(options, report, &text)
}

pub(super) async fn add_shards(options: &AddShardsOptions) -> anyhow::Result<()> {
    let AddShardsOptions { total, without, change: options } = options;
    let connection = Connection::new(&options.nodes)?;
    let state = connection.state().await?;
    let known = state.shards.len();
    let Some(missing) = usize::from(total.get()).checked_sub(known) else {
        bail!("the cluster has {known} shards, and shards cannot be removed");
    };
    if missing == 0 {
        let text = format!("the cluster has {known} shards: nothing is to be done\n");
        return show(options, json!({"shards": [], "changed": false}), &text);
    }
    let usable = usable(&connection, &state, without).await?;
    let shards = propose_shards(&usable, u32::try_from(missing).unwrap_or(u32::MAX));
    let changed = change(&connection, state, &Command::AddShards(shards.clone()), options).await?;
    if !options.dry_run {
        wait_until_created(&connection, &shards).await?;
    }
    let nodes = |shard: &Shard| shard.members.iter().map(|member| member.node).collect::<Vec<_>>();
    let list: Vec<_> = shards.iter().map(|shard| json!({"shard": shard.number, "nodes": nodes(shard)})).collect();
    let of_shard =
        |shard: &Shard| vec![shard.number.to_string(), format!("{:?}", nodes(shard)).replace(['[', ']'], "")];
    let rows: Vec<_> = shards.iter().map(of_shard).collect();
    let text = format!(
        "{} {missing} shards; give them slots with `varve admin cluster epoch`\n\n{}",
        outcome(changed, options, "added", "would add"),
        table::render(&["shard", "nodes"], &rows)
    );
    show(options, json!({"shards": list, "changed": changed}), &text)
}

/// Returns the state with only those nodes that may get new shards.
///
/// # Errors
/// A node does not respond, although `without` does not name it: its shards would lack a member from the beginning. Or
/// too few nodes are left for the members of a shard, whose number never changes.
async fn usable(connection: &Connection, state: &State, without: &[u64]) -> anyhow::Result<State> {
    let mut usable = state.clone();
    for node in without {
        usable.nodes.remove(node).with_context(|| format!("--without {node}: the cluster has no such node"))?;
    }
    let needed = REPLICAS.min(state.nodes.len());
    if usable.nodes.len() < needed {
        bail!("a shard has members on {needed} nodes, and --without leaves {}", usable.nodes.len());
    }
    for (node, status) in usable.nodes.keys().zip(connection.statuses(&usable).await) {
        if let Err(reason) = status {
            bail!("node {node} does not respond ({reason}): start it, or give it no new shards with --without {node}");
        }
    }
    Ok(usable)
}

/// Waits until the nodes have created new shards, which can then get slots.
async fn wait_until_created(connection: &Connection, shards: &[Shard]) -> anyhow::Result<()> {
    let deadline = Instant::now() + CREATION_PATIENCE;
    loop {
        let state = connection.state().await?;
        let is_created = |shard: &&Shard| state.shards.get(&shard.number).is_some_and(|shard| shard.is_created);
        let Some(late) = shards.iter().find(|shard| !is_created(shard)) else { return Ok(()) };
        if Instant::now() > deadline {
            bail!(
                "shard {} is added, and node {} has not created it after {CREATION_PATIENCE:?}: see the log of this \
                 node; `varve admin cluster` shows when all shards serve",
                late.number,
                late.creator
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

pub(super) async fn move_member(options: &MoveOptions) -> anyhow::Result<()> {
    let MoveOptions { shard, from, to, change: options } = options;
    let connection = Connection::new(&options.nodes)?;
    let state = connection.state().await?;
    let known = state.shards.get(shard);
    let known =
        known.with_context(|| format!("shard {shard} is unknown: the cluster has {} shards", state.shards.len()))?;
    if let Some(known) = known.wanted().iter().find(|member| member.node == *to)
        && !known_wanted(&state, *shard, *from)
    {
        let text = format!("shard {shard} is or will be on node {to}, and not on node {from}: nothing is to be done\n");
        let identity = known.directory.to_string();
        return show(
            options,
            json!({"shard": shard, "from": from, "to": to, "replica": identity, "changed": false}),
            &text,
        );
    }
    // A member that was to leave stays with its own replica. Any other replica is new.
    let directory = known.replica_on(*to).map_or_else(random_identity, |member| Ok(member.directory))?;
    let to_member = Member { node: *to, directory };
    let changed =
        change(&connection, state.clone(), &Command::MoveMember { shard: *shard, from: *from, to: to_member }, options)
            .await?;
    let report = json!({"shard": shard, "from": from, "to": to, "replica": directory.to_string(), "changed": changed});
    let verb = if options.dry_run { "would move" } else { "moves" };
    show(options, report, &format!("shard {shard} {verb} from node {from} to node {to}\n"))
}

/// Returns true if a node is to be a member of a shard.
fn known_wanted(state: &State, shard: u32, node: u64) -> bool {
    state.shards.get(&shard).is_some_and(|shard| shard.wanted().iter().any(|member| member.node == node))
}

fn random_identity() -> anyhow::Result<DirectoryId> {
    Ok(DirectoryId(u128::from_be_bytes(random_bytes()?)))
}

/// Prints what a command did, as JSON or as text.
fn show(options: &ChangeOptions, mut report: Value, text: &str) -> anyhow::Result<()> {
    report["dry_run"] = options.dry_run.into();
    print(&if options.nodes.json { format!("{report}\n") } else { text.to_owned() })
}
