//! Tests of a node that starts with an empty data directory under its old id.

use std::time::{Duration, Instant};

use tests::cluster::Cluster;
use tests::http;
use tests::payload::otlp::{Request, now_ns, stack};
use tests::report::alone;

/// Sends a push with a new sample of a service. Returns the status.
fn push(cluster: &Cluster, service: &str) -> u16 {
    let body = Request::new(service).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("content-type", "application/x-protobuf"), ("authorization", token.as_str())];
    let url = format!("{}/v1development/profiles", cluster.routers("otlp_http")[0]);
    http::request("POST", &url, &headers, Some(&body)).map_or(0, |reply| reply.status)
}

/// With node 3 empty and node 2 killed, only node 1 has votes. If the empty node voted, a majority of nodes 1 and 3
/// would acknowledge pushes that node 2 does not have, although node 3 may have voted otherwise before.
#[test]
fn a_node_with_an_empty_directory_under_its_old_id_never_votes() {
    let _alone = alone();
    let cluster = Cluster::up(3, 4);
    let services: Vec<String> = (0..12).map(|number| format!("service-{number}")).collect();
    assert!(services.iter().all(|service| push(&cluster, service) == 200));
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.data_dir(3)).unwrap();
    cluster.start(3);
    let start = Instant::now();
    while !cluster.log(3).contains("run `varve admin cluster accept --node 3 --node-endpoint") {
        assert!(start.elapsed() < Duration::from_secs(20), "the node does not say what to do");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(cluster.readiness(3).unwrap().status, 503);
    // Two of three members still acknowledge.
    assert!(services.iter().all(|service| push(&cluster, service) == 200));
    cluster.kill(2);
    let statuses: Vec<u16> = services.iter().take(3).map(|service| push(&cluster, service)).collect();
    assert!(statuses.iter().all(|&status| status != 200), "a minority acknowledged: {statuses:?}");
    cluster.start(2);
    cluster.wait_until_ready(2);
    let start = Instant::now();
    while !services.iter().all(|service| push(&cluster, service) == 200) {
        assert!(start.elapsed() < Duration::from_secs(30), "the cluster does not serve again");
    }
}
