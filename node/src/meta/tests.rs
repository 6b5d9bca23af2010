//! Tests of the state machine of the meta group.

mod properties;
mod proposals;
mod refusals;
mod retention_classes;
mod shard_members;

use std::collections::BTreeMap;

use proto::TenantId;
use proto::meta::{
    ClusterId, Command, DirectoryId, Limits, Member, Node, Policy, Retention, Role, Shard, TimeResolution, Token,
    TokenHash,
};
use proto::placement::{Epoch, SLOTS, Spread};

use super::*;

const MINUTE_NS: i64 = 60_000_000_000;

fn node(id: u64) -> Node {
    Node { id, address: format!("host-{id}:4041"), zone: format!("z{}", id % 3), directory: directory(id) }
}

fn directory(number: u64) -> DirectoryId {
    DirectoryId(0xd1 << 120 | u128::from(number))
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn policy(days: u64) -> Policy {
    Policy {
        retention: Retention([days * 86_400, 90 * 86_400, 365 * 86_400, 1825 * 86_400]),
        time_resolution: TimeResolution::Milliseconds,
        removed_labels: vec!["container".to_owned()],
        dropped_labels: [vec!["pod".to_owned()], vec!["host".to_owned(), "pod".to_owned()]],
        limits: Limits { samples_per_second_max: std::num::NonZeroU64::new(days * 1000), ..Limits::default() },
    }
}

fn epoch(number: u64, begins_ns: i64, shards: &[u32]) -> Epoch {
    Epoch::new(number, begins_ns, divide_slots(None, shards), BTreeMap::new()).unwrap()
}

fn shard(number: u32, nodes: &[u64]) -> Shard {
    let members = nodes.iter().map(|&node| Member { node, directory: directory(node) }).collect();
    Shard { number, members, target: Vec::new(), leaving: Vec::new(), creator: nodes[0], is_created: false }
}

fn member(node: u64, identity: u64) -> Member {
    Member { node, directory: directory(identity) }
}

fn initialize() -> Command {
    let nodes = [1, 2, 3].map(node).to_vec();
    let shards = vec![shard(1, &[1, 2, 3]), shard(2, &[2, 3]), shard(3, &[1, 2, 3])];
    Command::Initialize { cluster: ClusterId(7), format_version: 2, retention: Retention::DEFAULT, nodes, shards }
}

/// Returns a cluster with three nodes, three shards (of which 1 and 2 are created), one epoch, a tenant and a token.
fn cluster() -> MetaState {
    let mut meta = MetaState::default();
    let commands = [
        initialize(),
        Command::ShardCreated(1),
        Command::ShardCreated(2),
        Command::AddEpoch(epoch(1, i64::MIN, &[1, 2])),
        Command::CreateTenant(tenant("acme"), policy(30)),
        Command::CreateToken(tenant("acme"), TokenHash::of("a"), Token { role: Role::Push, expires_ns: None }),
    ];
    for (index, command) in (1..).zip(commands) {
        assert_eq!(meta.apply(index, 0, &command).unwrap(), Applied::Changed, "{command:?}");
        meta.state().check().unwrap();
    }
    meta
}

#[test]
fn a_command_that_is_sent_again_changes_nothing() {
    let mut meta = cluster();
    let before = meta.clone();
    let token = Token { role: Role::Push, expires_ns: None };
    let again = [
        initialize(),
        Command::RegisterNode(node(2)),
        Command::AcceptDirectory { node: 2, directory: directory(2) },
        Command::AddShards(vec![shard(1, &[1, 2, 3]), shard(2, &[2, 3])]),
        Command::ShardCreated(1),
        Command::AddEpoch(epoch(1, i64::MIN, &[1, 2])),
        Command::CreateTenant(tenant("acme"), policy(30)),
        Command::UpdateTenant(tenant("acme"), policy(30)),
        Command::CreateToken(tenant("acme"), TokenHash::of("a"), token),
        Command::SetFormatVersion(2),
    ];
    for command in again {
        assert_eq!(meta.apply(99, 0, &command).unwrap(), Applied::Unchanged, "{command:?}");
    }
    assert_eq!(meta, before);
    assert_eq!(meta.state().revision, 6);
}

#[test]
fn each_command_changes_its_part_of_the_state() {
    let mut meta = cluster();
    let mut apply = |command| {
        let index = meta.state().revision + 5;
        assert_eq!(meta.apply(index, 100 * MINUTE_NS, &command).unwrap(), Applied::Changed, "{command:?}");
        meta.state().check().unwrap();
        assert_eq!(meta.state().revision, index);
        meta.state().clone()
    };
    let moved = Node { address: "moved:1".to_owned(), ..node(2) };
    assert_eq!(apply(Command::RegisterNode(moved.clone())).nodes[&2], moved);
    assert_eq!(apply(Command::RegisterNode(node(4))).nodes.len(), 4);
    let accepted = apply(Command::AcceptDirectory { node: 3, directory: directory(30) });
    assert_eq!(accepted.nodes[&3].directory, directory(30));
    assert_eq!(accepted.shards[&1].members[2].directory, directory(3), "the group has the old member at first");
    let target = vec![member(1, 1), member(2, 2), member(3, 30)];
    assert_eq!(accepted.shards[&1].target, target);
    let replaced = apply(Command::MembersChanged { shard: 1, members: target.clone() });
    assert_eq!((&replaced.shards[&1].members, &replaced.shards[&1].target), (&target, &Vec::new()));
    assert_eq!(replaced.shards[&2].target, [member(2, 2), member(3, 30)], "other shards have their own leaders");
    let moving = apply(Command::MoveMember { shard: 1, from: 1, to: member(4, 40) });
    assert_eq!(moving.shards[&1].target, [member(2, 2), member(3, 30), member(4, 40)]);
    let added = apply(Command::AddShards(vec![shard(4, &[4])]));
    assert!(!added.shards[&4].is_created);
    assert!(apply(Command::ShardCreated(4)).shards[&4].is_created);
    let placed = apply(Command::AddEpoch(epoch(2, 101 * MINUTE_NS, &[1, 2, 4])));
    assert_eq!(placed.placement().unwrap().shards(), [1, 2, 4]);
    let created = apply(Command::CreateTenant(tenant("other"), policy(7)));
    assert_eq!((created.tenants[&tenant("other")].retention_class, created.retention_classes.len()), (2, 3));
    let updated = apply(Command::UpdateTenant(tenant("acme"), policy(7)));
    assert_eq!((updated.tenants[&tenant("acme")].retention_class, updated.retention_classes.len()), (1, 3));
    assert_eq!(updated.tenants[&tenant("acme")].tokens.len(), 1, "a policy does not change tokens");
    let token = Token { role: Role::Read, expires_ns: Some(5) };
    assert_eq!(
        apply(Command::CreateToken(tenant("other"), TokenHash::of("b"), token)).tenants[&tenant("other")].tokens,
        BTreeMap::from([(TokenHash::of("b"), token)])
    );
    let revoked = apply(Command::RevokeToken(tenant("acme"), TokenHash::of("a")));
    assert!(revoked.access("a", 0).is_err() && revoked.access("b", 0).is_ok());
    let deleted = apply(Command::DeleteTenant(tenant("other")));
    assert!(deleted.tenants.len() == 1 && deleted.access("b", 0).is_err() && deleted.retention_classes.len() == 3);
    let other_default = apply(Command::SetDefaultRetention(policy(3).retention));
    assert_eq!(other_default.retention_classes[0], policy(3).retention);
    assert_eq!(apply(Command::SetFormatVersion(3)).format_version, 3);
}
