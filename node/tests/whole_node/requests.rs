//! Appends and queries: acknowledgement, restarts, retries and refusals.

use std::time::{Duration, Instant};

use node::{Node, NodeError};
use prometheus_client::registry::Registry;
use prost::Message as _;
use proto::placement::FIRST_DATA_SHARD;
use proto::wire::cluster_client::ClusterClient;
use proto::wire::node_client::NodeClient;
use proto::wire::node_server::Node as _;
use proto::{LabelSet, wire};
use tonic::{Code, Request};

use crate::lagging::cluster::Cluster;
use crate::support::{self, append, batch, batch_of, config, long_name, open, open_with, times_of};

#[tokio::test]
async fn a_new_node_serves_within_two_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let opened = open_with(config(folder.path())).await;
    opened.node.ready().await;
    println!("ready after {:?}", start.elapsed());
    assert!(opened.node.is_ready());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(opened.times().await.is_empty());
    opened.node.shutdown().await;
}

#[tokio::test]
async fn acknowledged_samples_are_there_after_a_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let opened = open(folder.path()).await;
        assert_eq!(opened.times().await, times_of(0..round * 10), "round {round}");
        for serial in round * 10..round * 10 + 10 {
            opened.append(&batch(None, [serial])).await.unwrap();
        }
        assert_eq!(opened.times().await, times_of(0..round * 10 + 10));
        opened.node.shutdown().await;
    }
}

#[tokio::test]
async fn a_restart_without_a_flush_replays_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    for serial in 0..50 {
        opened.append(&batch(None, [serial])).await.unwrap();
    }
    // A crash at this moment would leave these files, with nothing flushed.
    assert_eq!(opened.metric("varve_node_flushed_index"), 0.0);
    let copied = std::process::Command::new("cp").arg("-a").arg(folder.path()).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    let restarted = open(&copy.path().join(folder.path().file_name().unwrap())).await;
    assert_eq!(restarted.times().await, times_of(0..50));
    restarted.node.shutdown().await;
    opened.node.shutdown().await;
}

#[tokio::test]
async fn a_batch_id_counts_once_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    assert!(!opened.append(&batch(Some(7), [1, 2])).await.unwrap());
    assert!(opened.append(&batch(Some(7), [1, 2])).await.unwrap());
    assert!(!opened.append(&batch(Some(8), [3])).await.unwrap());
    opened.node.shutdown().await;
    let opened = open(folder.path()).await;
    assert!(opened.append(&batch(Some(7), [1, 2])).await.unwrap());
    assert_eq!(opened.times().await, times_of([1, 2, 3]));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn a_batch_larger_than_an_entry_counts_once_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let large = batch_of(Some(9), 0..500, long_name);
    let before = opened.metric("varve_node_log_entries_total");
    assert!(!opened.append(&large).await.unwrap());
    let entries = opened.metric("varve_node_log_entries_total") - before;
    assert!(entries >= 2.0, "{entries} entries");
    assert!(opened.append(&large).await.unwrap());
    assert_eq!(opened.times().await, times_of(0..500));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn concurrent_appends_share_syncs_and_all_count() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let before = opened.metric("varve_node_log_syncs_total");
    let tasks: Vec<_> = (0..500)
        .map(|serial| {
            let node = std::sync::Arc::clone(&opened.node);
            tokio::spawn(async move { append(&node, &batch(None, [serial])).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let syncs = opened.metric("varve_node_log_syncs_total") - before;
    assert!(syncs < 250.0, "{syncs} syncs for 500 appends");
    assert_eq!(opened.times().await, times_of(0..500));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn appends_beyond_the_in_flight_budget_are_refused_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    // 20 batches of 10 MB each; 128 MiB may be in flight.
    let tasks: Vec<_> = (0..20)
        .map(|i| {
            let node = std::sync::Arc::clone(&opened.node);
            let batch = batch_of(None, i * 200..i * 200 + 200, long_name);
            tokio::spawn(async move { append(&node, &batch).await })
        })
        .collect();
    let mut taken = Vec::new();
    let mut refused = 0;
    for (i, task) in (0..).zip(tasks) {
        match task.await.unwrap() {
            Ok(_) => taken.extend(i * 200..i * 200 + 200),
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("in flight"), "{status}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && !taken.is_empty(), "{refused} refused");
    assert_eq!(opened.metric("varve_node_appends_refused_total{reason=\"busy\""), f64::from(refused));
    assert_eq!(opened.times().await, times_of(taken));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn the_log_is_purged_up_to_the_flushed_index() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.flush_interval = Duration::from_millis(500);
    let opened = open_with(config).await;
    opened.node.ready().await;
    let start = Instant::now();
    let mut serial = 0;
    while start.elapsed() < Duration::from_secs(5) {
        opened.append(&batch_of(None, [serial], long_name)).await.unwrap();
        serial += 1;
    }
    let metric = |name: &str| opened.metric(&format!("varve_node_{name}"));
    // The log becomes small when the appends of these 5 seconds are purged. RocksDB preallocates the space that is
    // left.
    let raft_bytes = || support::used_bytes(&folder.path().join("raft"));
    let stopped = Instant::now();
    while raft_bytes() >= 8 << 20 || metric("log_first_index") != metric("applied_index") + 1.0 {
        assert!(stopped.elapsed() < Duration::from_secs(15), "{} bytes", raft_bytes());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!(
        "{serial} appends, first in the log {}, flushed {}, applied {}, {} KiB of log on disk",
        metric("log_first_index"),
        metric("flushed_index"),
        metric("applied_index"),
        raft_bytes() >> 10,
    );
    assert!(metric("flushed_index") > 0.0);
    assert_eq!(metric("log_first_index"), metric("flushed_index") + 1.0);
    opened.node.shutdown().await;
    // Every sample is still there.
    let opened = open(folder.path()).await;
    assert_eq!(opened.times().await, times_of(0..serial));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn definitions_that_the_shard_has_are_not_logged_again() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let name = |_serial| long_name(0);
    opened.append(&batch_of(None, [1], name)).await.unwrap();
    let before = opened.metric("varve_node_log_entry_bytes_total");
    opened.append(&batch_of(None, [2], name)).await.unwrap();
    let second = opened.metric("varve_node_log_entry_bytes_total") - before;
    assert!(second < 500.0, "{second} bytes");
    assert_eq!(opened.times().await, times_of([1, 2]));
    opened.node.shutdown().await;
}

#[tokio::test]
async fn misplaced_and_broken_requests_are_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let request = |shard, placement_epoch, batch| Request::new(wire::AppendRequest { shard, placement_epoch, batch });
    let changed = |change: fn(&mut wire::SeriesSamples)| {
        let mut batch = wire::Batch::decode(batch(None, [1]).encode()).unwrap();
        change(&mut batch.series[0]);
        Some(batch.encode_to_vec().into())
    };
    let good = changed(|_series| ());
    let dangling = changed(|series| series.pairs[0] = 99);
    let without_labels = changed(|series| series.labels.clear());
    for (request, code, text) in [
        (request(7, 1, good.clone()), Code::NotFound, "shard 7 is not on this node"),
        (request(FIRST_DATA_SHARD, 2, good.clone()), Code::FailedPrecondition, "placement 2"),
        (request(FIRST_DATA_SHARD, 1, None), Code::Internal, "no batch"),
        (request(FIRST_DATA_SHARD, 1, dangling), Code::Internal, "the stack of a sample has no definition"),
        (request(FIRST_DATA_SHARD, 1, without_labels), Code::Aborted, "send it with all of them"),
    ] {
        let status = opened.node.append(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    }
    assert_eq!(opened.metric("varve_node_appends_refused_total"), 5.0);
    assert!(opened.times().await.is_empty());
    opened.append(&batch(None, [1])).await.unwrap();
    opened.node.shutdown().await;
}

// A router that chose shards by another placement would miss samples, and report that all shards had answered.
#[tokio::test]
async fn reads_and_deletions_by_another_placement_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    opened.append(&batch(None, [1])).await.unwrap();
    let node = &opened.node;
    let tenant = "default".to_owned();
    let fold = Some(wire::Fold { kind: 0, edge_deltas_ns: vec![0, i64::MAX] });
    let matcher = wire::Matcher { name: "service_name".to_owned(), operation: 0, value: "test".to_owned() };
    let deletion = wire::Delete { tenant: tenant.clone(), matchers: vec![matcher], start_ns: 0, end_ns: i64::MAX };
    for placement_epoch in [2, 0, 1] {
        let select = wire::SelectRequest {
            shard: FIRST_DATA_SHARD,
            placement_epoch,
            tenant: tenant.clone(),
            fold: fold.clone(),
            ..wire::SelectRequest::default()
        };
        let series = wire::SeriesRequest {
            shard: FIRST_DATA_SHARD,
            placement_epoch,
            tenant: tenant.clone(),
            end_ns: i64::MAX,
            ..wire::SeriesRequest::default()
        };
        let locations = wire::LocationsRequest {
            shard: FIRST_DATA_SHARD,
            placement_epoch,
            tenant: tenant.clone(),
            ..wire::LocationsRequest::default()
        };
        let delete = wire::DeleteRequest { shard: FIRST_DATA_SHARD, placement_epoch, deletion: Some(deletion.clone()) };
        let outcomes = [
            node.select(Request::new(select)).await.map(|_| ()),
            node.series(Request::new(series)).await.map(|_| ()),
            node.locations(Request::new(locations)).await.map(|_| ()),
            node.delete(Request::new(delete)).await.map(|_| ()),
        ];
        for outcome in outcomes {
            match outcome {
                Ok(()) => assert_eq!(placement_epoch, 1),
                Err(status) => {
                    assert_eq!((status.code(), placement_epoch == 1), (Code::FailedPrecondition, false), "{status}");
                    assert!(status.message().contains("read the placement again"), "{status}");
                }
            }
        }
        assert_eq!(opened.times().await.len(), usize::from(placement_epoch != 1), "only the right one deletes");
    }
    node.shutdown().await;
}

#[tokio::test]
async fn a_node_can_be_opened_in_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let opened = tokio::spawn(async move { Node::open(config, &mut Registry::default()).await }).await.unwrap();
    let node = opened.unwrap();
    // A router in the same process holds the node in this form.
    let router_side: std::sync::Arc<dyn proto::Shards<Error = tonic::Status>> = std::sync::Arc::<Node>::clone(&node);
    assert_eq!(router_side.append(99, 1, batch(None, 0..1)).await.unwrap_err().code(), Code::NotFound);
    node.shutdown().await;
}

#[tokio::test]
async fn a_second_opener_of_the_data_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let error = Node::open(config(folder.path()), &mut Registry::default()).await.unwrap_err();
    assert!(matches!(error, NodeError::Held { holder: Some(_), .. }), "{error}");
    opened.node.shutdown().await;
}

#[tokio::test]
async fn a_state_without_the_purged_entries_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.flush_interval = Duration::from_millis(200);
    let opened = open_with(config.clone()).await;
    opened.node.ready().await;
    opened.append(&batch(None, 0..10)).await.unwrap();
    let start = Instant::now();
    while opened.metric("varve_node_log_first_index") < 2.0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the log is not purged");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    opened.node.shutdown().await;
    std::fs::remove_dir_all(folder.path().join("shard-0001")).unwrap();
    let again = open_with(config).await;
    let failed = tokio::time::timeout(Duration::from_secs(10), again.node.failed()).await;
    let error = failed.expect("the node goes on without a shard").to_string();
    assert!(error.contains("as of entry 0, and the log is purged up to entry "), "{error}");
    again.node.shutdown().await;
}

#[tokio::test]
async fn a_sample_larger_than_an_entry_is_refused_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let name = "x".repeat(proto::limits::ENTRY_BYTES_MAX);
    let status = opened.append(&batch_of(None, [1], |_serial| name.clone())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    opened.node.shutdown().await;
}

#[tokio::test]
async fn a_stopped_node_refuses_requests() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    opened.node.shutdown().await;
    let status = opened.append(&batch(None, [1])).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(support::times(&opened.node).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn a_remote_router_gets_the_same_responses() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served =
        tokio::spawn(std::sync::Arc::clone(&opened.node).serve(listener, None, None, async { stopped.await.unwrap() }));
    let mut client = NodeClient::connect(format!("http://{address}"))
        .await
        .unwrap()
        .max_encoding_message_size(proto::limits::NODE_MESSAGE_BYTES_MAX);
    // This request is larger than tonic's default limit of 4 MiB.
    let request = wire::AppendRequest {
        shard: FIRST_DATA_SHARD,
        placement_epoch: 1,
        batch: Some(batch_of(Some(1), 0..200, long_name).encode()),
    };
    assert!(!client.append(request.clone()).await.unwrap().into_inner().duplicate);
    assert!(client.append(request).await.unwrap().into_inner().duplicate);
    let request = wire::SeriesRequest {
        shard: FIRST_DATA_SHARD,
        placement_epoch: 1,
        tenant: "default".to_owned(),
        matchers: Vec::new(),
        start_ns: 0,
        end_ns: i64::MAX,
        ..wire::SeriesRequest::default()
    };
    let answer = client.series(request).await.unwrap().into_inner();
    assert_eq!(LabelSet::from_wire(&answer.series[0].labels).get("service_name"), "test");
    let bad_regex = wire::SelectRequest {
        shard: FIRST_DATA_SHARD,
        placement_epoch: 1,
        tenant: "default".to_owned(),
        matchers: vec![wire::Matcher { name: "a".to_owned(), operation: 2, value: "(".to_owned() }],
        fold: Some(wire::Fold { kind: 0, edge_deltas_ns: vec![0, 1] }),
        ..wire::SelectRequest::default()
    };
    assert_eq!(client.select(bad_regex).await.unwrap_err().code(), Code::InvalidArgument);
    drop(client);
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    opened.node.shutdown().await;
}

// Regression: a node that stopped waited for these requests, and led its shards meanwhile, for up to five seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_although_routers_wait_for_the_next_state() {
    let mut cluster = Cluster::start(|_config| ()).await;
    let mut client = ClusterClient::connect(format!("http://{}", cluster.address(0))).await.unwrap();
    let waiting = tokio::spawn(async move { client.watch(wire::WatchRequest { revision: u64::MAX }).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "the request does not wait");
    let start = Instant::now();
    cluster.stop(0).await;
    let elapsed = start.elapsed();
    assert_eq!(waiting.await.unwrap().unwrap().into_inner().state, None);
    assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
    // The process must not end while threads of nodes use RocksDB.
    cluster.stop(1).await;
    cluster.stop(2).await;
}
