//! Tests of a member that was away for longer than the other members keep their logs.

pub(crate) mod cluster;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use node::Config;

use self::cluster::{Cluster, PATIENCE};
use crate::support::{batch, batch_of, long_name, times_of};

pub(crate) const INSTALLED: &str = "varve_node_snapshots_installed_total";
pub(crate) const APPLIED: &str = "varve_node_applied_index";
pub(crate) const FIRST: &str = "varve_node_log_first_index";
const FLUSHED: &str = "varve_node_flushed_index{shard=\"1\"}";

/// Flushes often, and keeps flushed entries for a second.
pub(crate) fn keep_little(config: &mut Config) {
    config.flush_interval = Duration::from_millis(100);
    config.log_keep_time = Duration::from_secs(1);
}

/// Appends one sample after another, from `serial` on, until `is_done` returns true. Returns the next serial number.
pub(crate) async fn append_until(cluster: &Cluster, mut serial: i64, what: &str, is_done: impl Fn() -> bool) -> i64 {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        cluster.append(serial, &batch(Some(serial as u128), [serial])).await;
        serial += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    serial
}

/// Stops a follower, and appends until the log of the leader begins after the log of the follower ends. Returns the
/// follower and the next serial number.
async fn leave_behind(cluster: &mut Cluster, serial: i64) -> (usize, i64) {
    let leader = cluster.leader().await;
    let lagging = (leader + 1) % 3;
    let applied = cluster.metric(lagging, APPLIED);
    cluster.stop(lagging).await;
    // Any member may lead meanwhile, and both of them purge.
    let others: Vec<usize> = (0..3).filter(|&member| member != lagging).collect();
    let purged = || others.iter().all(|&member| cluster.metric(member, FIRST) > applied + 50.0);
    let serial = append_until(cluster, serial, "the log is not purged", purged).await;
    (lagging, serial)
}

/// Number of samples with large definitions, which take about a second to send.
const LARGE: i64 = 2000;

async fn append_large(cluster: &Cluster) {
    for first in (0..LARGE).step_by(10) {
        cluster.append(first, &batch_of(Some(first as u128), first..first + 10, long_name)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lags_behind_the_log_installs_one_snapshot() {
    let mut cluster = Cluster::start(keep_little).await;
    let serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 20.0).await;
    let (lagging, serial) = leave_behind(&mut cluster, serial).await;
    cluster.restart(lagging).await;
    let installed = || cluster.metric(lagging, INSTALLED) >= 1.0;
    let serial = append_until(&cluster, serial, "no snapshot is installed", installed).await;
    // The entries after the snapshot come from the log.
    let last = serial + 300;
    let caught_up = || cluster.metric(lagging, APPLIED) > last as f64;
    let serial = append_until(&cluster, serial, "the log does not follow the snapshot", caught_up).await;
    assert_eq!(cluster.metric(lagging, INSTALLED), 1.0);
    // The lagging member has all samples, also after another restart.
    cluster.stop(lagging).await;
    cluster.restart(lagging).await;
    cluster.make_leader(lagging).await;
    assert_eq!(cluster.times(lagging).await, times_of(0..serial));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lags_within_the_kept_log_needs_no_snapshot() {
    let mut cluster = Cluster::start(|config| config.flush_interval = Duration::from_millis(100)).await;
    let leader = cluster.leader().await;
    let lagging = (leader + 1) % 3;
    cluster.stop(lagging).await;
    let serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(leader, APPLIED) >= 400.0).await;
    cluster.restart(lagging).await;
    let caught_up = || cluster.metric(lagging, APPLIED) >= 400.0;
    let serial = append_until(&cluster, serial, "the member does not catch up", caught_up).await;
    assert_eq!(cluster.metric(lagging, INSTALLED), 0.0);
    cluster.make_leader(lagging).await;
    assert_eq!(cluster.times(lagging).await, times_of(0..serial));
}

/// A flush lets the log of the sender begin later. If a member needed another snapshot after each flush, it would never
/// be done.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_ends_although_its_sender_flushes_meanwhile() {
    let mut cluster = Cluster::start(keep_little).await;
    append_large(&cluster).await;
    let (lagging, serial) = leave_behind(&mut cluster, LARGE).await;
    cluster.restart(lagging).await;
    // Any other member may be the sender, so both have to flush.
    let others = [(lagging + 1) % 3, (lagging + 2) % 3];
    let flushed = RefCell::new([BTreeSet::new(), BTreeSet::new()]);
    let installed = || {
        if cluster.staged_bytes(lagging) > 0 {
            for (flushed, member) in flushed.borrow_mut().iter_mut().zip(others) {
                flushed.insert(cluster.metric(member, FLUSHED) as u64);
            }
        }
        cluster.metric(lagging, INSTALLED) >= 1.0
    };
    let serial = append_until(&cluster, serial, "no snapshot is installed", installed).await;
    assert!(flushed.borrow().iter().all(|flushed| flushed.len() > 1), "the transfer was too short: {flushed:?}");
    let last = serial as f64 + 300.0;
    let serial =
        append_until(&cluster, serial, "the log does not follow", || cluster.metric(lagging, APPLIED) > last).await;
    assert_eq!(cluster.metric(lagging, INSTALLED), 1.0);
    cluster.make_leader(lagging).await;
    assert_eq!(cluster.times(lagging).await, times_of(0..serial));
}

/// The crash is between the change of the pointer to the state and the write that lets the log begin after the state.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_a_snapshot_replaced_the_state_is_recovered() {
    let mut cluster = Cluster::start(keep_little).await;
    let serial = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 20.0).await;
    let (lagging, serial) = leave_behind(&mut cluster, serial).await;
    let other = (0..3).find(|&member| member != lagging).unwrap();
    cluster.stop(other).await;
    cluster.replace_state(lagging, other);
    cluster.restart(other).await;
    cluster.restart(lagging).await;
    let last = serial + 100;
    let caught_up = || cluster.metric(lagging, APPLIED) > last as f64;
    let serial = append_until(&cluster, serial, "the log does not follow the state", caught_up).await;
    assert_eq!(cluster.metric(lagging, INSTALLED), 0.0);
    cluster.make_leader(lagging).await;
    assert_eq!(cluster.times(lagging).await, times_of(0..serial));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_leader_completes_a_snapshot_whose_sender_dies() {
    let mut cluster = Cluster::start(keep_little).await;
    append_large(&cluster).await;
    let (lagging, serial) = leave_behind(&mut cluster, LARGE).await;
    cluster.restart(lagging).await;
    let start = Instant::now();
    while cluster.staged_bytes(lagging) < 1 << 20 {
        assert!(start.elapsed() < PATIENCE, "no snapshot is received");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let dead = cluster.leader().await;
    cluster.kill(dead);
    assert_eq!(cluster.metric(lagging, INSTALLED), 0.0, "the transfer was too short");
    let installed = || cluster.metric(lagging, INSTALLED) >= 1.0;
    let serial = append_until(&cluster, serial, "no other leader sends a snapshot", installed).await;
    let last = serial as f64;
    let caught_up = || cluster.metric(lagging, APPLIED) > last;
    let serial = append_until(&cluster, serial, "the member does not catch up", caught_up).await;
    cluster.make_leader(lagging).await;
    assert_eq!(cluster.times(lagging).await, times_of(0..serial));
}
