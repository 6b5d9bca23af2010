//! Tests of an append that waits for a repair, of queries whose callers go away, and of the text for a full disk.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use proto::limits;
use proto::placement::FIRST_DATA_SHARD;
use storage_engine::SelectError;

use super::*;
use crate::node::shared::REPAIR_PATIENCE;
use crate::{Config, Retention};

async fn opened(folder: &tempfile::TempDir) -> Arc<Node> {
    opened_with(folder, None).await
}

async fn opened_with(folder: &tempfile::TempDir, shards: Option<NonZeroU16>) -> Arc<Node> {
    let day = Duration::from_secs(86_400);
    let retention = Retention { raw: day, minutes: day, hours: day, days: day };
    let config = Config { shards, ..Config::new(folder.path().to_owned(), retention, 1 << 30) };
    let node = Node::open(config, &mut Registry::default()).await.unwrap();
    node.ready().await;
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_waits_for_a_repair_counts_against_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened(&folder).await;
    node.shared.shard(FIRST_DATA_SHARD).unwrap().set_state(State::Repairing);
    let batch = testkit::batches::batch(None, [1, 2]);
    let bytes = batch.memory_bytes();
    let waiting = tokio::spawn({
        let node = Arc::clone(&node);
        async move { node.append(FIRST_DATA_SHARD, node.shared.cluster.placement().unwrap().epoch(), batch).await }
    });
    let start = Instant::now();
    while node.shared.appends.available_permits() != APPENDS_IN_FLIGHT_BYTES_MAX - bytes {
        assert!(start.elapsed() < Duration::from_secs(5), "{bytes} bytes are held without budget");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A shutdown ends the append's wait for the repair.
    let start = Instant::now();
    node.shutdown().await;
    let refusal = waiting.await.unwrap().unwrap_err();
    assert!(refusal.message().contains("stopping") && start.elapsed() < Duration::from_secs(3), "{refusal}");
    assert_eq!(node.shared.appends.available_permits(), APPENDS_IN_FLIGHT_BYTES_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_that_wait_for_a_repair_take_only_the_part_of_their_shard() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened_with(&folder, NonZeroU16::new(2)).await;
    let epoch = node.shared.cluster.placement().unwrap().epoch();
    let repaired = node.shared.shard(1).unwrap();
    repaired.set_state(State::Repairing);
    let waiting = repaired.wait_for_repair(APPENDS_IN_FLIGHT_BYTES_MAX / 2, 1).expect("one append may wait");
    let start = Instant::now();
    let refusal = node.append(1, epoch, testkit::batches::batch(None, [1])).await.unwrap_err();
    assert!(refusal.message().contains("shard 1 is being repaired"), "{refusal}");
    assert!(start.elapsed() < REPAIR_PATIENCE, "the append waited without budget");
    node.append(2, epoch, testkit::batches::batch(None, [2])).await.unwrap();
    drop(waiting);
    assert!(repaired.wait_for_repair(1, 1).is_some());
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_whose_caller_has_gone_ends_and_frees_its_permit() {
    let folder = tempfile::tempdir().unwrap();
    let node = opened(&folder).await;
    let (began, has_begun) = std::sync::mpsc::channel();
    let callers: Vec<_> = (0..limits::QUERIES_AT_ONCE_MAX)
        .map(|_| {
            let node = Arc::clone(&node);
            let began = began.clone();
            tokio::spawn(async move {
                let answer = move |_: &Replica, is_wanted: &(dyn Fn() -> bool + Sync)| {
                    began.send(()).unwrap();
                    let start = Instant::now();
                    while is_wanted() {
                        // A query that never stops must fail this test, and not block it forever.
                        assert!(start.elapsed() < Duration::from_secs(30));
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err::<(), _>(SelectError::Cancelled)
                };
                node.shared.read(FIRST_DATA_SHARD, ReadAt::leader(1), answer).await
            })
        })
        .collect();
    let all_begun = move || (0..limits::QUERIES_AT_ONCE_MAX).try_for_each(|_| has_begun.recv());
    spawn_blocking(all_begun).await.unwrap().unwrap();
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    let another = node.shared.read(FIRST_DATA_SHARD, ReadAt::leader(1), |_, is_wanted| Ok(is_wanted()));
    let answered = tokio::time::timeout(Duration::from_secs(15), another).await;
    assert!(answered.expect("no permit is free").unwrap(), "a caller who waits is reported as waiting");
    node.shutdown().await;
}

#[test]
fn a_cap_that_unrepaired_damage_keeps_reached_has_another_remedy() {
    let dropped = |is_unrepaired| full_text(true, is_unrepaired).contains("partitions are being dropped");
    assert_eq!([dropped(false), dropped(true)], [true, false]);
    assert!(full_text(true, true).contains("raise the cap"));
    assert_eq!(full_text(false, true), full_text(false, false));
}
