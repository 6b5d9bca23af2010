//! Tests of refused commands: the text of each refusal, and that a refusal changes nothing.

use proto::limits::{CLUSTER_NODES_MAX, META_STATE_BYTES_MAX, NODE_SHARDS_MAX, RETENTION_CLASSES_MAX, TOKENS_MAX};
use proto::meta::State;

use super::*;

/// Checks that a command is refused with a text that contains `text`, and that the state stays as it is.
fn refused(meta: &MetaState, command: Command, text: &str) {
    let mut after = meta.clone();
    let refusal = after.apply(1000, 100 * MINUTE_NS, &command).unwrap_err().to_string();
    assert!(refusal.contains(text), "{command:?}: {refusal}");
    assert_eq!(after, *meta, "{refusal}");
}

#[test]
fn a_node_with_another_data_directory_is_refused_with_a_remedy() {
    let wiped = Node { directory: directory(33), ..node(3) };
    let text = "node 3 is known with another data directory";
    refused(&cluster(), Command::RegisterNode(wiped.clone()), text);
    refused(&cluster(), Command::RegisterNode(wiped), "node 3 is known with another data directory");
    let copied = Node { directory: directory(1), ..node(4) };
    refused(&cluster(), Command::RegisterNode(copied), "belongs to node 1");
    refused(&cluster(), Command::AcceptDirectory { node: 2, directory: directory(1) }, "belongs to node 1");
    refused(&cluster(), Command::AcceptDirectory { node: 9, directory: directory(9) }, "node 9 is unknown");
}

#[test]
fn only_an_empty_state_is_initialized_and_only_once() {
    let empty = MetaState::default();
    refused(&empty, Command::ShardCreated(1), "initialize it first");
    let change = |change: fn(&mut Vec<Node>, &mut Vec<Shard>, &mut u32)| {
        let Command::Initialize { cluster, mut format_version, retention, mut nodes, mut shards } = initialize() else {
            panic!()
        };
        change(&mut nodes, &mut shards, &mut format_version);
        Command::Initialize { cluster, format_version, retention, nodes, shards }
    };
    refused(&empty, change(|nodes, _, _| nodes.clear()), "needs 1 to 1024 nodes");
    refused(&empty, change(|nodes, _, _| nodes[1].id = 1), "different IDs");
    refused(&empty, change(|nodes, _, _| nodes[1].directory = directory(1)), "belongs to node 1");
    refused(&empty, change(|nodes, _, _| nodes[1].address.clear()), "use host:port");
    refused(&empty, change(|_, _, version| *version = 0), "it only grows");
    refused(&empty, change(|_, shards, _| shards[0].number = 2), "shard 2 is not the next one, 1");
    refused(&empty, change(|_, shards, _| shards[0].is_created = true), "cannot be created already");
    refused(&empty, change(|_, shards, _| shards[0].creator = 9), "one of its members");
    refused(&empty, change(|_, shards, _| shards[0].members.reverse()), "ascending by ID");
    refused(&empty, change(|_, shards, _| shards[0].members[0].directory = directory(9)), "than node 1");
    refused(&empty, change(|nodes, _, _| nodes.truncate(2)), "node 3 is unknown");
    let Command::Initialize { format_version, retention, nodes, shards, .. } = initialize() else { panic!() };
    let other = Command::Initialize { cluster: ClusterId(8), format_version, retention, nodes, shards };
    refused(&cluster(), other, "already initialized, with the ID 00000000000000000000000000000007");
}

#[test]
fn shards_and_epochs_that_do_not_follow_are_refused() {
    let meta = cluster();
    refused(&meta, Command::AddShards(vec![shard(5, &[1])]), "shard 5 is not the next one, 4");
    refused(&meta, Command::AddShards(vec![shard(4, &[7])]), "node 7 is unknown");
    let too_many = (4..4 + u32::from(NODE_SHARDS_MAX)).map(|number| shard(number, &[1])).collect();
    refused(&meta, Command::AddShards(too_many), "node 1 would hold more than 64 replicas");
    refused(&meta, Command::AddShards((4..4200).map(|number| shard(number, &[1])).collect()), "at most 4096 shards");
    refused(&meta, Command::ShardCreated(4), "shard 4 is unknown");
    let add = |number, begins, shards: &[u32]| Command::AddEpoch(epoch(number, begins, shards));
    refused(&meta, add(3, 200 * MINUTE_NS, &[1]), "epoch 3 is not the next one, 2");
    for minutes in [98, 100] {
        let text = "at least 15 s after it is proposed, at 6000000000000 ns";
        refused(&meta, add(2, minutes * MINUTE_NS, &[1]), text);
    }
    refused(&meta, add(2, i64::MIN, &[1]), "after the newest one");
    refused(&meta, add(2, 200 * MINUTE_NS, &[1, 3]), "shard 3, which does not exist yet: wait");
    refused(&meta, add(2, 200 * MINUTE_NS, &[1, 4]), "shard 4 is unknown");
    let mut fresh = MetaState::default();
    fresh.apply(1, 0, &initialize()).unwrap();
    refused(&fresh, add(1, 0, &[1]), "the first epoch has all times");
    let mut full = meta.clone();
    for number in 2..=256 {
        let begins_ns = (100 + number as i64) * MINUTE_NS;
        full.apply(number, 0, &add(number, begins_ns, &[1])).unwrap();
    }
    full.state().check().unwrap();
    refused(&full, add(257, 1000 * MINUTE_NS, &[1]), "256 epochs");
}

#[test]
fn tenants_and_tokens_that_contradict_the_state_are_refused() {
    let meta = cluster();
    let [acme, nobody] = ["acme", "nobody"].map(tenant);
    let hash = TokenHash::of("a");
    let token = Token { role: Role::Admin, expires_ns: None };
    refused(
        &meta,
        Command::CreateTenant(acme.clone(), policy(31)),
        "exists with another policy: change it with `varve admin tenant update acme`",
    );
    refused(
        &meta,
        Command::UpdateTenant(nobody.clone(), policy(30)),
        "tenant nobody is unknown: create it with `varve admin tenant create nobody`",
    );
    refused(&meta, Command::DeleteTenant(nobody.clone()), "tenant nobody is unknown");
    refused(&meta, Command::CreateToken(nobody.clone(), TokenHash::of("b"), token), "tenant nobody is unknown");
    refused(&meta, Command::CreateToken(acme.clone(), hash, token), "exists already: create another one");
    refused(&meta, Command::RevokeToken(acme.clone(), TokenHash::of("b")), "`varve admin token list`");
    refused(&meta, Command::RevokeToken(nobody, hash), "tenant nobody is unknown");
    refused(&meta, Command::SetFormatVersion(1), "the format version is 2, and cannot become 1");
    let bad = |change: fn(&mut Policy)| {
        let mut policy = policy(30);
        change(&mut policy);
        Command::UpdateTenant(acme.clone(), policy)
    };
    refused(&meta, bad(|policy| policy.retention.0[0] = 0), "at least one second");
    refused(&meta, bad(|policy| policy.dropped_labels[0].push("a".to_owned())), "sorted");
    refused(
        &meta,
        bad(|policy| policy.dropped_labels[0] = vec!["service_name".to_owned()]),
        "cannot be removed or dropped",
    );
    refused(&meta, bad(|policy| policy.removed_labels = vec!["service_name".to_owned()]), "cannot be removed");
}

#[test]
fn limits_on_numbers_are_kept_and_named() {
    let mut nodes = cluster();
    for id in 4..=CLUSTER_NODES_MAX as u64 {
        nodes.apply(id, 0, &Command::RegisterNode(node(id))).unwrap();
    }
    refused(&nodes, Command::RegisterNode(node(9999)), "1024 nodes");
    let mut tokens = State::clone(cluster().state());
    let token = Token { role: Role::Push, expires_ns: Some(1) };
    let acme = tokens.tenants.get_mut(&tenant("acme")).unwrap();
    acme.tokens = (0..TOKENS_MAX).map(|n| (TokenHash::of(&n.to_string()), token)).collect();
    tokens.check().unwrap();
    refused(
        &tokens.into(),
        Command::CreateToken(tenant("acme"), TokenHash::of("x"), token),
        "use `varve admin token revoke`",
    );
    let mut classes = cluster();
    for number in 2..RETENTION_CLASSES_MAX as u64 {
        let create = Command::CreateTenant(tenant(&format!("t{number}")), policy(1000 + number));
        classes.apply(number, 0, &create).unwrap();
    }
    classes.state().check().unwrap();
    refused(&classes, Command::CreateTenant(tenant("other"), policy(9999)), "256 different retentions");
    // A tenant that has a class alone needs no other one.
    classes.apply(1000, 0, &Command::UpdateTenant(tenant("acme"), policy(9999))).unwrap();
    classes.apply(1001, 0, &Command::CreateTenant(tenant("other"), policy(9999))).unwrap();
    refused(&classes, Command::UpdateTenant(tenant("acme"), policy(8888)), "256 different retentions");
}

#[test]
fn a_state_that_would_be_too_large_is_refused() {
    let mut large = cluster();
    let names = |seed: usize| (0..64).map(|n| format!("{}{:03}", "x".repeat(1000), n * 8 + seed)).collect();
    let wide = |seed| Policy { dropped_labels: [names(seed), names(seed)], ..policy(30) };
    let mut tenants = 0;
    let refusal = loop {
        let command = Command::CreateTenant(tenant(&format!("t{tenants}")), wide(tenants % 8));
        match large.apply(100, 0, &command) {
            Ok(_) => tenants += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(
        refusal.to_string().contains("`varve admin tenant delete` or `varve admin token revoke` first"),
        "{refusal}"
    );
    assert!(tenants > 20 && large.state().encoded_len() > META_STATE_BYTES_MAX - 200_000);
    large.state().check().unwrap();
    // The record is within its bounds, and a smaller state is accepted again.
    assert_eq!(decode_state(&encode_state(large.state())).unwrap(), *large.state());
    large.apply(101, 0, &Command::DeleteTenant(tenant("t0"))).unwrap();
    let refusal = large.apply(102, 0, &Command::CreateTenant(tenant("t0"), wide(0))).unwrap_err();
    assert!(refusal.to_string().contains("choose another name"), "{refusal}");
    large.apply(103, 0, &Command::CreateTenant(tenant("u0"), wide(0))).unwrap();
}

#[test]
fn a_deleted_tenant_gets_no_successor_of_its_name() {
    let mut meta = cluster();
    let delete = |meta: &mut MetaState, name: &TenantId| meta.apply(99, 0, &Command::DeleteTenant(name.clone()));
    assert_eq!(delete(&mut meta, &tenant("acme")).unwrap(), Applied::Changed);
    assert_eq!(delete(&mut meta, &tenant("acme")).unwrap(), Applied::Unchanged, "sent again");
    refused(&meta, Command::CreateTenant(tenant("acme"), policy(30)), "a tenant acme was deleted");
    // The tenant of the operator always exists.
    let default = TenantId::default_tenant();
    for _ in 0..2 {
        meta.apply(100, 0, &Command::CreateTenant(default.clone(), policy(30))).unwrap();
        assert_eq!(delete(&mut meta, &default).unwrap(), Applied::Changed);
    }
    let mut many = State::clone(meta.state());
    let names = (0..proto::limits::DELETED_TENANTS_MAX).map(|number| tenant(&format!("d{number}")));
    many.deleted_tenants = names.collect();
    many.tenants = cluster().state().tenants.clone();
    many.check().unwrap();
    refused(&many.into(), Command::DeleteTenant(tenant("acme")), "revoke the tokens of tenant acme");
}

#[test]
fn the_limit_on_tenants_is_kept() {
    let mut many = State::clone(cluster().state());
    many.tenants.get_mut(&tenant("acme")).unwrap().owns_class = false;
    let acme = many.tenants[&tenant("acme")].clone();
    for number in 1..proto::limits::TENANTS_MAX {
        let name = tenant(&format!("t{number}"));
        many.tenants.insert(
            name.clone(),
            proto::meta::Tenant { name, owns_class: false, tokens: BTreeMap::new(), ..acme.clone() },
        );
    }
    many.check().unwrap();
    refused(&many.into(), Command::CreateTenant(tenant("one-more"), policy(30)), "4096 tenants");
}
