//! Tests of changes of members: a node that lost its disk, a node that joins, and a replica that moves.

use std::time::{Duration, Instant};

use node::{Config, Node, NodeError};
use prometheus_client::registry::Registry;
use proto::meta::{Command, DirectoryId, Member};

use crate::lagging::cluster::{Cluster, PATIENCE};
use crate::lagging::{APPLIED, INSTALLED, append_until, keep_little};
use crate::support::{batch, times_of};

/// Appends a number of samples from `serial` on. Returns the next serial number.
pub(crate) async fn append_some(cluster: &Cluster, serial: i64, count: i64) -> i64 {
    for serial in serial..serial + count {
        cluster.append(serial, &batch(Some(serial as u128), [serial])).await;
    }
    serial + count
}

/// Returns the present members, with another identity for the replica on one node.
fn replaced(mut members: Vec<Member>, node: u64, directory: DirectoryId) -> Vec<Member> {
    members.iter_mut().filter(|member| member.node == node).for_each(|member| member.directory = directory);
    members
}

async fn wait_until_ready(cluster: &Cluster, member: usize) {
    let start = Instant::now();
    while !cluster.is_ready(member) {
        assert!(start.elapsed() < PATIENCE, "node {} is not ready", member + 1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_votes_again_after_one_snapshot() {
    let mut cluster = Cluster::start(keep_little).await;
    let first = |cluster: &Cluster| cluster.metric(0, "varve_node_log_first_index");
    let serial = append_until(&cluster, 0, "the log is not purged", || first(&cluster) > 60.0).await;
    let wiped = (cluster.leader().await + 1) % 3;
    let node = wiped as u64 + 1;
    let directory = cluster.wipe(wiped).await;
    // Without an acceptance, the node takes no part.
    let serial = append_some(&cluster, serial, 50).await;
    assert!(!cluster.is_ready(wiped));
    let leader = cluster.leader().await;
    let members = cluster.state(leader).await.shards[&1].members.clone();
    let expected = replaced(members, node, directory);
    cluster.propose(&Command::AcceptDirectory { node, directory }).await;
    let serial = append_some(&cluster, serial, 20).await;
    cluster.wait_for_members(leader, &expected).await;
    wait_until_ready(&cluster, wiped).await;
    assert_eq!(cluster.metric(wiped, INSTALLED), 1.0);
    // The new member has a vote: it and one other member are a majority.
    cluster.stop(leader).await;
    let serial = append_some(&cluster, serial, 30).await;
    cluster.restart(leader).await;
    cluster.make_leader(wiped).await;
    assert_eq!(cluster.times(wiped).await, times_of(0..serial));
}

/// Kills the leader, the receiver, and the third node at different times after the acceptance. Each of them may also
/// lead the meta group.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_any_phase_of_a_replacement_loses_nothing() {
    let mut cluster = Cluster::start(keep_little).await;
    let mut serial = append_some(&cluster, 0, 20).await;
    for (round, delay_ms) in [0, 20, 60, 120, 250, 500].into_iter().enumerate() {
        let leader = cluster.leader().await;
        let wiped = (leader + 1) % 3;
        let node = wiped as u64 + 1;
        let directory = cluster.wipe(wiped).await;
        serial = append_some(&cluster, serial, 10).await;
        let leader = cluster.leader().await;
        let expected = replaced(cluster.state(leader).await.shards[&1].members.clone(), node, directory);
        cluster.propose(&Command::AcceptDirectory { node, directory }).await;
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        let killed = [leader, wiped, (leader + 2) % 3][round % 3];
        cluster.kill(killed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        cluster.restart(killed).await;
        serial = append_some(&cluster, serial, 10).await;
        let leader = cluster.leader().await;
        cluster.wait_for_members(leader, &expected).await;
        wait_until_ready(&cluster, wiped).await;
        assert_eq!(cluster.times(leader).await, times_of(0..serial), "round {round}");
    }
    for member in 0..3 {
        cluster.make_leader(member).await;
        assert_eq!(cluster.times(member).await, times_of(0..serial), "node {}", member + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_moves_to_a_node_that_joined_and_back() {
    let mut cluster = Cluster::start(|config| config.flush_interval = Duration::from_millis(100)).await;
    let mut serial = append_some(&cluster, 0, 50).await;
    let joined = cluster.join().await;
    wait_until_ready(&cluster, joined).await;
    assert_eq!(cluster.state(joined).await.nodes.len(), 4);
    // The leader itself gives up its replica, and later gets a new one.
    let leader = cluster.leader().await;
    let mut members = cluster.state(joined).await.shards[&1].members.clone();
    for (from, to, identity) in [(leader, joined, 77), (joined, leader, 78)] {
        let to_member = Member { node: to as u64 + 1, directory: DirectoryId(identity) };
        let command = Command::MoveMember { shard: 1, from: from as u64 + 1, to: to_member };
        cluster.propose(&command).await;
        members.retain(|member| member.node != from as u64 + 1);
        members.push(to_member);
        members.sort();
        serial = append_some(&cluster, serial, 20).await;
        cluster.wait_for_members(to, &members).await;
        cluster.wait_for_members(from, &members).await;
        let start = Instant::now();
        while cluster.data_dir(from).join("shard-0001").exists() {
            assert!(start.elapsed() < PATIENCE, "the old replica is not deleted");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(cluster.data_dir(to).join("shard-0001").exists());
        serial = append_some(&cluster, serial, 20).await;
        let leader = cluster.leader().await;
        assert_ne!(leader, from, "a node without a replica leads");
        assert_eq!(cluster.times(leader).await, times_of(0..serial));
    }
    // Both nodes open what they hold, and nothing else.
    for member in [leader, joined] {
        cluster.stop(member).await;
        cluster.restart(member).await;
        wait_until_ready(&cluster, member).await;
    }
    let applied = || cluster.metric(leader, APPLIED) > serial as f64;
    let serial = append_until(&cluster, serial, "the moved replica does not follow", applied).await;
    let leader = cluster.leader().await;
    assert_eq!(cluster.times(leader).await, times_of(0..serial));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_directory_of_another_node_is_refused() {
    let mut cluster = Cluster::start(|_config| {}).await;
    append_some(&cluster, 0, 5).await;
    cluster.stop(2).await;
    let copy = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(cluster.data_dir(2)).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let data_dir = copy.path().join(cluster.data_dir(2).file_name().unwrap());
    let config = Config { node_id: 4, data_dir, initial_nodes: Default::default(), ..cluster.config(2).clone() };
    let error = Node::open(config, &mut Registry::default()).await.unwrap_err();
    assert!(matches!(error, NodeError::OtherNode { found: 3, expected: 4 }), "{error}");
}
