//! Tests of the encodings of states and commands.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::formats::wire;
use crate::placement::{Epoch, SLOTS, Spread};
use crate::{TenantId, Tier};

prop_compose! {
    fn any_policy()(
        retention in proptest::array::uniform4(1_u64..1 << 31),
        resolution in 0_i32..3,
        labels in proptest::array::uniform3(proptest::collection::btree_set("[a-z_][a-z0-9]{0,8}", 0..4)),
        limits in proptest::array::uniform5(proptest::option::of(1_u32..)),
    ) -> Policy {
        let [samples, bytes, series, queries, cells] = limits;
        let [removed, hours, days] =
            labels.map(|labels| labels.into_iter().filter(|name| name != "service_name").collect());
        let large = |limit: Option<u32>| limit.and_then(|limit| NonZeroU64::new(u64::from(limit) << 20));
        Policy {
            retention: Retention(retention),
            time_resolution: TimeResolution::try_from(resolution).unwrap(),
            removed_labels: removed,
            dropped_labels: [hours, days],
            limits: Limits {
                samples_per_second_max: large(samples),
                bytes_per_second_max: large(bytes),
                series_max: large(series),
                queries_at_once_max: queries.and_then(NonZeroU32::new),
                query_cells_max: large(cells),
            },
        }
    }
}

prop_compose! {
    fn any_token()(role in 0_i32..3, expires_ns in proptest::option::of(any::<i64>())) -> Token {
        Token { role: Role::try_from(role).unwrap(), expires_ns }
    }
}

fn any_nodes() -> impl Strategy<Value = BTreeMap<u64, Node>> {
    let node = ("[a-z]{1,20}:[0-9]{1,5}", "[a-z]{0,8}", any::<u64>());
    proptest::collection::btree_map(1_u64.., node, 1..6).prop_map(|nodes| {
        let node = |(id, (address, zone, directory)): (u64, (String, String, u64))| {
            // The low half makes the identity unique.
            (id, Node { id, address, zone, directory: DirectoryId(u128::from(directory) << 64 | u128::from(id)) })
        };
        nodes.into_iter().map(node).collect()
    })
}

fn tenant_name() -> impl Strategy<Value = TenantId> {
    "[a-zA-Z0-9_-]{1,64}".prop_map(|name| TenantId::new(&name).unwrap())
}

prop_compose! {
    /// Generates epochs over shards 1 and 2.
    fn any_epochs()(
        parts in proptest::collection::vec((1_i64..1000, 0_u32..3, tenant_name(), ".{0,9}", 2_u16..256), 0..4),
    ) -> Vec<Arc<Epoch>> {
        let mut begins_ns = 0;
        let epoch = |(number, (minutes, pattern, tenant, service, spread)): (u64, (i64, u32, _, _, _))| {
            begins_ns += minutes * Tier::Minute.window_ns();
            let slots = (0..u32::from(SLOTS)).map(|slot| 1 + (slot >> pattern) % 2).collect();
            let spread = BTreeMap::from([(tenant, BTreeMap::from([(service, Spread::new(spread).unwrap())]))]);
            let begins_ns = if number == 1 { i64::MIN } else { begins_ns };
            Arc::new(Epoch::new(number, begins_ns, slots, spread).unwrap())
        };
        (1..).zip(parts).map(epoch).collect()
    }
}

fn any_tenant() -> impl Strategy<Value = (Policy, Vec<Token>)> {
    (any_policy(), proptest::collection::vec(any_token(), 0..3))
}

prop_compose! {
    fn any_state()(
        cluster in any::<u128>(),
        (format_version, revision) in (1_u32.., 1_u64..),
        nodes in any_nodes(),
        more_shards in proptest::collection::vec(any::<bool>(), 0..4),
        targets in proptest::collection::vec(0_usize..4, 6),
        epochs in any_epochs(),
        tenants in proptest::collection::btree_map(tenant_name(), any_tenant(), 0..4),
        deleted in proptest::collection::btree_set(tenant_name(), 0..4),
    ) -> State {
        let members: Vec<Member> =
            nodes.values().take(3).map(|node| Member { node: node.id, directory: node.directory }).collect();
        let shard = |(number, is_created)| {
            let creator = members[number as usize % members.len()].node;
            // Some shards have a target: another set of members, or a member with another identity.
            let mut target: Vec<Member> = members.iter().copied().skip(targets[number as usize - 1]).collect();
            if let Some(first) = target.first_mut() {
                first.directory.0 ^= 1 << 100;
            }
            let leaving = match target.is_empty() {
                true => Vec::new(),
                false => vec![Member { node: u64::MAX, directory: DirectoryId(u128::from(number)) }],
            };
            (number, Shard { number, members: members.clone(), target, leaving, creator, is_created })
        };
        let mut state = State {
            cluster: Some(ClusterId(cluster)), format_version, revision, nodes, epochs, ..State::default()
        };
        state.retention_classes.push(Retention::DEFAULT);
        state.shards = (1..).zip([true, true].into_iter().chain(more_shards)).map(shard).collect();
        for (number, (name, (policy, tokens))) in tenants.into_iter().enumerate() {
            let known = state.retention_classes.iter().skip(1).position(|known| *known == policy.retention);
            let class = known.map_or(state.retention_classes.len(), |position| position + 1);
            if known.is_none() {
                state.retention_classes.push(policy.retention);
            } else {
                let others = state.tenants.values_mut().filter(|other| usize::from(other.retention_class) == class);
                others.for_each(|other| other.owns_class = false);
            }
            let token = |(i, token)| (TokenHash::of(&format!("{number}/{i}")), token);
            let tokens = tokens.into_iter().enumerate().map(token).collect();
            let (retention_class, owns_class) = (class as u8, known.is_none());
            let tenant = Tenant { name: name.clone(), policy, retention_class, owns_class, tokens };
            state.tenants.insert(name, tenant);
        }
        let is_free = |name: &TenantId| *name != TenantId::default_tenant() && !state.tenants.contains_key(name);
        state.deleted_tenants = deleted.into_iter().filter(is_free).collect();
        state
    }
}

/// Returns commands of every kind, made of the parts of a state.
fn commands(state: &State) -> Vec<Command> {
    let mut all = vec![
        Command::Initialize {
            cluster: state.cluster.unwrap(),
            format_version: state.format_version,
            retention: state.retention_classes[0],
            nodes: state.nodes.values().cloned().collect(),
            shards: state.shards.values().cloned().collect(),
        },
        Command::AddShards(state.shards.values().cloned().collect()),
        Command::ShardCreated(state.format_version),
        Command::SetFormatVersion(state.format_version),
        Command::SetDefaultRetention(state.retention_classes[0]),
    ];
    for shard in state.shards.values() {
        let (shard, members, first) = (shard.number, shard.members.clone(), shard.members[0]);
        all.push(Command::MoveMember { shard, from: state.revision, to: first });
        all.push(Command::MembersChanged { shard, members });
    }
    for node in state.nodes.values() {
        all.push(Command::RegisterNode(node.clone()));
        all.push(Command::AcceptDirectory { node: node.id, directory: node.directory });
    }
    all.extend(state.epochs.iter().map(|epoch| Command::AddEpoch(Epoch::clone(epoch))));
    for (name, tenant) in &state.tenants {
        all.push(Command::CreateTenant(name.clone(), tenant.policy.clone()));
        all.push(Command::UpdateTenant(name.clone(), tenant.policy.clone()));
        all.push(Command::DeleteTenant(name.clone()));
        for (&hash, &token) in &tenant.tokens {
            all.push(Command::CreateToken(name.clone(), hash, token));
            all.push(Command::RevokeToken(name.clone(), hash));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn states_and_commands_read_back_as_they_were(state in any_state()) {
        prop_assert!(state.check().is_ok(), "{:?}", state.check());
        let bytes = state.encode();
        prop_assert_eq!(bytes.len(), state.encoded_len());
        prop_assert_eq!(&State::decode(&bytes).unwrap(), &state);
        for command in commands(&state) {
            prop_assert_eq!(&Command::decode(&command.encode()).unwrap(), &command);
        }
    }

    #[test]
    fn changed_bytes_are_an_error_or_another_valid_state(
        state in any_state(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let changed = |mut bytes: Vec<u8>| {
            changes.iter().for_each(|(at, byte)| { let at = at.index(bytes.len()); bytes[at] = *byte; });
            bytes
        };
        if let Ok(read) = State::decode(&changed(state.encode())) {
            prop_assert!(read.check().is_ok());
            prop_assert_eq!(&State::decode(&read.encode()).unwrap(), &read);
        }
        for command in commands(&state) {
            if let Ok(read) = Command::decode(&changed(command.encode())) {
                prop_assert_eq!(&Command::decode(&read.encode()).unwrap(), &read);
            }
        }
    }
}

/// Returns the message of a small valid state.
fn sent() -> wire::MetaState {
    let directory = |number: u8| bytes::Bytes::from(vec![number; 16]);
    let node =
        |id| wire::ClusterNode { id, address: "a:1".to_owned(), zone: String::new(), directory: directory(id as u8) };
    let member = |node| wire::ShardMember { node, directory: directory(node as u8) };
    let shard = |number, members, target, is_created| wire::ShardGroup {
        number,
        members,
        target,
        leaving: Vec::new(),
        creator: number.into(),
        is_created,
    };
    let epoch = |number, begins_ns| wire::PlacementEpoch {
        number,
        begins_ns,
        shard_of_slot: vec![1; SLOTS.into()],
        spread: Vec::new(),
    };
    let retention = wire::Retention { raw_seconds: 1, minutes_seconds: 2, hours_seconds: 3, days_seconds: 4 };
    let policy = wire::TenantPolicy { retention: Some(retention), ..Default::default() };
    let token = |byte| wire::TenantToken { hash: vec![byte; 32].into(), ..Default::default() };
    let tenant = |name: &str, tokens| wire::Tenant {
        name: name.to_owned(),
        policy: Some(policy.clone()),
        retention_class: 1,
        tokens,
        owns_class: false,
    };
    wire::MetaState {
        cluster: directory(9),
        format_version: 1,
        revision: 4,
        nodes: vec![node(1), node(2)],
        shards: vec![
            shard(1, vec![member(1), member(2)], vec![member(2)], true),
            shard(2, vec![member(2)], Vec::new(), false),
        ],
        epochs: vec![epoch(1, i64::MIN), epoch(2, 0)],
        tenants: vec![tenant("a", vec![token(1), token(2)]), tenant("b", vec![token(3)])],
        retention_classes: vec![retention; 2],
        deleted_tenants: vec!["c".to_owned(), "d".to_owned()],
    }
}

/// A name, and a change that makes a message invalid.
type Change<T> = (&'static str, fn(&mut T));

#[test]
fn states_that_break_an_invariant_are_refused() {
    assert!(State::from_wire(sent()).is_ok() && State::from_wire(wire::MetaState::default()).is_ok());
    let changes: [Change<wire::MetaState>; 50] = [
        ("no cluster", |state| state.cluster.clear()),
        ("a short ID", |state| state.cluster = vec![1; 15].into()),
        ("no format", |state| state.format_version = 0),
        ("no revision", |state| state.revision = 0),
        ("no node", |state| (state.nodes, state.shards, state.epochs) = Default::default()),
        ("an unknown member", |state| state.nodes.truncate(1)),
        ("unsorted nodes", |state| state.nodes.reverse()),
        ("a node twice", |state| state.nodes[1].id = 1),
        ("node 0", |state| state.nodes[0].id = 0),
        ("a directory twice", |state| state.nodes[1].directory = state.nodes[0].directory.clone()),
        ("a long directory", |state| state.nodes[1].directory = vec![1; 17].into()),
        ("a space", |state| state.nodes[0].address = "a b".to_owned()),
        ("a long address", |state| state.nodes[0].address = "a".repeat(261)),
        ("a long zone", |state| state.nodes[0].zone = "a".repeat(65)),
        ("many nodes", |state| state.nodes = vec![state.nodes[0].clone(); 1025]),
        ("shard 0", |state| state.shards[0].number = 0),
        ("a gap", |state| state.shards[1].number = 3),
        ("no member", |state| state.shards[1].members.clear()),
        ("a member twice", |state| state.shards[0].members[1].node = 1),
        ("many members", |state| state.shards[0].members = vec![state.shards[0].members[0].clone(); 8]),
        ("no creator", |state| state.shards[1].creator = 1),
        ("an unsorted target", |state| {
            state.shards[0].target = state.shards[0].members.iter().rev().cloned().collect();
        }),
        ("an unknown member of a target", |state| state.shards[0].target[0].node = 3),
        ("a target of the members", |state| state.shards[0].target = state.shards[0].members.clone()),
        ("a large target", |state| state.shards[0].target = vec![state.shards[0].members[0].clone(); 8]),
        ("many shards", |state| state.shards = vec![state.shards[0].clone(); 4097]),
        ("epoch 2 first", |state| state.epochs[0].number = 2),
        ("a begin", |state| state.epochs[0].begins_ns = -60_000_000_000),
        ("a gap of epochs", |state| state.epochs[1].number = 3),
        ("an uncreated shard", |state| state.epochs[1].shard_of_slot[5] = 2),
        ("an unknown shard", |state| state.epochs[1].shard_of_slot[5] = 3),
        ("many epochs", |state| state.epochs = vec![state.epochs[0].clone(); 257]),
        ("no name", |state| state.tenants[0].name.clear()),
        ("no policy", |state| state.tenants[0].policy = None),
        ("a tenant twice", |state| state.tenants[1].name = "a".to_owned()),
        ("a token twice", |state| state.tenants[1].tokens = vec![state.tenants[0].tokens[0].clone()]),
        ("a deleted tenant", |state| state.deleted_tenants = vec!["a".to_owned()]),
        ("a deleted default", |state| state.deleted_tenants = vec!["default".to_owned()]),
        ("a deleted tenant twice", |state| state.deleted_tenants = vec!["c".to_owned(); 2]),
        ("no deleted name", |state| state.deleted_tenants = vec![String::new()]),
        ("many deleted", |state| state.deleted_tenants = (10_000..26_385).map(|name| format!("d{name}")).collect()),
        ("unsorted tokens", |state| state.tenants[0].tokens.reverse()),
        ("a short hash", |state| state.tenants[0].tokens[0].hash = vec![1; 31].into()),
        ("an unknown role", |state| state.tenants[0].tokens[0].role = 3),
        ("a wrong class", |state| state.tenants[0].retention_class = 2),
        ("a large class", |state| state.tenants[0].retention_class = 256),
        ("the first class", |state| state.tenants[0].retention_class = 0),
        ("an owner of a shared class", |state| state.tenants[0].owns_class = true),
        ("no class", |state| (state.tenants, state.retention_classes) = Default::default()),
        ("a removed label twice", |state| {
            state.tenants[0].policy.as_mut().unwrap().removed_labels = vec!["a".to_owned(); 2];
        }),
    ];
    for (name, change) in changes {
        let mut state = sent();
        change(&mut state);
        assert!(State::from_wire(state).is_err(), "{name}");
    }
}

#[test]
fn policies_out_of_range_are_refused() {
    let changes: [Change<wire::TenantPolicy>; 11] = [
        ("no retention", |policy| policy.retention = None),
        ("zero retention", |policy| policy.retention.as_mut().unwrap().hours_seconds = 0),
        ("long retention", |policy| policy.retention.as_mut().unwrap().days_seconds = u64::MAX),
        ("an unknown resolution", |policy| policy.time_resolution = 3),
        ("no samples", |policy| policy.samples_per_second_max = Some(0)),
        ("no queries", |policy| policy.queries_at_once_max = Some(0)),
        ("unsorted labels", |policy| policy.dropped_by_hours = vec!["b".to_owned(), "a".to_owned()]),
        ("an invalid label", |policy| policy.dropped_by_days = vec!["a.b".to_owned()]),
        ("a long label", |policy| policy.dropped_by_days = vec!["a".repeat(1025)]),
        ("the service", |policy| policy.dropped_by_days = vec!["service_name".to_owned()]),
        ("many labels", |policy| policy.dropped_by_hours = (100..165).map(|n| format!("l{n}")).collect()),
    ];
    for (name, change) in changes {
        let mut policy = sent().tenants[0].policy.clone();
        change(policy.as_mut().unwrap());
        assert!(Policy::from_wire(policy).is_err(), "{name}");
    }
}

#[test]
fn messages_over_the_limits_on_bytes_are_not_decoded() {
    for size in [crate::limits::META_COMMAND_BYTES_MAX, crate::limits::META_STATE_BYTES_MAX] {
        // An unknown field, which protobuf skips.
        let mut large = vec![0x82, 0x06];
        prost::encoding::encode_varint((size - large.len() - 3) as u64, &mut large);
        large.resize(size + 1, 0);
        let is_state = size == crate::limits::META_STATE_BYTES_MAX;
        let text = if is_state { State::decode(&large).unwrap_err() } else { Command::decode(&large).unwrap_err() };
        assert!(text.to_string().contains("at most"), "{text}");
    }
    assert!(Command::decode(&[]).unwrap_err().to_string().contains("another version"));
}

#[test]
fn a_token_gives_access_to_its_tenant_until_it_expires() {
    let mut state = State::from_wire(sent()).unwrap();
    let expiring = Token { role: Role::Read, expires_ns: Some(100) };
    let forever = Token { role: Role::Admin, expires_ns: None };
    let [a, b] = ["a", "b"].map(|name| TenantId::new(name).unwrap());
    state.tenants.get_mut(&a).unwrap().tokens.insert(TokenHash::of("expiring"), expiring);
    state.tenants.get_mut(&b).unwrap().tokens.insert(TokenHash::of("forever"), forever);
    let access = |token, now_ns| state.access(token, now_ns).map(|access| (access.tenant.name.clone(), access.role));
    assert_eq!(access("expiring", 99), Ok((a, Role::Read)));
    assert_eq!(access("expiring", 100), Err(TokenError::Expired));
    assert_eq!(access("forever", i64::MAX), Ok((b, Role::Admin)));
    for unknown in ["", "forever ", "Forever", "\u{1}\u{1}"] {
        assert_eq!(access(unknown, 0), Err(TokenError::Unknown));
    }
    // SHA-256 of "abc", of FIPS 180-4.
    let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(
        (TokenHash::of("abc").to_string().as_str(), format!("{:?}", TokenHash::of("abc"))),
        (known, known.into())
    );
}

#[test]
fn a_coarser_tier_is_kept_at_least_as_long_as_a_finer_one() {
    let retention = Retention([10, 5, 20, 1]);
    assert_eq!(Tier::ALL.map(|tier| retention.of(tier).as_secs()), [10, 10, 20, 20]);
}
