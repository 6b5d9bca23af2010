//! The checks after the faults are lifted and the clients have stopped.
//!
//! - Every acknowledged push is visible, and every visible push was acknowledged or has an unknown outcome.
//! - Every push counts once, through every router.
//! - Sums are equal through every router, read from samples and from sums of minutes.
//! - The members of every shard have the same content at one position of the log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::cluster::Cluster;
use tests::payload::otlp::{PERIOD_NS, now_ns};

use crate::checks::visible::Router;
use crate::members;
use crate::workload::{Client, Outcome, Workload};

/// Longest time until a router responds completely.
const PATIENCE: Duration = Duration::from_secs(30);
/// Widths of the windows in which sums are compared: samples, and sums of minutes.
const WIDTHS_S: [u64; 2] = [30, 60];
/// Width of the window in which queries find all samples of a workload, less the age of its oldest samples.
const SPAN_S: u64 = 3 * 3600;

/// Results of the checks.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) refused: usize,
    /// Acknowledged pushes that are not visible.
    pub(crate) lost: usize,
    /// Pushes that count more than once.
    pub(crate) duplicated: usize,
    /// Number of members whose contents were compared.
    pub(crate) replicas: usize,
    /// Number of shards of which all members were compared.
    pub(crate) whole: usize,
    pub(crate) violations: Vec<String>,
}

/// Checks a cluster whose workload has stopped.
pub(crate) fn check(cluster: &Cluster, workload: &Workload, elapsed: Duration) -> Verdict {
    let mut verdict = Verdict::default();
    for client in workload.clients.iter() {
        for outcome in client.outcomes() {
            match outcome {
                Outcome::Acknowledged => verdict.acknowledged += 1,
                Outcome::Unknown => verdict.unknown += 1,
                Outcome::Refused => verdict.refused += 1,
            }
        }
    }
    let routers = Router::all(cluster, &workload.run);
    let since_s = now_ns() / 1_000_000_000 - elapsed.as_secs() - 30 * 60;
    assert!(elapsed.as_secs() < SPAN_S, "samples are older than the queries reach");
    for (number, router) in routers.iter().enumerate() {
        let mut expected = BTreeMap::new();
        for client in workload.clients.iter() {
            let outcomes = client.outcomes();
            match eventually(|| router.all_blocks(&client.service, outcomes.len())) {
                Ok(visible) => {
                    verdict.compare(number, client, &outcomes, &visible);
                    if !visible.is_empty() {
                        expected.insert(client.service.clone(), visible.values().sum::<f64>());
                    }
                }
                Err(error) => verdict.violations.push(format!("router {number} does not respond: {error}")),
            }
        }
        for width_s in WIDTHS_S {
            match eventually(|| router.sums(width_s, since_s)) {
                Ok(sums) if sums == expected => {}
                Ok(sums) => verdict.violations.push(format!(
                    "router {number}: sums in windows of {width_s} s differ: {sums:?} instead of {expected:?}"
                )),
                Err(error) => verdict.violations.push(format!("router {number} returns no sums: {error}")),
            }
        }
    }
    let compared = members::comparison(cluster);
    verdict.replicas = compared.members;
    verdict.whole = compared.whole;
    verdict.violations.extend(compared.differences);
    verdict
}

fn eventually<T>(mut query: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let began = Instant::now();
    loop {
        match query() {
            Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(200)),
            done => return done,
        }
    }
}

impl Verdict {
    fn compare(&mut self, router: usize, client: &Client, outcomes: &[Outcome], visible: &BTreeMap<usize, f64>) {
        let once = PERIOD_NS as f64;
        let is = |serial: &usize, outcome: Outcome| outcomes.get(*serial) == Some(&outcome);
        let lost: Vec<usize> = (0..outcomes.len())
            .filter(|serial| is(serial, Outcome::Acknowledged) && !visible.contains_key(serial))
            .collect();
        let duplicated: Vec<_> = visible.iter().filter(|(_, sum)| **sum != once).collect();
        let unwanted: Vec<_> = visible
            .keys()
            .filter(|serial| !is(serial, Outcome::Acknowledged) && !is(serial, Outcome::Unknown))
            .collect();
        self.lost += lost.len();
        self.duplicated += duplicated.len();
        let at = format!("router {router}, {}", client.service);
        if !lost.is_empty() {
            let first = &lost[..lost.len().min(5)];
            self.violations.push(format!("{at}: {} acknowledged are lost, such as {first:?}", lost.len()));
        }
        if !duplicated.is_empty() {
            let first = &duplicated[..duplicated.len().min(5)];
            self.violations.push(format!("{at}: {} do not count once, such as {first:?}", duplicated.len()));
        }
        if !unwanted.is_empty() {
            self.violations.push(format!("{at}: {} are visible that were refused or never sent", unwanted.len()));
        }
    }
}
