//! Tests of changes of a shard's members.

use super::*;

fn applied(meta: &mut MetaState, command: Command) -> Applied {
    let applied = meta.apply(meta.state().revision + 1, 0, &command);
    meta.state().check().unwrap();
    applied.unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"))
}

fn refused(meta: &MetaState, command: Command, text: &str) {
    let refusal = meta.clone().apply(1000, 0, &command).unwrap_err().to_string();
    assert!(refusal.contains(text), "{command:?}: {refusal}");
}

fn moved(shard: u32, from: u64, to: Member) -> Command {
    Command::MoveMember { shard, from, to }
}

/// Returns a cluster with a fourth node, which has no replica.
fn cluster_of_four() -> MetaState {
    let mut meta = cluster();
    applied(&mut meta, Command::RegisterNode(node(4)));
    meta
}

#[test]
fn a_move_is_complete_when_the_group_has_the_target() {
    let mut meta = cluster_of_four();
    let target = vec![member(2, 2), member(3, 3), member(4, 40)];
    for expected in [Applied::Changed, Applied::Unchanged] {
        assert_eq!(applied(&mut meta, moved(1, 1, member(4, 40))), expected);
        let shard = &meta.state().shards[&1];
        // The node that gives up its replica keeps it until the end.
        assert_eq!(shard.replica_on(1), Some(&member(1, 1)));
        assert_eq!((shard.wanted(), shard.nodes()), (target.as_slice(), vec![1, 2, 3, 4]));
    }
    refused(&meta, moved(1, 2, member(4, 40)), "changing its members already");
    let old = Command::MembersChanged { shard: 1, members: shard(1, &[1, 2, 3]).members };
    refused(&meta, old, "is to have other members");
    for expected in [Applied::Changed, Applied::Unchanged] {
        assert_eq!(applied(&mut meta, Command::MembersChanged { shard: 1, members: target.clone() }), expected);
        assert_eq!(applied(&mut meta, moved(1, 1, member(4, 40))), Applied::Unchanged);
    }
    let shard = &meta.state().shards[&1];
    // The creator has left, and never creates the group again.
    assert_eq!((shard.creator, shard.replica_on(1), shard.target.len()), (1, None, 0));
}

#[test]
fn a_member_that_has_not_joined_can_be_replaced_by_another() {
    let mut meta = cluster_of_four();
    applied(&mut meta, Command::RegisterNode(node(5)));
    applied(&mut meta, moved(1, 1, member(4, 40)));
    applied(&mut meta, moved(1, 4, member(5, 50)));
    assert_eq!(meta.state().shards[&1].target, [member(2, 2), member(3, 3), member(5, 50)]);
    refused(&meta, moved(1, 5, member(1, 99)), "node 1 is a member of shard 1 already");
    // A member of an earlier target may vote by now, so it keeps its replica until the group has the new members.
    assert_eq!(meta.state().shards[&1].replica_on(4), Some(&member(4, 40)));
    refused(&meta, moved(1, 5, member(4, 41)), "node 4 is a member of shard 1 already");
    applied(&mut meta, moved(1, 5, member(1, 1)));
    let before = shard(1, &[1, 2, 3]).members;
    let undone = &meta.state().shards[&1];
    assert_eq!((undone.wanted(), undone.nodes()), (before.as_slice(), vec![1, 2, 3, 4, 5]));
    assert_eq!([4, 5].map(|node| undone.replica_on(node).copied()), [Some(member(4, 40)), Some(member(5, 50))]);
    applied(&mut meta, Command::MembersChanged { shard: 1, members: before.clone() });
    let undone = &meta.state().shards[&1];
    assert_eq!((&undone.members, undone.target.len(), undone.leaving.len()), (&before, 0, 0));
}

#[test]
fn a_leaving_member_that_lost_its_data_is_never_made_again() {
    let mut meta = cluster_of_four();
    applied(&mut meta, moved(1, 1, member(4, 40)));
    applied(&mut meta, Command::AcceptDirectory { node: 1, directory: directory(10) });
    let target = [member(2, 2), member(3, 3), member(4, 40)];
    let state = &meta.state().shards[&1];
    assert_eq!((state.replica_on(1), state.wanted()), (None, target.as_slice()));
    // It may come back as another member.
    applied(&mut meta, moved(1, 4, member(1, 10)));
    assert_eq!(meta.state().shards[&1].replica_on(1), Some(&member(1, 10)));
}

#[test]
fn moves_that_name_wrong_nodes_or_shards_are_refused() {
    let meta = cluster_of_four();
    refused(&meta, moved(9, 1, member(4, 40)), "shard 9 is unknown");
    refused(&meta, moved(1, 1, member(9, 90)), "node 9 is unknown");
    refused(&meta, moved(1, 4, member(4, 40)), "node 4 is no member");
    refused(&meta, moved(1, 1, member(2, 20)), "node 2 is a member of shard 1 already");
    refused(&meta, moved(3, 1, member(4, 40)), "being created");
}

#[test]
fn a_node_that_is_wiped_again_gets_its_newest_directory() {
    let mut meta = cluster();
    for number in [30, 31] {
        applied(&mut meta, Command::AcceptDirectory { node: 3, directory: directory(number) });
        for (shard, others) in [(1, vec![member(1, 1), member(2, 2)]), (2, vec![member(2, 2)])] {
            let target = [others, vec![member(3, number)]].concat();
            assert_eq!(meta.state().shards[&shard].target, target, "shard {shard}");
        }
    }
    let target = meta.state().shards[&1].target.clone();
    applied(&mut meta, Command::MembersChanged { shard: 1, members: target.clone() });
    assert_eq!(meta.state().shards[&1].members, target);
}
