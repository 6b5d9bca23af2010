//! Tests of damaged states and logs in a cluster: those of other members take their place, unaided.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use node::{Config, Node};
use prometheus_client::registry::Registry;

use crate::lagging::cluster::{Cluster, PATIENCE};
use crate::lagging::{APPLIED, append_until, keep_little};
use crate::members::append_some;
use crate::support::{batch, batch_of, config, long_name, open, times_of};

const REPAIRED: &str = "varve_node_repairs_total{shard=\"1\",outcome=\"repaired\"";

fn flush_often(config: &mut Config) {
    config.flush_interval = Duration::from_millis(100);
}

/// Returns the folder of the present state of a member's replica.
fn state(data_dir: &Path) -> PathBuf {
    let folders = std::fs::read_dir(data_dir.join("shard-0001")).unwrap().map(|entry| entry.unwrap().path());
    let is_state = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("state-");
    folders.filter(is_state).max().unwrap()
}

fn files_of(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|is| is == extension)).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no .{extension}", folder.display());
    files
}

fn flip_first_bits(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let first = bytes.len().min(16);
    bytes[..first].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(file, bytes).unwrap();
}

/// A way to damage a closed replica.
type Damage = fn(&Path);

const DAMAGES: [(&str, Damage); 5] = [
    // The first one: later on, the log is kept for those that fetch states.
    ("a missing state", |data_dir| std::fs::remove_dir_all(data_dir.join("shard-0001")).unwrap()),
    ("a bit of each table file", |data_dir| {
        files_of(&state(data_dir), "sst").iter().for_each(|file| flip_first_bits(file));
    }),
    ("a missing table file", |data_dir| std::fs::remove_file(&files_of(&state(data_dir), "sst")[0]).unwrap()),
    ("a damaged pointer", |data_dir| flip_first_bits(&data_dir.join("shard-0001/CURRENT"))),
    ("an empty list of files", |data_dir| std::fs::write(state(data_dir).join("CURRENT"), "").unwrap()),
];

async fn wait_until_repaired(cluster: &Cluster, member: usize, what: &str) {
    let start = Instant::now();
    while cluster.metric(member, REPAIRED) < 1.0 || !cluster.is_ready(member) || cluster.damage(member).await.is_some()
    {
        assert!(start.elapsed() < PATIENCE, "{what} is not repaired: {:?}", cluster.damage(member).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_replaced_by_that_of_another_member() {
    let mut cluster = Cluster::start(|config| {
        flush_often(config);
        // A state that is missing cannot be built again from the log.
        config.log_keep_time = Duration::from_secs(1);
    })
    .await;
    let mut serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 50.0).await;
    for (round, (what, damage)) in DAMAGES.into_iter().enumerate() {
        let leader = cluster.leader().await;
        let damaged = (leader + 1 + round % 2) % 3;
        let first = || cluster.metric(damaged, "varve_node_log_first_index");
        serial = append_until(&cluster, serial, what, || first() > 50.0 || round > 0).await;
        cluster.stop(damaged).await;
        damage(cluster.data_dir(damaged));
        cluster.restart(damaged).await;
        wait_until_repaired(&cluster, damaged, what).await;
        let last = serial + 20;
        let caught_up = || cluster.metric(damaged, APPLIED) > last as f64;
        serial = append_until(&cluster, serial, "the repaired member does not follow", caught_up).await;
    }
    for member in 0..3 {
        cluster.make_leader(member).await;
        assert_eq!(cluster.times(member).await, times_of(0..serial), "node {}", member + 1);
    }
}

/// Returns the ID of the batch with a number. IDs of consecutive numbers are far apart.
fn id_of(number: i64) -> u128 {
    (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// Regression: the member repaired its files without the IDs, and was not known to be damaged. It then counted retries
/// twice that the other members refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_batch_ids_gets_the_state_of_another() {
    /// Number of batches: their IDs fill several blocks.
    const BATCHES: i64 = 1500;
    let batch = |number: i64| batch_of(Some(id_of(number)), [number], |_| "leaf".to_owned());
    let mut cluster = Cluster::start(|_config| {}).await;
    for number in 0..BATCHES {
        cluster.append(number, &batch(number)).await;
    }
    let damaged = (cluster.leader().await + 1) % 3;
    let applied = || cluster.metric(damaged, APPLIED) >= BATCHES as f64;
    append_until(&cluster, BATCHES, "the member does not follow", applied).await;
    cluster.stop(damaged).await;
    // The block in which the IDs of most other batches lie, and nothing else.
    let mut ids: Vec<i64> = (0..BATCHES).collect();
    ids.sort_by_key(|number| id_of(*number));
    let number = ids[ids.len() / 2];
    // A key in a block omits the bytes that it shares with the key before it.
    let id = &id_of(number).to_be_bytes()[3..];
    let mut broken = 0;
    for file in files_of(&state(cluster.data_dir(damaged)), "sst") {
        let mut bytes = std::fs::read(&file).unwrap();
        let Some(at) = bytes.windows(id.len()).position(|bytes| bytes == id) else { continue };
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        broken += 1;
    }
    assert!(broken > 0, "no table file has the ID");
    cluster.restart(damaged).await;
    cluster.make_leader(damaged).await;
    // The leader looks for the ID, and finds the damage.
    cluster.append(number, &batch(number)).await;
    wait_until_repaired(&cluster, damaged, "a block of batch IDs").await;
    cluster.append(number, &batch(number)).await;
    cluster.make_leader(damaged).await;
    let times = cluster.times(damaged).await;
    let of_number = times.iter().filter(|time| **time == times_of([number])[0]).count();
    assert_eq!(of_number, 1, "the batch counts again");
}

/// Only two of three members run, so the damage cannot be repaired. The one with the damage has entries that the other
/// one lacks, and must lead at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_damage_hands_over_and_is_repaired_later() {
    /// Number of samples with large definitions, which fill many blocks.
    const LARGE: i64 = 300;
    let mut cluster = Cluster::start(flush_often).await;
    for first in (0..LARGE).step_by(10) {
        cluster.append(first, &batch_of(Some(first as u128), first..first + 10, long_name)).await;
    }
    let leader = cluster.leader().await;
    let [damaged, behind] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.stop(behind).await;
    let serial =
        append_until(&cluster, LARGE, "", || cluster.metric(damaged, APPLIED) >= LARGE as f64 / 10.0 + 50.0).await;
    cluster.stop(damaged).await;
    // A block in the middle holds no value that the state needs in order to open.
    let tables = files_of(&state(cluster.data_dir(damaged)), "sst");
    let largest = tables.iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(largest).unwrap();
    assert!(bytes.len() > 64 << 10, "{} bytes have too few blocks", bytes.len());
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(largest, bytes).unwrap();
    cluster.restart(damaged).await;
    let serial = append_until(&cluster, serial, "", || cluster.metric(damaged, APPLIED) >= serial as f64 / 10.0).await;
    while cluster.damage(damaged).await.is_none() {
        cluster.verify(damaged).await;
    }
    cluster.kill(leader);
    cluster.restart(behind).await;
    let start = Instant::now();
    while cluster.leader().await != behind {
        assert!(start.elapsed() < PATIENCE, "the damaged member goes on to lead");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(cluster.damage(damaged).await.is_some(), "it was repaired without a majority of others");
    let serial = append_some(&cluster, serial, 10).await;
    cluster.restart(leader).await;
    wait_until_repaired(&cluster, damaged, "the former leader").await;
    cluster.make_leader(damaged).await;
    assert_eq!(cluster.times(damaged).await, times_of(0..serial));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_kept_while_no_majority_serves_without_it() {
    let mut cluster = Cluster::start(flush_often).await;
    let serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 50.0).await;
    let leader = cluster.leader().await;
    let [damaged, away] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.stop(away).await;
    cluster.stop(damaged).await;
    flip_first_bits(&cluster.data_dir(damaged).join("shard-0001/CURRENT"));
    // Without its pointer the replica does not open. Two of three members are away, so nothing is done.
    cluster.restart(damaged).await;
    let failed = || cluster.metric(damaged, "varve_node_repairs_total{shard=\"1\",outcome=\"failed\"");
    let start = Instant::now();
    while failed() < 1.0 {
        assert!(start.elapsed() < PATIENCE, "no repair was attempted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cluster.metric(damaged, REPAIRED), 0.0);
    assert!(cluster.damage(damaged).await.is_some_and(|damage| damage.contains("CURRENT")));
    cluster.restart(away).await;
    wait_until_repaired(&cluster, damaged, "the pointer").await;
    cluster.make_leader(damaged).await;
    assert_eq!(cluster.times(damaged).await, times_of(0..serial));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_damaged_log_gets_a_new_one_and_votes_again() {
    let mut cluster = Cluster::start(keep_little).await;
    let mut serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 50.0).await;
    for round in 0..3 {
        let leader = cluster.leader().await;
        // The leader of the meta group may be damaged, too.
        let damaged = (leader + round) % 3;
        let before = cluster.state(damaged).await.shards[&1].members.clone();
        cluster.stop(damaged).await;
        let logs = files_of(&cluster.data_dir(damaged).join("raft"), "log");
        match round {
            0 => logs.iter().for_each(|file| flip_first_bits(file)),
            1 => logs.iter().for_each(|file| std::fs::remove_file(file).unwrap()),
            _ => {
                let mark = cluster.data_dir(damaged).join("raft/SYNCED");
                let mut bytes = std::fs::read(&mark).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                std::fs::write(mark, bytes).unwrap();
            }
        }
        cluster.restart(damaged).await;
        let start = Instant::now();
        while !cluster.is_ready(damaged) {
            assert!(start.elapsed() < PATIENCE, "round {round}: {:?}", cluster.state(damaged).await.shards);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let after = cluster.state(damaged).await.shards[&1].members.clone();
        assert_ne!(before, after, "round {round}: the node votes with its old identity");
        assert!(!cluster.data_dir(damaged).join("raft-damaged").exists());
        let last = serial + 20;
        let caught_up = || cluster.metric(damaged, APPLIED) > last as f64;
        serial = append_until(&cluster, serial, "the node does not follow", caught_up).await;
    }
    for member in 0..3 {
        cluster.make_leader(member).await;
        assert_eq!(cluster.times(member).await, times_of(0..serial), "node {}", member + 1);
    }
}

#[tokio::test]
async fn a_node_alone_with_a_damaged_log_does_not_open_and_keeps_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    opened.append(&batch(None, [1])).await.unwrap();
    opened.node.shutdown().await;
    drop(opened);
    files_of(&folder.path().join("raft"), "log").iter().for_each(|file| flip_first_bits(file));
    let error = Node::open(config(folder.path()), &mut Registry::default()).await.unwrap_err();
    assert!(error.to_string().contains("Raft log"), "{error}");
    assert!(!folder.path().join("raft-damaged").exists() && folder.path().join("shard-0001").exists());
}
