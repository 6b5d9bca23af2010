//! Tests of repairs, of failures before and during them, and of shards beside a shard that is repaired or has failed.

use std::num::NonZeroU16;

use prometheus_client::registry::Registry;
use proto::placement::FIRST_DATA_SHARD;
use proto::{Shards as _, Tier};

use super::*;
use crate::consensus::Proposal;
use crate::error::failed_sync;
use crate::node::Node;
use crate::{Config, Retention};

fn config(folder: &tempfile::TempDir) -> Config {
    let day = Duration::from_secs(86_400);
    let retention = Retention { raw: day, minutes: day, hours: day, days: day };
    Config::new(folder.path().to_owned(), retention, 1 << 30)
}

async fn opened(folder: &tempfile::TempDir) -> (Arc<Node>, Arc<Replica>) {
    let node = Node::open(config(folder), &mut Registry::default()).await.unwrap();
    node.ready().await;
    let replica = node.shared.shard(FIRST_DATA_SHARD).unwrap().serving().expect("it does not serve");
    (node, replica)
}

/// Checks that a failed sync after damage ends the node. With `hold`, a query runs, so that the sync fails while
/// the repair waits for this query.
async fn fails_after_damage(hold: bool) {
    let folder = tempfile::tempdir().unwrap();
    let (node, replica) = opened(&folder).await;
    let queries = Arc::clone(&node.shared.shard(FIRST_DATA_SHARD).unwrap().queries);
    let query = hold.then(|| queries.try_read_owned().unwrap());
    replica.failure().report(ReplicaError::Damaged);
    sleep(if hold { 2 * REPAIR_INTERVAL } else { REPAIR_INTERVAL / 2 }).await;
    replica.log().failure().report(failed_sync());
    drop(replica);
    let failed = tokio::time::timeout(Duration::from_secs(5), node.failed()).await;
    assert!(matches!(*failed.expect("the replica was opened again"), ReplicaError::Sync(_)));
    drop(query);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_before_a_repair_ends_the_node() {
    fails_after_damage(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_while_a_repair_waits_for_queries_ends_the_node() {
    fails_after_damage(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_work_that_a_repair_interrupts_are_not_final() {
    let folder = tempfile::tempdir().unwrap();
    let shared = Shared::open(config(&folder), &mut Registry::default()).await.unwrap();
    let hosted = Arc::new(Hosted::new(
        FIRST_DATA_SHARD,
        shared.cluster.directory(),
        shared.closing.child_token(),
        shared.metrics.clone(),
    ));
    shared.directory.make_shard(FIRST_DATA_SHARD).unwrap();
    let replica = shared.open_replica(&hosted).await.unwrap();
    let directory = replica.log().directory_id();
    let member = crate::consensus::Member { address: "127.0.0.1:1".to_owned(), directory };
    replica.create([(1, member)].into()).await.unwrap();
    replica.recovered().await;
    replica.stop().await;
    let error = replica.flush().await.expect_err("the log is purged without consensus");
    assert!(replica.failure().get().is_none(), "the stop is reported as a failure: {error}");
    let interrupted = {
        let hosted = Arc::clone(&hosted);
        let replica = Arc::clone(&replica);
        async move {
            hosted.reached(|state| matches!(state, State::Repairing).then_some(())).await;
            // The close waits for this work.
            sleep(Duration::from_millis(50)).await;
            replica.failure().report(ReplicaError::Consensus("the work was interrupted".into()));
        }
    };
    let interrupted = tokio::spawn(interrupted);
    let opened = close_and_open(&shared, &hosted, replica, Duration::ZERO, &State::Repairing).await;
    interrupted.await.unwrap();
    let (opened, _held) = opened.expect("the replica was not opened again");
    opened.close().await;
}

// Regression: the node makes the folder of the state before it opens it. The repair took the empty folder for the
// new state, and deleted the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_died_between_its_renames_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (node, replica) = opened(&folder).await;
    replica.propose(Proposal::expire(Tier::Raw, 0, 0)).await.unwrap();
    replica.flush().await.unwrap();
    let flushed = replica.shard().flushed_index();
    assert!(flushed.is_some());
    drop(replica);
    node.shutdown().await;
    let state = folder.path().join("shard-0001/state-1");
    std::fs::rename(&state, folder.path().join("shard-0001/state-1.damaged")).unwrap();
    let (node, replica) = opened(&folder).await;
    assert!(replica.shard().flushed_index() >= flushed, "the state is new");
    drop(replica);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_alone_opens_the_replica_again() {
    let folder = tempfile::tempdir().unwrap();
    let (node, replica) = opened(&folder).await;
    let first = Arc::downgrade(&replica);
    replica.failure().report(ReplicaError::Damaged);
    drop(replica);
    let is_another = |state: &State| match state {
        State::Serving(replica) => (Arc::downgrade(replica).as_ptr() != first.as_ptr()).then_some(()),
        _ => None,
    };
    let hosted = node.shared.shard(FIRST_DATA_SHARD).unwrap();
    let repaired = tokio::time::timeout(Duration::from_secs(20), hosted.reached(is_another));
    repaired.await.expect("the replica was not opened again");
    node.shutdown().await;
}

/// Opens a node with some shards, and appends a sample to each.
async fn opened_with_shards(folder: &tempfile::TempDir, shards: u16) -> Arc<Node> {
    let config = Config { shards: NonZeroU16::new(shards), ..config(folder) };
    let node = Node::open(config, &mut Registry::default()).await.unwrap();
    node.ready().await;
    for &shard in node.shared.shards().keys() {
        append(&node, shard, 0).await.unwrap();
    }
    node
}

async fn append(node: &Node, shard: u32, serial: i64) -> Result<(), tonic::Status> {
    // Newer than the retention of a day.
    let now_ms = node.shared.clock.now_ns() / 1_000_000;
    let first = now_ms - testkit::batches::START_NS / 1_000_000;
    let batch = testkit::batches::batch(None, [first + serial]);
    node.append(shard, node.shared.cluster.placement().unwrap().epoch(), batch).await.map(|_appended| ())
}

async fn is_served(node: &Node, shard: u32) -> bool {
    let window = proto::Window { start_ns: 0, end_ns: i64::MAX };
    let tenant = proto::TenantId::default_tenant();
    let query = proto::SeriesQuery { tenant, matchers: Vec::new(), window, label: None };
    let series = node.series(shard, proto::ReadAt::leader(node.shared.cluster.placement().unwrap().epoch()), query);
    let series = tokio::time::timeout(Duration::from_secs(5), series).await;
    series.is_ok_and(|series| series.is_ok_and(|answer| answer.series.len() == 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_repaired_while_another_serves() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened_with_shards(&folder, 2).await;
    let [damaged, other] = [1, 2].map(|shard| Arc::clone(&node.shared.shard(shard).unwrap()));
    // A query of the damaged shard runs, so the repair waits for it.
    let query = Arc::clone(&damaged.queries).try_read_owned().unwrap();
    let first = Arc::downgrade(&damaged.serving().unwrap());
    damaged.serving().unwrap().failure().report(ReplicaError::Damaged);
    sleep(2 * REPAIR_INTERVAL).await;
    let waiting = tokio::spawn({
        let node = Arc::clone(&node);
        async move { is_served(&node, 1).await }
    });
    for serial in 1..20 {
        append(&node, 2, serial).await.unwrap();
        assert!(is_served(&node, 2).await);
        assert!(matches!(other.state(), State::Serving(_)));
    }
    assert!(!waiting.is_finished(), "the query did not wait for the repair");
    drop(query);
    assert!(waiting.await.unwrap(), "the query was refused");
    let repaired = damaged.serving().unwrap();
    assert!(first.as_ptr() != Arc::as_ptr(&repaired), "the replica was not opened again");
    drop(repaired);
    append(&node, 1, 1).await.unwrap();
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_fails_for_good_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened_with_shards(&folder, 2).await;
    let [one, two] = [1, 2].map(|shard| node.shared.shard(shard).unwrap().serving().unwrap());
    one.failure().report(ReplicaError::Consensus("a test".into()));
    drop(one);
    node.shared.shard(1).unwrap().reached(|state| matches!(state, State::Failed(_)).then_some(())).await;
    let unready: Vec<_> = node.unready_shards().iter().map(|unready| (unready.shard, unready.state)).collect();
    assert_eq!(unready, [(1, "failed")]);
    let refused = append(&node, 1, 1).await.unwrap_err();
    assert!(refused.code() == tonic::Code::Unavailable && refused.message().contains("a test"), "{refused}");
    append(&node, 2, 1).await.unwrap();
    assert!(is_served(&node, 2).await && !is_served(&node, 1).await);
    let failed = tokio::time::timeout(Duration::from_millis(500), node.failed()).await;
    assert!(failed.is_err(), "the process would end");
    // The log is shared: its failure ends all shards.
    two.log().failure().report(failed_sync());
    drop(two);
    let failed = tokio::time::timeout(Duration::from_secs(5), node.failed()).await;
    assert!(matches!(*failed.unwrap(), ReplicaError::Sync(_)));
    assert!(append(&node, 2, 2).await.is_err() && !is_served(&node, 2).await);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_shards_are_opened_again_with_the_log_after_its_disk_was_full() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened_with_shards(&folder, 3).await;
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let first = Arc::downgrade(node.shared.shard(1).unwrap().serving().unwrap().log());
    node.shared.raft_log.failure().report(ReplicaError::Files(full));
    for hosted in node.shared.shards().values() {
        hosted.reached(|state| matches!(state, State::ReadOnly(_)).then_some(())).await;
        assert!(is_served(&node, hosted.number()).await, "a read-only shard serves queries");
    }
    assert!(node.is_ready());
    let served = tokio::time::timeout(Duration::from_secs(20), node.ready()).await;
    served.expect("the shards were not opened again");
    assert!(first.upgrade().is_none(), "the log was not closed");
    for &shard in node.shared.shards().keys() {
        append(&node, shard, 1).await.unwrap();
        assert!(is_served(&node, shard).await);
    }
    node.shutdown().await;
}
