//! A push through a router that does not know the newest epoch yet, and its retry through a router that does.
//!
//! A node that does not check the epoch stores both, because the epochs place the samples in different shards.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::{Cluster, Shape, members};
use tests::load::service_of_each_shard;
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};

use super::{count, push, sample, shape_of, with_fault};
use crate::proxy::{Network, Party, SILENT, from_to};
use crate::run::Planted;

/// Time from now to the sample. The epoch begins in at most 90 seconds.
const AHEAD_NS: u64 = 180_000_000_000;
const PATIENCE: Duration = Duration::from_secs(10);
const REFUSED: &str = "varve_node_appends_refused_total{reason=\"misplaced\"}";

/// Returns how often a sample counts that is pushed by the old epoch and again by the new one, and how many pushes were
/// refused because of their epoch.
fn counted(planted: Option<&Planted>) -> (f64, f64) {
    let cluster = Cluster::new(Shape { is_proxied: true, ..shape_of(planted, 2) });
    let network = Network::new(&cluster, 1);
    cluster.launch();
    // It is in the first shard, and the new epoch has only the second one.
    let service = &service_of_each_shard(2)[0];
    let time_ns = now_ns() + AHEAD_NS;
    let pushed = || push(&cluster, 0, &sample(service, time_ns));
    assert_eq!(push(&cluster, 0, &sample(service, now_ns())), 200, "the router has no connection to the leader");
    // The router hears nothing of the epoch, but nodes hear the router.
    network.set(&from_to(&[1, 2, 3].map(Party::Node), &[Party::Router(0)]), SILENT);
    assert_eq!(cluster.admin(&["epoch", "--shards", "2"])["epoch"], 2);
    let began = Instant::now();
    while (1..=3).any(|node| members::epoch(&cluster, node).ok() != Some(2)) {
        assert!(began.elapsed() < PATIENCE, "the nodes do not learn of the epoch");
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = || (1..=3).map(|node| cluster.metric(node, REFUSED)).sum::<f64>();
    // The hour before this time also has the first sample of the service.
    let counted = || count(&cluster, 1, service, time_ns + 1_000_000_000);
    let status = std::thread::scope(|scope| {
        let status = scope.spawn(pushed);
        let began = Instant::now();
        // The other router knows the epoch, and hears the nodes.
        while refused() == 0.0 && counted().ok() != Some(2.0) {
            assert!(began.elapsed() < PATIENCE, "the push by the old epoch is neither refused nor stored");
            std::thread::sleep(Duration::from_millis(5));
        }
        network.heal();
        status.join().unwrap()
    });
    assert_eq!((status, push(&cluster, 1, &sample(service, time_ns))), (200, 200));
    let counted = counted().unwrap_or_else(|reply| panic!("{}", reply.text()));
    (counted - 1.0, refused())
}

#[test]
fn a_push_by_an_old_epoch_and_its_retry_by_the_new_one_count_once() {
    let _alone = alone();
    let (counted, refused) = counted(None);
    assert_eq!(counted, 1.0);
    assert!(refused > 0.0, "no push came by the old epoch");
}

#[test]
fn a_node_that_does_not_check_the_epoch_is_detected() {
    let _alone = alone();
    let Some(planted) = with_fault("skip-epoch-check") else { return };
    let began = Instant::now();
    let (counted, _refused) = counted(Some(&planted));
    figure(&json!({"planted": planted.fault, "counted": counted, "seconds": began.elapsed().as_secs()}));
    assert!(counted > 1.0, "the sample counts {counted} times");
}
