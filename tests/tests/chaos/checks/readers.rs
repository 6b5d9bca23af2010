//! Readers that query through each router during the faults.
//!
//! A complete response must have every sample that was acknowledged before the query began, exactly once. This includes
//! that a reader never loses sight of a sample, and that no deposed leader serves a stale response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use testkit::random::Random;
use tests::payload::otlp::PERIOD_NS;

use crate::checks::visible::Router;
use crate::workload::{BLOCK, Client, Workload};

/// Pause of a reader between two queries.
const PAUSE: Duration = Duration::from_millis(60);
/// Number of violations of which the text is kept.
const TEXTS: usize = 10;

/// Results of the readers.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Number of complete responses.
    pub(crate) reads: AtomicU64,
    /// Number of queries without a complete response.
    pub(crate) failed: AtomicU64,
    /// Number of responses that missed acknowledged samples, or had them more than once.
    pub(crate) wrong: AtomicU64,
    /// The first violations.
    pub(crate) violations: Mutex<Vec<String>>,
}

/// Running readers: one for each router.
#[derive(Debug)]
pub(crate) struct Readers {
    stop: Arc<AtomicBool>,
    seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn start(routers: Vec<Router>, workload: &Workload, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::<Seen>::default();
        let start = |(number, router): (usize, Router)| {
            let (stop, seen, clients) = (Arc::clone(&stop), Arc::clone(&seen), Arc::clone(&workload.clients));
            let mut random = Random::new(seed ^ (1 << 32) ^ number as u64);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let client = &clients[random.below(clients.len())];
                    if client.retries() {
                        read(&router, number, client, &seen);
                    }
                    std::thread::sleep(PAUSE);
                }
            })
        };
        let threads = routers.into_iter().enumerate().map(start).collect();
        Self { stop, seen, threads }
    }

    /// Stops the readers, and returns their results.
    pub(crate) fn stop(self) -> Arc<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.seen
    }
}

/// Queries the newest samples of a client, and checks the response.
fn read(router: &Router, number: usize, client: &Client, seen: &Seen) {
    let acknowledged = client.acknowledged();
    let first_block = (acknowledged / BLOCK).saturating_sub(1);
    let Ok(found) = router.blocks(&client.service, first_block) else {
        seen.failed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    seen.reads.fetch_add(1, Ordering::Relaxed);
    let violations = check(&found, first_block * BLOCK, acknowledged);
    if !violations.is_empty() {
        seen.wrong.fetch_add(1, Ordering::Relaxed);
        let mut texts = seen.violations.lock();
        if texts.len() < TEXTS {
            texts.push(format!("router {number}, {}: {}", client.service, violations.join(", ")));
        }
    }
}

/// Describes the differences between a response and the acknowledged serial numbers, which are all from `first` to
/// `acknowledged`.
fn check(found: &BTreeMap<usize, f64>, first: usize, acknowledged: usize) -> Vec<String> {
    let missing: Vec<usize> = (first..acknowledged).filter(|serial| !found.contains_key(serial)).collect();
    let wrong: Vec<_> = found.iter().filter(|(_, sum)| **sum != PERIOD_NS as f64).collect();
    let mut out = Vec::new();
    if let Some(serial) = missing.first() {
        out.push(format!("{} of {acknowledged} acknowledged are missing, from {serial} on", missing.len()));
    }
    if let Some(wrong) = wrong.first() {
        out.push(format!("serial {} has the sum {}", wrong.0, wrong.1));
    }
    out
}

#[test]
fn a_missing_or_duplicated_sample_is_a_violation() {
    let once = PERIOD_NS as f64;
    let found = BTreeMap::from([(500, once), (501, once), (502, once)]);
    // The push with the number 502 was stored, and its response is on its way.
    assert!(check(&found, 500, 502).is_empty());
    assert_eq!(check(&found, 500, 504).len(), 1);
    assert_eq!(check(&BTreeMap::from([(0, 2.0 * once)]), 0, 1).len(), 1);
}
