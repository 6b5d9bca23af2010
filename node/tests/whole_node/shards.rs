//! Tests of a node with several shards: each keeps its data, one fails alone, and all start together.

use std::num::NonZeroU16;
use std::path::Path;
use std::time::{Duration, Instant};

use node::{Config, Node, NodeError};
use prometheus_client::registry::Registry;

use crate::support::{Opened, answer_of, batch, batch_of, config, long_name, open, open_with, times_in, times_of};

fn with_shards(data_dir: &Path, shards: u16) -> Config {
    Config { shards: NonZeroU16::new(shards), ..config(data_dir) }
}

async fn opened(config: Config) -> Opened {
    let opened = open_with(config).await;
    opened.node.ready().await;
    opened
}

/// Returns the serial numbers of a shard's samples in these tests, which differ from those of all other shards.
fn serials(shard: u32) -> std::ops::Range<i64> {
    i64::from(shard) * 1000..i64::from(shard) * 1000 + 20 + i64::from(shard)
}

async fn append_to_each(opened: &Opened, shards: u32) {
    for shard in 1..=shards {
        for serial in serials(shard) {
            answer_of(&opened.node, shard, &batch(None, [serial])).await.unwrap();
        }
    }
}

async fn check_each(opened: &Opened, shards: u32) {
    for shard in 1..=shards {
        assert_eq!(times_in(&opened.node, shard).await.unwrap(), times_of(serials(shard)), "shard {shard}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shard_keeps_its_own_samples_across_a_crash_and_a_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let first = opened(with_shards(folder.path(), 3)).await;
    append_to_each(&first, 3).await;
    check_each(&first, 3).await;
    let status = times_in(&first.node, 4).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound, "{status}");
    // A crash at this moment would leave these files, with nothing flushed.
    assert_eq!(first.metric("varve_node_flushed_index"), 0.0);
    let copied = std::process::Command::new("cp").arg("-a").arg(folder.path()).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let crashed = opened(config(&copy.path().join(folder.path().file_name().unwrap()))).await;
    check_each(&crashed, 3).await;
    crashed.node.shutdown().await;
    first.node.shutdown().await;
    let again = opened(with_shards(folder.path(), 3)).await;
    check_each(&again, 3).await;
    for shard in 1..=3 {
        let index = again.metric(&format!("varve_node_flushed_index{{shard=\"{shard}\"}}"));
        assert!(index >= serials(shard).count() as f64, "shard {shard}: {index}");
    }
    again.node.shutdown().await;
}

#[tokio::test]
async fn the_number_of_shards_is_set_on_the_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let error = Node::open(with_shards(folder.path(), 65), &mut Registry::default()).await.unwrap_err().to_string();
    assert!(error.contains("--shards is 65") && error.contains("at most 64"), "{error}");
    opened(with_shards(folder.path(), 2)).await.node.shutdown().await;
    for other in [1, 3] {
        let error = Node::open(with_shards(folder.path(), other), &mut Registry::default()).await.unwrap_err();
        assert!(matches!(error, NodeError::OtherShards { .. }), "{error}");
        assert!(error.to_string().contains("use --shards 2 or omit it"), "{error}");
    }
    let again = open(folder.path()).await;
    answer_of(&again.node, 2, &batch(None, [1])).await.unwrap();
    again.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_state_is_lost_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_shards(folder.path(), 2);
    config.flush_interval = Duration::from_millis(200);
    let first = opened(config.clone()).await;
    append_to_each(&first, 2).await;
    let start = Instant::now();
    while (1..=2).any(|shard| first.metric(&format!("varve_node_log_first_index{{shard=\"{shard}\"}}")) < 2.0) {
        assert!(start.elapsed() < Duration::from_secs(10), "the log is not purged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    first.node.shutdown().await;
    std::fs::remove_dir_all(folder.path().join("shard-0001")).unwrap();
    let opened = open_with(config).await;
    let unready = || opened.node.unready_shards().iter().map(|one| (one.shard, one.state)).collect::<Vec<_>>();
    let start = Instant::now();
    while unready() != [(1, "failed")] {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", unready());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(times_in(&opened.node, 2).await.unwrap(), times_of(serials(2)));
    let status = times_in(&opened.node, 1).await.unwrap_err();
    assert!(status.message().contains("the log is purged up to entry"), "{status}");
    opened.node.shutdown().await;
}

/// The budget of the heads is that of one shard, and all of its batches together are many times as large.
#[tokio::test(flavor = "multi_thread")]
async fn shards_share_the_memory_of_samples() {
    const SHARDS: u32 = 4;
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_shards(folder.path(), 4);
    config.head_bytes_max = 1 << 20;
    let opened = opened(config).await;
    let mut largest = 0.0_f64;
    for round in 0..60 {
        for shard in 1..=SHARDS {
            let first = i64::from(shard) * 1_000_000 + round * 1000;
            answer_of(&opened.node, shard, &batch(None, first..first + 1000)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        largest = largest.max(opened.metric("varve_node_head_memory_bytes"));
    }
    println!("at most {largest} bytes of samples were in memory");
    assert!(largest > 0.0 && largest < 2.5 * f64::from(1 << 20), "{largest}");
    for shard in 1..=SHARDS {
        let first = i64::from(shard) * 1_000_000;
        assert_eq!(times_in(&opened.node, shard).await.unwrap(), times_of(first..first + 60_000), "shard {shard}");
    }
    opened.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_shards_start_together() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let start = Instant::now();
        let opened = opened(with_shards(folder.path(), 16)).await;
        println!("16 shards are ready after {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(opened.metric("varve_node_replica_state{state=\"serving\""), 16.0);
        for shard in 1..=16 {
            answer_of(&opened.node, shard, &batch_of(None, [round], long_name)).await.unwrap();
            assert_eq!(times_in(&opened.node, shard).await.unwrap(), times_of(0..=round));
        }
        opened.node.shutdown().await;
    }
}
