//! Tests of shards without a majority: responses are partial or refused, and stale reads still work.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::cluster::Cluster;
use tests::http::{self, Reply};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::report::alone;
use tests::shared::varve_binary;

const SERVICES: usize = 12;

fn push(cluster: &Cluster, service: &str) -> u16 {
    let body = Request::new(service).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("content-type", "application/x-protobuf"), ("authorization", token.as_str())];
    let url = format!("{}/v1development/profiles", cluster.routers("otlp_http")[0]);
    http::request("POST", &url, &headers, Some(&body)).map_or(0, |reply| reply.status)
}

/// Queries the sums of all services, with additional parameters.
fn sums(cluster: &Cluster, more: &[(&str, &str)]) -> Reply {
    let promql = "sum by (service_name) (sum_over_time(process_cpu[1h]))";
    let time = format!("{:.3}", now_ns() as f64 / 1e9 + 1.0);
    let parameters = http::encode(&[&[("query", promql), ("time", &time)], more].concat());
    let url = format!("{}/api/v1/query?{parameters}", cluster.routers("http")[0]);
    let token = format!("Bearer {}", cluster.token("read"));
    http::request("GET", &url, &[("authorization", &token)], None).unwrap()
}

fn services(reply: &Reply) -> usize {
    reply.json()["data"]["result"].as_array().map_or(0, Vec::len)
}

#[test]
fn two_of_three_nodes_killed_leave_stale_reads_and_named_shards() {
    let _alone = alone();
    let cluster = Cluster::up(3, 4);
    for service in 0..SERVICES {
        assert_eq!(push(&cluster, &format!("service-{service}")), 200);
    }
    let whole = sums(&cluster, &[("partial", "refuse")]).expect(200);
    assert_eq!((services(&whole), whole.header("varve-partial")), (SERVICES, ""));
    // All members have applied the pushes, and have heard their leaders since.
    let start = Instant::now();
    loop {
        let stale = sums(&cluster, &[("consistency", "stale")]).expect(200);
        let age = stale.header("varve-staleness").parse::<f64>();
        if services(&stale) == SERVICES && age.is_ok_and(|age| age < start.elapsed().as_secs_f64()) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{}", stale.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(2));
    cluster.kill(2);
    cluster.kill(3);
    let killed = Instant::now();
    std::thread::sleep(Duration::from_secs(1));

    // No shard has a leader. The first query waits for one, and the next ones do not.
    let refused = sums(&cluster, &[("partial", "refuse")]).refused_with(&[503]);
    assert!(refused.text().contains("4 of 4 shards did not answer: 1, 2, 3, 4"), "{}", refused.text());
    let again = Instant::now();
    for _ in 0..8 {
        let _refused = sums(&cluster, &[]).refused_with(&[503]);
    }
    assert!(again.elapsed() < Duration::from_secs(16), "8 queries took {:?}", again.elapsed());

    let stale = sums(&cluster, &[("consistency", "stale")]).expect(200);
    assert_eq!(services(&stale), SERVICES, "{}", stale.text());
    let age: f64 = stale.header("varve-staleness").parse().unwrap();
    assert_eq!(stale.json()["shards"]["staleness_seconds"], Value::from(age));
    let since_kill = killed.elapsed().as_secs_f64();
    assert!(since_kill - 1.0 < age && age < since_kill + 10.0, "{age} s, {since_kill} s after the kill");

    // The command line asks for the same, and says that the response is stale.
    let query = |more: &[&str]| {
        let mut command = Command::new(varve_binary());
        command.args(["query", "count(process_cpu)", "--endpoint", &cluster.routers("http")[0]]).args(more);
        command.env("VARVE_TOKEN_FILE", cluster.folder().join("token-read")).output().unwrap()
    };
    let stale = query(&["--consistency", "stale", "--partial", "refuse"]);
    let said = String::from_utf8_lossy(&stale.stderr).into_owned();
    assert!(stale.status.success() && said.starts_with("stale response: it may lack samples of the last "), "{said}");
    assert!(!query(&[]).status.success(), "a linearizable read without a majority");

    // With a second node, every shard has a majority again.
    cluster.start(2);
    cluster.wait_until_ready(2);
    let start = Instant::now();
    while services(&sums(&cluster, &[])) != SERVICES || push(&cluster, "service-0") != 200 {
        assert!(start.elapsed() < Duration::from_secs(30), "the cluster does not serve again");
        std::thread::sleep(Duration::from_millis(100));
    }
}
