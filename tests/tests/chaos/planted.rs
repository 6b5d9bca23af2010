//! Planted faults, each of which a row or a scenario must detect. Otherwise a row that holds would prove nothing.
//!
//! The faults of the modules need special circumstances to have an effect. Each module makes these, and runs varve with
//! and without the fault.

mod empty_directory;
mod epochs;
mod leased_snapshot;
mod stale_leader;

use tests::cluster::{Cluster, Shape};
use tests::http::{self, Reply};
use tests::payload::otlp::{PERIOD_NS, Request, stack};
use tests::report::{alone, figure, skipped};

use crate::rows;
use crate::run::{self, Planted};

/// Returns the varve that has a fault; `None`, with a report, if there is none.
fn with_fault(fault: &'static str) -> Option<Planted> {
    let binary = std::env::var_os("VARVE_PLANTED_BINARY");
    if binary.is_none() {
        skipped(fault, "VARVE_PLANTED_BINARY names no varve built with --features planted-faults");
    }
    Some(Planted { binary: binary?.into(), fault })
}

/// Runs the row of retries with a varve that has a fault. Fails if no push counts twice.
fn is_detected(fault: &'static str) {
    let _alone = alone();
    let Some(planted) = with_fault(fault) else { return };
    let mut line = run::run(rows::named("R18").unwrap(), "ci", 1, Some(&planted));
    line["planted"] = fault.into();
    figure(&line);
    assert!(line["duplicated"].as_u64() > Some(0), "row R18 does not detect {fault}: {line}");
}

#[test]
fn a_batch_that_is_applied_again_on_a_retry_is_detected() {
    is_detected("double-apply");
}

#[test]
fn a_router_that_gives_retries_new_ids_is_detected() {
    is_detected("new-ids");
}

/// Returns the shape of a cluster of three nodes and two routers.
fn shape_of(planted: Option<&Planted>, shards: usize) -> Shape {
    let binary = planted.map(|planted| planted.binary.clone());
    let environment = planted.map(Planted::environment).into_iter().collect();
    Shape { nodes: 3, routers: 2, shards, is_proxied: false, binary, environment }
}

/// Pushes a request through a router. Returns the status; 0 if there is no response.
fn push(cluster: &Cluster, router: usize, request: &Request) -> u16 {
    let url = format!("{}/v1development/profiles", cluster.routers("otlp_http")[router]);
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("content-type", "application/x-protobuf"), ("authorization", token.as_str())];
    http::request("POST", &url, &headers, Some(&request.bytes())).map_or(0, |reply| reply.status)
}

/// Returns a request with one sample of a service.
fn sample(service: &str, time_ns: u64) -> Request {
    Request::new(service).seen(stack(&["leaf", "main"]), vec![time_ns])
}

/// Returns the number of samples of a service up to a time, as a router counts them.
///
/// # Errors
/// The response of the router, if it is an error.
fn count(cluster: &Cluster, router: usize, service: &str, until_ns: u64) -> Result<f64, Reply> {
    let promql = format!("sum(sum_over_time(process_cpu{{service_name=\"{service}\"}}[1h]))");
    let found = cluster.try_query(router, &promql, until_ns as f64 / 1e9)?;
    Ok(found.iter().map(|(_labels, sum)| sum / PERIOD_NS as f64).sum())
}
