//! Property tests: equal commands give equal states, and no command breaks an invariant.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proto::meta::State;

use super::*;
use crate::error::RecordError;

/// A command in the making. Numbers are small, so that commands meet in the state.
#[derive(Clone, Debug)]
enum Action {
    Initialize(u8),
    Register(u64, u64),
    Accept(u64, u64),
    Shards(u32, bool),
    Created(u32),
    Move(u32, u64, u64, u64),
    /// Reports the members that the shard is to have, or others.
    Changed(u32, bool),
    Epoch(i64, Vec<u32>, u16),
    Tenant(bool, u8, u64),
    DefaultRetention(u64),
    Delete(u8),
    Token(u8, u8, u8),
    Revoke(u8, u8),
    Format(u32),
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        2 => (0_u8..3).prop_map(Action::Initialize),
        2 => (0_u64..7, 0_u64..9).prop_map(|(node, directory)| Action::Register(node, directory)),
        1 => (0_u64..7, 0_u64..9).prop_map(|(node, directory)| Action::Accept(node, directory)),
        2 => (0_u32..4, any::<bool>()).prop_map(|(count, is_changed)| Action::Shards(count, is_changed)),
        4 => (0_u32..6).prop_map(Action::Created),
        4 => (0_u32..5, 0_u64..7, 0_u64..7, 0_u64..12)
            .prop_map(|(shard, from, to, identity)| Action::Move(shard, from, to, identity)),
        4 => (0_u32..5, any::<bool>()).prop_map(|(shard, is_other)| Action::Changed(shard, is_other)),
        3 => (-2_i64..9, proptest::collection::vec(1_u32..5, 1..4), 0_u16..9)
            .prop_map(|(minutes, shards, spread)| Action::Epoch(minutes, shards, spread)),
        3 => (any::<bool>(), 0_u8..4, 0_u64..4).prop_map(|(creates, name, days)| Action::Tenant(creates, name, days)),
        1 => (0_u64..4).prop_map(Action::DefaultRetention),
        1 => (0_u8..4).prop_map(Action::Delete),
        3 => (0_u8..4, 0_u8..6, 0_u8..4).prop_map(|(name, token, kind)| Action::Token(name, token, kind)),
        1 => (0_u8..4, 0_u8..6).prop_map(|(name, token)| Action::Revoke(name, token)),
        1 => (0_u32..5).prop_map(Action::Format),
    ]
}

/// Makes the command of an action. `state` is the state to which the command is meant to be applied.
fn command(action: &Action, state: &State, now_ns: i64) -> Command {
    let tenant = |number: u8| super::tenant(["a", "b", "c", "default"][usize::from(number)]);
    let hash = |number: u8| TokenHash::of(&number.to_string());
    match action.clone() {
        Action::Initialize(cluster) => {
            let Command::Initialize { format_version, retention, nodes, shards, .. } = initialize() else { panic!() };
            Command::Initialize { cluster: ClusterId(cluster.into()), format_version, retention, nodes, shards }
        }
        Action::Register(id, number) => Command::RegisterNode(Node { directory: directory(number), ..node(id) }),
        Action::Accept(node, number) => Command::AcceptDirectory { node, directory: directory(number) },
        Action::Shards(count, is_changed) => {
            let mut shards = propose_shards(state, count);
            if let Some(first) = shards.first_mut().filter(|_| is_changed) {
                first.creator += 1;
            }
            Command::AddShards(shards)
        }
        Action::Created(shard) => Command::ShardCreated(shard),
        Action::Move(shard, from, to, identity) => {
            Command::MoveMember { shard, from, to: Member { node: to, directory: directory(identity) } }
        }
        Action::Changed(number, is_other) => {
            let wanted = state.shards.get(&number).map(|shard| shard.wanted().to_vec()).unwrap_or_default();
            Command::MembersChanged { shard: number, members: wanted.into_iter().skip(is_other.into()).collect() }
        }
        Action::Epoch(minutes, shards, spread) => {
            let number = state.epochs.len() as u64 + 1;
            let begins_ns = if number == 1 { i64::MIN } else { (now_ns / MINUTE_NS + minutes) * MINUTE_NS };
            let slots = divide_slots(state.epochs.last().map(|epoch| &**epoch), &shards);
            let spread = proto::placement::Spread::new(spread).map(|spread| ("api".to_owned(), spread));
            let spread = BTreeMap::from([(tenant(0), spread.into_iter().collect())]);
            Command::AddEpoch(Epoch::new(number, begins_ns, slots, spread).unwrap())
        }
        Action::Tenant(true, name, days) => Command::CreateTenant(tenant(name), policy(days)),
        Action::Tenant(false, name, days) => Command::UpdateTenant(tenant(name), policy(days)),
        Action::DefaultRetention(days) => Command::SetDefaultRetention(policy(days).retention),
        Action::Delete(name) => Command::DeleteTenant(tenant(name)),
        Action::Token(name, number, kind) => {
            let role = [Role::Push, Role::Read, Role::Admin][usize::from(kind % 3)];
            let token = Token { role, expires_ns: (kind == 3).then_some(now_ns) };
            Command::CreateToken(tenant(name), hash(number), token)
        }
        Action::Revoke(name, number) => Command::RevokeToken(tenant(name), hash(number)),
        Action::Format(version) => Command::SetFormatVersion(version),
    }
}

fn any_actions() -> impl Strategy<Value = Vec<(Action, i64)>> {
    let first = (0_u8..3).prop_map(|cluster| vec![(Action::Initialize(cluster), 0)]);
    let rest = proptest::collection::vec((any_action(), 0_i64..3 * MINUTE_NS), 0..60);
    (proptest::option::weighted(0.9, first), rest)
        .prop_map(|(first, rest)| first.unwrap_or_default().into_iter().chain(rest).collect())
}

/// Checks that a node keeps a replica that may be in the group of its shard, unless the group is known to have other
/// members or the data is lost. Checks that a lost replica is never made again. `lost` has shards and replicas.
fn check_replicas(before: &State, after: &State, command: &Command, lost: &mut BTreeSet<(u32, Member)>) {
    for (number, shard) in &before.shards {
        let after = &after.shards[number];
        for node in shard.nodes() {
            let replica = *shard.replica_on(node).unwrap();
            let may_change = match command {
                Command::MembersChanged { shard, .. } => shard == number,
                Command::AcceptDirectory { node: accepted, .. } => *accepted == node,
                _ => false,
            };
            let is_kept = after.replica_on(node) == Some(&replica);
            assert!(is_kept || may_change, "shard {number} loses {replica:?} by {command:?}");
            // The only member stays listed, because the shard has no other one.
            if !is_kept && matches!(command, Command::AcceptDirectory { .. }) {
                lost.insert((*number, replica));
            }
        }
    }
    // A command that names an identity says that it is new.
    match command {
        Command::MoveMember { shard, to: named, .. } => {
            lost.remove(&(*shard, *named));
        }
        Command::AcceptDirectory { node, directory } => {
            lost.retain(|(_, replica)| (replica.node, replica.directory) != (*node, *directory));
        }
        _ => {}
    }
    for (number, replica) in lost.iter() {
        let held = after.shards[number].replica_on(replica.node);
        assert_ne!(held, Some(replica), "a replica of shard {number} that was lost is made again by {command:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn equal_commands_give_equal_states_and_keep_all_invariants(actions in any_actions()) {
        // The second member applies decoded commands, and is restored from its record after each of them.
        let mut members = [MetaState::default(), MetaState::default()];
        let mut now_ns = 0;
        let mut lost = BTreeSet::new();
        for (index, (action, passed_ns)) in (1..).zip(&actions) {
            now_ns += passed_ns;
            let command = command(action, members[0].state(), now_ns);
            // Commands that decoding refuses are not proposed.
            let Ok(decoded) = Command::decode(&command.encode()) else { continue };
            prop_assert_eq!(&decoded, &command);
            let before = members[0].clone();
            let [first, second] = &mut members;
            let results = [first.apply(index, now_ns, &command), second.apply(index, now_ns, &decoded)];
            let texts = results.each_ref().map(|result| format!("{result:?}"));
            prop_assert_eq!(&texts[0], &texts[1]);
            let records = [&*first, &*second].map(|member| encode_state(member.state()));
            prop_assert_eq!(&records[0], &records[1]);
            prop_assert!(first.state().check().is_ok(), "{:?} after {:?}", first.state().check(), command);
            if matches!(results[0], Ok(Applied::Changed)) {
                check_replicas(before.state(), first.state(), &command, &mut lost);
                prop_assert_eq!(first.state().revision, index);
                prop_assert_ne!(&*first, &before);
                if !matches!(command, Command::DeleteTenant(_) | Command::RevokeToken(..)) {
                    prop_assert_eq!(first.apply(index + 1, now_ns, &command).unwrap(), Applied::Unchanged);
                }
            } else {
                prop_assert_eq!(&*first, &before);
            }
            members[1] = decode_state(&records[1]).unwrap().into();
            prop_assert_eq!(&members[0], &members[1]);
        }
    }

    #[test]
    fn damaged_records_are_found(actions in any_actions(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut meta = MetaState::default();
        for (index, (action, now_ns)) in (1..).zip(&actions) {
            // Refused commands change nothing.
            let _refused = meta.apply(index, *now_ns, &command(action, meta.state(), *now_ns)).is_err();
        }
        let record = encode_state(meta.state());
        let mut flipped = record.clone();
        flipped[at.index(record.len())] ^= 1 << bit;
        prop_assert!(decode_state(&flipped).is_err());
        prop_assert!(decode_state(&record[..at.index(record.len())]).is_err());
    }
}

#[test]
fn every_flipped_bit_and_every_prefix_of_a_record_is_found() {
    // Without epochs, which are most of the bytes, all bits can be tried.
    let mut state = State::clone(cluster().state());
    state.epochs.clear();
    let record = encode_state(&state);
    assert_eq!(decode_state(&record).unwrap(), state);
    for bit in 0..record.len() * 8 {
        let mut damaged = record.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_state(&damaged).is_err(), "bit {bit}");
    }
    assert!((0..record.len()).all(|length| decode_state(&record[..length]).is_err()));
}

#[test]
fn records_that_are_not_of_this_version_or_of_no_state_are_refused() {
    let sealed = |mut body: Vec<u8>| {
        body.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
        body
    };
    let state = cluster().state().encode();
    let with = |version: u8, state: &[u8]| sealed([&[version][..], state].concat());
    assert!(decode_state(&with(1, &state)).is_ok());
    assert!(matches!(decode_state(&with(2, &state)), Err(RecordError::Version { found: 2, expected: 1, .. })));
    assert!(matches!(decode_state(&with(1, &state[1..])), Err(RecordError::Content { .. })));
    assert!(matches!(decode_state(&with(1, &[0; 5 << 20])), Err(RecordError::Length { .. })));
    assert!(matches!(decode_state(&sealed(Vec::new())), Err(RecordError::Length { .. })));
}
