//! Test of a node that lost its disk: its replicas are built again under load, and count for the next failure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::client::Labels;
use tests::cluster::Cluster;
use tests::load::{Behaviour, Load};
use tests::payload::otlp::now_ns;
use tests::report::alone;

/// Longest time after a kill until every client gets acknowledgements again.
const RECOVERY_MAX: Duration = Duration::from_secs(30);

/// Waits until every client of a load has two more acknowledgements.
fn wait_for_acknowledgements(load: &Load) {
    let start = Instant::now();
    let before = load.acknowledged_by_client();
    while load.acknowledged_by_client().iter().zip(&before).any(|(now, before)| *now < before + 2) {
        assert!(start.elapsed() < RECOVERY_MAX, "a client gets no acknowledgement");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Queries the samples of a load at a router. Maps each serial number to the sum of its samples.
fn visible(cluster: &Cluster, router: usize, run: &str) -> BTreeMap<String, f64> {
    let promql = format!("sum by (serial) (sum_over_time(process_cpu{{run=\"{run}\"}}[1h]))");
    let found = cluster.try_query(router, &promql, now_ns() as f64 / 1e9 + 1.0);
    let found = found.unwrap_or_else(|reply| panic!("{}: {}", reply.status, reply.text()));
    let serial = |(mut labels, sum): (Labels, f64)| (labels.remove("serial").unwrap(), sum);
    found.into_iter().map(serial).collect()
}

#[test]
fn a_replaced_disk_holds_everything_when_another_node_dies() {
    let _alone = alone();
    let cluster = Cluster::up(3, 4);
    let behaviour = Behaviour { clients: 8, retries: true, pause: Duration::from_millis(20) };
    let urls = cluster.routers("otlp_http").iter().map(|url| format!("{url}/v1development/profiles")).collect();
    let load = Load::start_at(urls, Some(cluster.token("push")), behaviour);
    let run = load.run.clone();
    wait_for_acknowledgements(&load);
    cluster.kill(3);
    std::fs::remove_dir_all(cluster.data_dir(3)).unwrap();
    wait_for_acknowledgements(&load);
    cluster.start(3);
    let start = Instant::now();
    while !cluster.log(3).contains("run `varve admin cluster accept --node 3") {
        assert!(start.elapsed() < RECOVERY_MAX, "the node does not say what to do");
        std::thread::sleep(Duration::from_millis(100));
    }
    let accept = ["accept", "--node", "3"];
    let planned = cluster.admin(&[&accept[..], &["--dry-run"]].concat());
    assert_eq!((&planned["dry_run"], &planned["changed"]), (&true.into(), &true.into()), "{planned}");
    assert_eq!(cluster.readiness(3).unwrap().status, 503);
    let accepted = cluster.admin(&accept);
    assert_eq!((&accepted["directory"], &accepted["changed"]), (&planned["directory"], &true.into()), "{accepted}");
    cluster.wait_until_ready(3);
    assert_eq!(cluster.admin(&accept)["changed"], false, "it is accepted already");
    // Node 3 and one other node are a majority now, and the only copies of what they acknowledge.
    cluster.kill(1);
    wait_for_acknowledgements(&load);
    let outcomes = load.stop();
    for router in 0..2 {
        assert_eq!(outcomes.violations(&visible(&cluster, router, &run)), Vec::<String>::new(), "router {router}");
    }
    assert!(outcomes.acknowledged.len() > 100, "only {} were acknowledged", outcomes.acknowledged.len());
}
