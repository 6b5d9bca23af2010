//! `varve admin cluster accept`, `move` and `add-shards`: changes of the members and shards of a cluster.
//!
//! A command changes only the state of the meta group. The nodes then make the change, also if this process ends.

use anyhow::{Context as _, bail};
use node::meta::propose_shards;
use proto::limits::NODE_SHARDS_MAX;
use proto::meta::{Command, DirectoryId, Member, Shard, State};
use serde_json::{Value, json};

use super::change;
use super::connection::Connection;
use crate::client::output::print;
use crate::client::table;
use crate::command::{AcceptOptions, AddShardsOptions, ChangeOptions, MoveOptions};
use crate::process::random_bytes;

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
    let AddShardsOptions { count, change: options } = options;
    let connection = Connection::new(&options.nodes)?;
    let state = connection.state().await?;
    let shards = propose_shards(&state, u32::from(count.get()));
    for &node in state.nodes.keys() {
        let replicas = state.shards.values().chain(&shards).filter(|shard| shard.replica_on(node).is_some()).count();
        if replicas > usize::from(NODE_SHARDS_MAX) {
            bail!(
                "node {node} would hold {replicas} replicas, and may hold {NODE_SHARDS_MAX}: add nodes, or fewer shards"
            );
        }
    }
    let changed = change(&connection, state, &Command::AddShards(shards.clone()), options).await?;
    let nodes = |shard: &Shard| shard.members.iter().map(|member| member.node).collect::<Vec<_>>();
    let list: Vec<_> = shards.iter().map(|shard| json!({"shard": shard.number, "nodes": nodes(shard)})).collect();
    let verb = if options.dry_run { "dry run: would add" } else { "adds" };
    let of_shard =
        |shard: &Shard| vec![shard.number.to_string(), format!("{:?}", nodes(shard)).replace(['[', ']'], "")];
    let rows: Vec<_> = shards.iter().map(of_shard).collect();
    let text = format!(
        "{verb} {} shards; give them slots with `varve admin cluster epoch`\n\n{}",
        shards.len(),
        table::render(&["shard", "nodes"], &rows)
    );
    show(options, json!({"shards": list, "changed": changed}), &text)
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
