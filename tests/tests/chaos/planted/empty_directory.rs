//! The node that created the cluster starts with an empty directory under its old id.
//!
//! It must not create another cluster. That one would acknowledge pushes that the first one does not have.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::Cluster;
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};

use super::{push, sample, shape_of, with_fault};
use crate::run::Planted;

/// The initial node with the smallest id, which creates the cluster.
const CREATOR: usize = 1;
const REMEDY: &str = "run `varve admin cluster accept --node 1 --node-endpoint";
const PATIENCE: Duration = Duration::from_secs(20);
/// Time for which the node must keep to its message. It tries to create a cluster five times a second.
const REFUSAL: Duration = Duration::from_secs(5);

/// Returns true if the node makes a cluster of its own, and false if it says what to do.
fn creates_again(planted: Option<&Planted>) -> bool {
    let cluster = Cluster::new(shape_of(planted, 1));
    cluster.launch();
    assert_eq!(push(&cluster, 0, &sample("service", now_ns())), 200);
    cluster.kill(CREATOR);
    std::fs::remove_dir_all(cluster.data_dir(CREATOR)).unwrap();
    cluster.start(CREATOR);
    let began = Instant::now();
    // Time of the message that says what to do.
    let mut said: Option<Instant> = None;
    while said.is_none_or(|said| said.elapsed() < REFUSAL) {
        let status = cluster.readiness(CREATOR).map_or(0, |reply| reply.status);
        // The node is ready as soon as it has its own shards.
        if status == 200 {
            return true;
        }
        if said.is_some() {
            assert_eq!(status, 503, "the node does not go on");
        } else if cluster.log(CREATOR).contains(REMEDY) {
            said = Some(Instant::now());
        }
        assert!(said.is_some() || began.elapsed() < PATIENCE, "the node neither says what to do nor creates a cluster");
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

#[test]
fn the_creator_of_a_cluster_with_an_empty_directory_creates_no_other() {
    let _alone = alone();
    assert!(!creates_again(None));
}

#[test]
fn a_node_that_creates_another_cluster_is_detected() {
    let _alone = alone();
    let Some(planted) = with_fault("create-again") else { return };
    let began = Instant::now();
    let is_detected = creates_again(Some(&planted));
    figure(&json!({"planted": planted.fault, "detected": is_detected, "seconds": began.elapsed().as_secs()}));
    assert!(is_detected);
}
