//! Tests of a full disk: appends are refused, queries are served, nothing acknowledged is lost, and appends resume.
//!
//! Each test mounts a small tmpfs, which needs root.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::small_disk::SmallDisk;
use tonic::Code;

use crate::lagging::cluster::{Cluster, PATIENCE};
use crate::lagging::{APPLIED, FIRST, append_until};
use crate::support::{self, Opened, batch_of, config, long_name, open, open_with, times_of};

/// Fills the disk except for `left_bytes`. This takes some milliseconds.
fn fill(disk: &SmallDisk, left_bytes: u64) {
    let ballast = disk.path().join("ballast");
    fs::create_dir_all(&ballast).unwrap();
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(disk.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut rest: u64 = text.lines().nth(1).unwrap().trim().parse().unwrap();
    rest = rest.saturating_sub(left_bytes);
    // In pieces that become smaller, because the node also takes space, and an allocation that does not fit takes
    // nothing.
    let mut piece = rest;
    while piece >= 64 << 10 {
        let file = ballast.join(fs::read_dir(&ballast).unwrap().count().to_string());
        let taken = Command::new("fallocate").arg("--length").arg(piece.to_string()).arg(file).output().unwrap();
        if taken.status.success() && left_bytes > 0 {
            return;
        }
        piece /= 2;
    }
}

fn empty(disk: &SmallDisk) {
    fs::remove_dir_all(disk.path().join("ballast")).unwrap();
}

/// Appends samples with the serial numbers `first`, `first` + 1 and so on, until an append is refused. Returns the
/// refused serial number, and the refusal.
async fn append_until_refused(opened: &Opened, first: i64) -> (i64, tonic::Status) {
    for serial in first..first + 20_000 {
        if let Err(status) = opened.append(&batch_of(Some(serial as u128), [serial], long_name)).await {
            return (serial, status);
        }
    }
    panic!("20,000 appends of 50 kB fit on a disk of some megabytes");
}

/// Repeats an append until it is accepted. Returns the time that this took.
async fn append_until_accepted(opened: &Opened, serial: i64) -> Duration {
    let start = Instant::now();
    loop {
        match opened.append(&batch_of(Some(serial as u128), [serial], long_name)).await {
            Ok(_duplicate) => return start.elapsed(),
            Err(status) => assert!(start.elapsed() < Duration::from_secs(20), "still refused: {status}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_reserve_appends_are_refused_and_queries_answered() {
    let Some(disk) = SmallDisk::mount("disk_full", 256) else { return };
    let data_dir = disk.path().join("data");
    let opened = open(&data_dir).await;
    let mut next = 0;
    for _round in 0..2 {
        fill(&disk, 90 << 20);
        let (refused, status) = append_until_refused(&opened, next).await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().starts_with("disk is full: "), "{status}");
        assert!(refused > next, "nothing was taken above the reserve");
        assert_eq!(opened.times().await, times_of(0..refused));
        assert!(opened.node.is_ready());
        empty(&disk);
        println!("taken again {:?} after there was space", append_until_accepted(&opened, refused).await);
        next = refused + 1;
    }
    assert!(opened.metric("varve_node_appends_refused_total{reason=\"disk_full\"") > 0.0);
    opened.node.shutdown().await;
    let opened = open(&data_dir).await;
    assert_eq!(opened.times().await, times_of(0..next));
    opened.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_full_to_the_last_byte_loses_nothing_and_resumes() {
    let Some(disk) = SmallDisk::mount("disk_full", 256) else { return };
    let data_dir = disk.path().join("data");
    // The interval is short, so that flushes fail as well as appends to the log.
    let mut config = config(&data_dir);
    config.flush_interval = Duration::from_millis(300);
    let opened = open_with(config).await;
    opened.node.ready().await;
    // Queries run during the whole test.
    let reader = tokio::spawn({
        let node = std::sync::Arc::clone(&opened.node);
        async move {
            for reads in 0_u32.. {
                if let Err(status) = support::count(&node).await {
                    return (reads, status);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            unreachable!()
        }
    });
    let mut next = 0;
    let mut read_only = 0.0;
    for round in 0..5 {
        for _ in 0..100 {
            append_until_accepted(&opened, next).await;
            next += 1;
        }
        // The disk becomes full faster than the node checks the free space.
        let (refused, status) = tokio::join!(append_until_refused(&opened, next), async {
            tokio::task::block_in_place(|| fill(&disk, 0));
        })
        .0;
        assert_eq!(status.code(), Code::ResourceExhausted, "round {round}: {status}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        read_only += opened.metric("varve_node_replica_state{state=\"read_only\"");
        let times = opened.times().await;
        // The sample of the refused append may be there, because the response said that its outcome is unknown.
        assert!(times == times_of(0..refused) || times == times_of(0..refused + 1), "round {round}: {}", times.len());
        empty(&disk);
        println!(
            "round {round}: taken again {:?} after there was space",
            append_until_accepted(&opened, refused).await
        );
        next = refused + 1;
        assert_eq!(opened.times().await, times_of(0..next), "round {round}");
    }
    assert!(read_only > 0.0, "the watch of free space was always faster: no write met the full disk");
    opened.node.shutdown().await;
    let (reads, status) = reader.await.unwrap();
    assert!(status.message().contains("stop"), "read {reads} was refused before the shutdown: {status}");
    let opened = open(&data_dir).await;
    assert_eq!(opened.times().await, times_of(0..next));
    opened.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_while_the_disk_is_full_closes_the_databases() {
    let Some(disk) = SmallDisk::mount("disk_full", 256) else { return };
    let data_dir = disk.path().join("data");
    let opened = open(&data_dir).await;
    let mut next = 0;
    let is_read_only = || opened.metric("varve_node_replica_state{state=\"read_only\"") > 0.0;
    // The disk must become full between two checks of the free space. Otherwise the node refuses appends before a write
    // fails.
    while !is_read_only() {
        assert!(next < 100_000, "no write met the full disk");
        let (refused, _status) = tokio::join!(append_until_refused(&opened, next), async {
            tokio::task::block_in_place(|| fill(&disk, 0));
        })
        .0;
        tokio::time::sleep(Duration::from_millis(500)).await;
        next = refused + 1;
        if !is_read_only() {
            empty(&disk);
            append_until_accepted(&opened, refused).await;
        }
    }
    opened.node.shutdown().await;
    empty(&disk);
    // The first node still exists and has no file open.
    let again = open(&data_dir).await;
    assert!(again.times().await.len() as i64 >= next - 1);
    again.node.shutdown().await;
    drop(opened);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_all_shards_and_all_resume() {
    const SHARDS: u32 = 3;
    let Some(disk) = SmallDisk::mount("disk_full", 256) else { return };
    let config = node::Config { shards: std::num::NonZeroU16::new(3), ..config(&disk.path().join("data")) };
    let opened = open_with(config).await;
    opened.node.ready().await;
    let append = |shard, serial: i64| {
        let node = &opened.node;
        async move { support::answer_of(node, shard, &batch_of(Some(serial as u128), [serial], long_name)).await }
    };
    for shard in 1..=SHARDS {
        append(shard, 0).await.unwrap();
    }
    // The disk must become full between two checks of the free space, so that a write to the log fails.
    let is_read_only = || opened.metric("varve_node_replica_state{state=\"read_only\"") > 0.0;
    let mut next = 1;
    let mut unknown = Vec::new();
    while !is_read_only() {
        assert!(next < 100_000, "no write met the full disk");
        let (refused, _status) = tokio::join!(append_until_refused(&opened, next), async {
            tokio::task::block_in_place(|| fill(&disk, 0));
        })
        .0;
        tokio::time::sleep(Duration::from_millis(500)).await;
        next = refused + 1;
        unknown.push(support::time_of(refused));
        if !is_read_only() {
            empty(&disk);
            append_until_accepted(&opened, refused).await;
        }
    }
    for shard in 1..=SHARDS {
        let status = append(shard, next).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "shard {shard}: {status}");
        assert_eq!(support::times_in(&opened.node, shard).await.unwrap()[0], support::time_of(0), "shard {shard}");
    }
    empty(&disk);
    let start = Instant::now();
    for shard in 1..=SHARDS {
        while let Err(status) = append(shard, next).await {
            assert!(start.elapsed() < Duration::from_secs(20), "shard {shard} still refuses: {status}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    println!("all shards took appends {:?} after there was space", start.elapsed());
    let mut times = opened.times().await;
    let mut expected = times_of(0..=next);
    for times in [&mut times, &mut expected] {
        times.retain(|time| !unknown.contains(time));
    }
    assert_eq!(times, expected);
    for shard in 2..=SHARDS {
        assert_eq!(support::times_in(&opened.node, shard).await.unwrap(), times_of([0, next]), "shard {shard}");
    }
    opened.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_full_disk_keeps_no_log_for_members_that_lag() {
    let Some(disk) = SmallDisk::mount("disk_full", 256) else { return };
    let mut cluster = Cluster::start(|config| {
        config.flush_interval = Duration::from_millis(100);
        if config.node_id == 1 {
            config.data_dir = disk.path().join("data");
        }
    })
    .await;
    let next = append_until(&cluster, 0, "nothing is applied", || cluster.metric(0, APPLIED) >= 100.0).await;
    assert!(cluster.metric(0, FIRST) <= 1.0, "the log is purged while there is space");
    let start = Instant::now();
    while cluster.metric(0, FIRST) < 100.0 {
        assert!(start.elapsed() < PATIENCE, "the log is not purged");
        // The node may free space of other files first.
        fill(&disk, 8 << 20);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(cluster.metric(1, FIRST) <= 1.0 && cluster.metric(2, FIRST) <= 1.0, "another node purges its log");
    empty(&disk);
    let last = next + 20;
    let caught_up = || cluster.metric(0, APPLIED) > last as f64;
    let next = append_until(&cluster, next, "the member does not resume", caught_up).await;
    cluster.make_leader(0).await;
    assert_eq!(cluster.times(0).await, times_of(0..next));
    for member in 0..3 {
        cluster.stop(member).await;
    }
}
