//! `varve admin cluster`: nodes, shards, leaders, lag and epochs.

use std::collections::BTreeMap;

use proto::meta::State;
use proto::wire::{GroupStatus, StatusResponse};
use serde_json::{Value, json};

use super::connection::Connection;
use crate::client::{print, table};
use crate::command::{NodeOptions, Time};

/// Number of the meta group.
const META_GROUP: u32 = 0;

/// The state of the cluster, and what its nodes say.
struct View {
    state: State,
    /// Status of each node, or the reason why there is none.
    nodes: BTreeMap<u64, Result<StatusResponse, String>>,
}

/// A group, as its leader sees it.
struct Group<'a> {
    number: u32,
    members: Vec<u64>,
    leader: Option<&'a GroupStatus>,
}

pub(super) async fn run(options: &NodeOptions) -> anyhow::Result<()> {
    let connection = Connection::new(options)?;
    let state = connection.state().await?;
    let statuses = connection.statuses(&state).await;
    let nodes = state.nodes.keys().copied().zip(statuses).collect();
    let view = View { state, nodes };
    print(&if options.json { format!("{}\n", view.json()) } else { view.text() })
}

impl View {
    /// Returns the meta group and all shards.
    fn groups(&self) -> Vec<Group<'_>> {
        let meta = (META_GROUP, self.state.nodes.keys().copied().collect());
        let shards = self.state.shards.values();
        let shards = shards.map(|shard| (shard.number, shard.members.iter().map(|member| member.node).collect()));
        let all = std::iter::once(meta).chain(shards);
        all.map(|(number, members)| Group { number, members, leader: self.leader(number) }).collect()
    }

    /// Returns what the leader of a group says about it. A node that was the leader before has an older term.
    fn leader(&self, number: u32) -> Option<&GroupStatus> {
        let statuses = self.nodes.iter().filter_map(|(id, status)| Some((*id, status.as_ref().ok()?)));
        let leading = statuses
            .filter_map(|(id, status)| status.groups.iter().find(|group| group.number == number && group.leader == id));
        leading.max_by_key(|group| group.term)
    }

    fn slots(&self, shard: u32) -> usize {
        let newest = self.state.epochs.last();
        newest.map_or(0, |epoch| epoch.shard_of_slot().iter().filter(|&&of| of == shard).count())
    }

    fn text(&self) -> String {
        let nodes: Vec<Vec<String>> = self
            .state
            .nodes
            .values()
            .map(|node| {
                let status = &self.nodes[&node.id];
                let (state, revision, leads) = match status {
                    Ok(status) => {
                        let leads = status.groups.iter().filter(|group| group.leader == node.id).count();
                        (states(status), status.revision.to_string(), leads.to_string())
                    }
                    Err(reason) => (format!("does not respond: {reason}"), "-".to_owned(), "-".to_owned()),
                };
                vec![node.id.to_string(), node.address.clone(), node.zone.clone(), revision, leads, state]
            })
            .collect();
        let groups: Vec<Vec<String>> = self
            .groups()
            .iter()
            .map(|group| {
                let name = if group.number == META_GROUP { "meta".to_owned() } else { group.number.to_string() };
                let members: Vec<String> = group.members.iter().map(u64::to_string).collect();
                let of_leader = |value: fn(&GroupStatus) -> u64| {
                    group.leader.map_or_else(|| "-".to_owned(), |leader| value(leader).to_string())
                };
                vec![
                    name,
                    self.slots(group.number).to_string(),
                    members.join(" "),
                    group.leader.map_or_else(|| "none".to_owned(), |leader| leader.leader.to_string()),
                    of_leader(|leader| leader.term),
                    of_leader(|leader| leader.last_index),
                    lag_text(group),
                ]
            })
            .collect();
        let epochs: Vec<Vec<String>> = self
            .state
            .epochs
            .iter()
            .map(|epoch| {
                let shards = epoch.shards();
                vec![epoch.number().to_string(), begin(epoch.begins_ns()), shards.len().to_string()]
            })
            .collect();
        let State { cluster, format_version, revision, tenants, .. } = &self.state;
        let cluster = cluster.map_or_else(|| "without an ID".to_owned(), |cluster| cluster.to_string());
        format!(
            "cluster {cluster}, format version {format_version}, revision {revision}, {} tenants\n\n{}\n{}\n{}",
            tenants.len(),
            table::render(&["node", "address", "zone", "revision", "leads", "state"], &nodes),
            table::render(&["shard", "slots", "members", "leader", "term", "log index", "lag (entries)"], &groups),
            table::render(&["epoch", "begins", "shards"], &epochs),
        )
    }

    fn json(&self) -> Value {
        let node = |node: &proto::meta::Node| {
            let mut out = json!({"id": node.id, "address": node.address, "zone": node.zone,
                "directory": node.directory.to_string()});
            match &self.nodes[&node.id] {
                Ok(status) => {
                    let shards = status.groups.iter().map(|group| {
                        json!({"shard": group.number, "state": group.state, "applied_index": group.applied_index,
                            "last_index": group.last_index, "damage": group.damage})
                    });
                    out["revision"] = status.revision.into();
                    out["replicas"] = shards.collect();
                }
                Err(reason) => out["error"] = reason.as_str().into(),
            }
            out
        };
        let group = |group: &Group<'_>| {
            json!({
                "shard": group.number,
                "slots": self.slots(group.number),
                "members": group.members,
                "leader": group.leader.map(|leader| leader.leader),
                "term": group.leader.map(|leader| leader.term),
                "last_index": group.leader.map(|leader| leader.last_index),
                "lag": lag(group).map(|lag| {
                    lag.into_iter().map(|(node, entries)| json!({"node": node, "entries": entries})).collect::<Vec<_>>()
                }),
            })
        };
        let epochs = self.state.epochs.iter().map(
            |epoch| json!({"number": epoch.number(), "begins": begin(epoch.begins_ns()), "shards": epoch.shards()}),
        );
        json!({
            "cluster": self.state.cluster.map(|cluster| cluster.to_string()),
            "format_version": self.state.format_version,
            "revision": self.state.revision,
            "tenants": self.state.tenants.len(),
            "nodes": self.state.nodes.values().map(node).collect::<Vec<_>>(),
            "shards": self.groups().iter().map(group).collect::<Vec<_>>(),
            "epochs": epochs.collect::<Vec<_>>(),
        })
    }
}

/// Returns the states of a node's replicas: `serving`, or each shard with another state or with damage.
fn states(status: &StatusResponse) -> String {
    let others = status.groups.iter().filter(|group| group.state != "serving" || !group.damage.is_empty());
    let describe = |group: &GroupStatus| {
        let damage = if group.damage.is_empty() { String::new() } else { format!(" (damaged: {})", group.damage) };
        format!("shard {} {}{damage}", group.number, group.state)
    };
    let others: Vec<String> = others.map(describe).collect();
    if others.is_empty() { "serving".to_owned() } else { others.join(", ") }
}

/// Returns the number of entries that each follower lacks, by node; `None` without a leader.
fn lag(group: &Group<'_>) -> Option<Vec<(u64, u64)>> {
    let leader = group.leader?;
    let lacks = |matching: u64| leader.last_index.saturating_sub(matching);
    Some(leader.followers.iter().map(|follower| (follower.node, lacks(follower.matching_index))).collect())
}

fn lag_text(group: &Group<'_>) -> String {
    let Some(lag) = lag(group) else { return "-".to_owned() };
    let behind: Vec<String> = lag
        .iter()
        .filter(|(_, entries)| *entries > 0)
        .map(|(node, entries)| format!("node {node}: {entries}"))
        .collect();
    if behind.is_empty() { "0".to_owned() } else { behind.join(", ") }
}

fn begin(begins_ns: i64) -> String {
    if begins_ns == i64::MIN { "always".to_owned() } else { Time(begins_ns).to_string() }
}
