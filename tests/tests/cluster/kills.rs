//! Tests of `kill -9` of nodes under load. Every node leads some of the shards, so every kill hits leaders.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::client::Labels;
use tests::cluster::Cluster;
use tests::load::{Behaviour, Load};
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};

/// Longest time after a kill until a push to each router is acknowledged again.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// Number of kills: `VARVE_CHAOS_KILLS`, or a few.
fn kills() -> usize {
    std::env::var("VARVE_CHAOS_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

/// Queries the samples of a load at a router. Maps each serial number to the sum of its samples.
pub(crate) fn visible(cluster: &Cluster, router: usize, run: &str) -> BTreeMap<String, f64> {
    let promql = format!("sum by (serial) (sum_over_time(process_cpu{{run=\"{run}\"}}[1h]))");
    let found = cluster.try_query(router, &promql, now_ns() as f64 / 1e9 + 1.0);
    let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
    let serial = |(mut labels, sum): (Labels, f64)| (labels.remove("serial").unwrap(), sum);
    found.into_iter().map(serial).collect()
}

#[test]
fn kills_of_nodes_lose_and_duplicate_nothing_acknowledged() {
    let _alone = alone();
    let cluster = Cluster::up(3, 8);
    let behaviour = Behaviour { clients: 12, retries: true, pause: Duration::from_millis(20) };
    let urls = cluster.routers("otlp_http").iter().map(|url| format!("{url}/v1development/profiles")).collect();
    let load = Load::start_at(urls, Some(cluster.token("push")), behaviour);
    let run = load.run.clone();
    let mut recovery_s = Vec::new();
    for kill in 0..kills() {
        std::thread::sleep(Duration::from_millis(500 + (kill as u64 * 137) % 900));
        let node = kill % 3 + 1;
        cluster.kill(node);
        // Every client has a service of its own, and the services are in several shards. A push may be acknowledged
        // just before the kill, so each client needs two more.
        let killed = Instant::now();
        let before = load.acknowledged_by_client();
        while load.acknowledged_by_client().iter().zip(&before).any(|(now, before)| *now < before + 2) {
            assert!(killed.elapsed() < RECOVERY_MAX, "node {node}: a client gets no acknowledgement");
            std::thread::sleep(Duration::from_millis(5));
        }
        recovery_s.push(killed.elapsed().as_secs_f64());
        cluster.start(node);
        cluster.wait_until_ready(node);
    }
    let outcomes = load.stop();
    for router in 0..2 {
        assert_eq!(outcomes.violations(&visible(&cluster, router, &run)), Vec::<String>::new(), "router {router}");
    }
    recovery_s.sort_by(f64::total_cmp);
    figure(&json!({"row": "R1", "size": "ci", "faults": recovery_s.len(),
        "acknowledged": outcomes.acknowledged.len(), "unknown": outcomes.unknown.len(), "lost": 0, "duplicated": 0,
        "recovery_p50_s": recovery_s[recovery_s.len() / 2], "recovery_p99_s": recovery_s.last()}));
    assert!(outcomes.acknowledged.len() > 200, "only {} were acknowledged", outcomes.acknowledged.len());
}
