//! Tests of a change of the placement under load.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::client::Labels;
use tests::cluster::Cluster;
use tests::http::request;
use tests::load::{Behaviour, Load};
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};
use tests::shared::varve_binary;

/// Runs `varve admin cluster epoch` with the certificate of node 1.
fn epoch(cluster: &Cluster, options: &[&str]) -> Output {
    let certs = cluster.data_dir(1).parent().unwrap().join("certs");
    let mut command = Command::new(varve_binary());
    command.args(["admin", "cluster", "epoch", "--json"]).args(options);
    command
        .arg("--node-endpoint")
        .arg(format!("https://{}", cluster.description()["nodes"][1]["address"].as_str().unwrap()));
    command.arg("--tls-ca").arg(certs.join("ca.pem")).arg("--tls-cert").arg(certs.join("node-1.pem"));
    command.arg("--tls-key").arg(certs.join("node-1.key")).output().unwrap()
}

/// Pushes a pprof without a time, with a key of its own.
fn push_timeless(cluster: &Cluster, router: usize, service: &str) {
    // A sample type, a sample of 5 ns without a stack, and the strings "", "cpu" and "nanoseconds".
    let body = b"\x0a\x04\x08\x01\x10\x02\x12\x03\x12\x01\x05\x32\x00\x32\x03cpu\x32\x0bnanoseconds";
    let url = format!("{}/api/v1/push?service_name={service}", cluster.routers("http")[router]);
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("authorization", token.as_str()), ("idempotency-key", service)];
    let _accepted = request("POST", &url, &headers, Some(body)).unwrap().expect(200);
}

/// Adds the shards 9 and 10 to a cluster of three nodes. An epoch may then use them at once.
fn add_two_shards(cluster: &Cluster) {
    let add = |options: &[&str]| cluster.admin(&[&["add-shards", "--total", "10"], options].concat());
    let nodes = [1, 2, 3];
    let shards = json!([{"shard": 9, "nodes": nodes}, {"shard": 10, "nodes": nodes}]);
    assert_eq!(add(&["--dry-run"])["shards"], shards);
    let really = add(&[]);
    assert_eq!((&really["shards"], &really["changed"]), (&shards, &json!(true)), "the dry run added nothing");
    let _planned = added(&epoch(cluster, &["--shards", "9-10", "--dry-run"]));
    assert_eq!(add(&[])["changed"], json!(false), "the command was repeated");
}

fn added(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_epoch_change_under_load_loses_and_duplicates_nothing() {
    let _alone = alone();
    let cluster = Cluster::up(3, 8);
    let behaviour = Behaviour { clients: 12, retries: true, pause: Duration::from_millis(50) };
    let urls = cluster.routers("otlp_http").iter().map(|url| format!("{url}/v1development/profiles")).collect();
    let load = Load::start_at(urls, Some(cluster.token("push")), behaviour);
    let run = load.run.clone();
    let services: Vec<String> = (0..12).map(|number| format!("timeless-{number}")).collect();
    services.iter().for_each(|service| push_timeless(&cluster, 0, service));
    // Each client sends several samples a second, but rates are measured over half a minute at least.
    let is_hot = |spread: &Value| {
        spread["service"].as_str().unwrap().starts_with("load-") && spread["slots"].as_u64().unwrap() >= 2
    };
    let began = Instant::now();
    let hot = || added(&epoch(&cluster, &["--spread-above", "1", "--dry-run"]))["spread"].clone();
    while !hot().as_array().unwrap().iter().any(is_hot) {
        assert!(began.elapsed() < Duration::from_secs(30), "no service of the load is hot: {}", hot());
        std::thread::sleep(Duration::from_millis(500));
    }
    add_two_shards(&cluster);
    let planned = added(&epoch(&cluster, &["--shards", "5-10", "--dry-run"]));
    assert_eq!((&planned["epoch"], &planned["moved_slots"]), (&json!(2), &json!(2048)), "{planned}");
    let refused = epoch(&cluster, &["--shards", "5-11"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("shard 11 does not exist"), "{refused:?}");
    let real = added(&epoch(&cluster, &["--shards", "5-10", "--spread-above", "1"]));
    assert_eq!(real["epoch"], 2, "the dry run added nothing: {real}");
    assert!(real["spread"].as_array().unwrap().iter().any(is_hot), "no service is spread: {real}");
    let proposed = Instant::now();
    // Routers and nodes learn of an epoch one after the other, which no query may notice.
    for turn in 0..40 {
        let total = cluster.try_query(turn % 2, "sum(sum_over_time(process_cpu[1h]))", now_ns() as f64 / 1e9);
        let _total = total.unwrap_or_else(|reply| panic!("query {turn}: {}: {}", reply.status, reply.text()));
    }
    // The epoch begins in at most 90 seconds. Every client then needs acknowledgements for samples of the new epoch.
    std::thread::sleep(Duration::from_secs(92));
    let before = load.acknowledged_by_client();
    while load.acknowledged_by_client().iter().zip(&before).any(|(now, before)| *now < before + 5) {
        assert!(proposed.elapsed() < Duration::from_secs(150), "a client gets no acknowledgement");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Retries of the pushes that were made before the epoch, through the other router.
    services.iter().for_each(|service| push_timeless(&cluster, 1, service));
    let promql = "sum by (service_name) (sum_over_time(process_cpu{service_name=~\"timeless-.*\"}[1h]))";
    let timeless = cluster.try_query(0, promql, now_ns() as f64 / 1e9 + 1.0).unwrap();
    let sums: Vec<f64> = timeless.iter().map(|(_, sum)| *sum).collect();
    assert_eq!(sums, [5.0; 12], "each push counts once");
    let outcomes = load.stop();
    for router in 0..2 {
        let promql = format!("sum by (serial) (sum_over_time(process_cpu{{run=\"{run}\"}}[1h]))");
        let found = cluster.try_query(router, &promql, now_ns() as f64 / 1e9 + 1.0);
        let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
        let serial = |(mut labels, sum): (Labels, f64)| (labels.remove("serial").unwrap(), sum);
        let visible: BTreeMap<String, f64> = found.into_iter().map(serial).collect();
        assert_eq!(outcomes.violations(&visible), Vec::<String>::new(), "router {router}");
    }
    let replicas = cluster.admin(&[])["nodes"][0]["replicas"].clone();
    let applied = |shard: u64| {
        let replica = replicas.as_array().unwrap().iter().find(|replica| replica["shard"] == shard);
        replica.unwrap_or_else(|| panic!("{shard}: {replicas}"))["applied_index"].as_u64().unwrap()
    };
    // Not every shard has one of the twelve services.
    assert!(applied(9) + applied(10) > 100, "the new shards got no samples: {replicas}");
    figure(&json!({"row": "epoch", "size": "ci", "faults": 1, "acknowledged": outcomes.acknowledged.len(),
        "unknown": outcomes.unknown.len(), "lost": 0, "duplicated": 0}));
    assert!(outcomes.acknowledged.len() > 500, "only {} were acknowledged", outcomes.acknowledged.len());
}
