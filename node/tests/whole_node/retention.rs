//! Tests of retention: samples older than the retention are refused or dropped. At the cap on disk use, the oldest
//! partitions are dropped.

use std::time::{Duration, Instant};

use node::Node;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::support::{self, batch, batch_of, config, long_name, open_with, time_of, times_of};

#[tokio::test]
async fn a_cap_that_cannot_work_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.disk_bytes_max = 1 << 20;
    let error = Node::open(config, &mut Registry::default()).await.unwrap_err().to_string();
    assert!(error.contains("disk_bytes_max") && error.contains(&node::DISK_BYTES_MIN.to_string()), "{error}");
}

#[tokio::test]
async fn samples_past_the_retention_are_refused_and_partitions_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    // Partitions last 6 hours. `end_ns` is the end of the last complete partition, and its retention ends in two
    // to three seconds.
    let end_ns = now_ns - now_ns % (6 * 3600 * 1_000_000_000);
    let retention = Duration::from_secs(((now_ns - end_ns) / 1_000_000_000) as u64) + Duration::from_secs(3);
    config.retention.raw = retention;
    let opened = open_with(config).await;
    opened.node.ready().await;
    let serial_of = |ns: i64| (ns - support::START_NS) / 1_000_000;
    let older = serial_of(end_ns) - 10_000;
    let old = serial_of(end_ns) - 1;
    let new = serial_of(now_ns);
    let answer = support::answer(&opened.node, &batch(None, [older, old, new])).await.unwrap();
    assert_eq!((answer.samples_too_old, answer.retention_seconds), (1, retention.as_secs()));
    assert_eq!(opened.times().await, times_of([old, new]));
    let alone = support::answer(&opened.node, &batch(None, [older])).await.unwrap();
    assert_eq!(alone.samples_too_old, 1);
    let start = Instant::now();
    while opened.times().await != [time_of(new)] {
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", opened.times().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The same stack again. The shard has dropped the definitions of the old partition, but the append succeeds.
    opened.append(&batch(None, [new - 1])).await.unwrap();
    opened.node.shutdown().await;
}

#[tokio::test]
async fn above_the_cap_the_oldest_partition_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.disk_bytes_max = node::DISK_BYTES_MIN;
    let opened = open_with(config).await;
    opened.node.ready().await;
    let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    // The first sample of today is from 1000 seconds ago, but not from before the present partition of 6 hours.
    let partition_ns = now_ns - now_ns % (6 * 3600 * 1_000_000_000);
    let first_today = ((now_ns - 1_000_000_000_000).max(partition_ns) - support::START_NS) / 1_000_000 + 1;
    // Symbol tables have a cap of their own.
    let symbols = folder.path().join("symbols");
    std::fs::write(&symbols, vec![1; 300 << 20]).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // Each batch has 10 MB of names that do not compress. The 30 MB of January take space several times: in the log
    // until it is purged, with the raw samples and minutes, with the hours, and with the days.
    let mut next_id = 0;
    let mut large = |first: i64| {
        next_id += 1;
        batch_of(Some(next_id), first..first + 200, long_name)
    };
    for i in 0..3 {
        opened.append(&large(i * 200)).await.unwrap();
    }
    assert_eq!(opened.times().await.len(), 600);
    // Batches of today follow, until an append is refused and January is dropped. A refusal alone does not show the
    // drop, since the log also takes and releases space.
    let mut today = 0;
    let mut refused = None;
    let of_today = |today| times_of((0..today * 200).map(|i| first_today + i));
    let start = Instant::now();
    while refused.is_none() || opened.times().await != of_today(today) {
        match opened.append(&large(first_today + today * 200)).await {
            Ok(_) => today += 1,
            Err(status) => {
                refused = Some(status);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        assert!(today < 200, "2 GB went into 256 MB");
        assert!(start.elapsed() < Duration::from_secs(30), "{} samples are there", opened.times().await.len());
    }
    let status = refused.unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("raise the cap"), "{status}");
    println!("{} MB of today were taken, {} MiB are on disk", today * 10, support::used_bytes(folder.path()) >> 20);
    assert!(today >= 5, "{today}");
    opened.node.shutdown().await;
}
