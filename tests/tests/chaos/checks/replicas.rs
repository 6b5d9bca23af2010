//! Comparisons of the members of each shard during the faults.
//!
//! Whenever two members are found at one position of the shard's log, their contents must be equal. A difference that a
//! later snapshot would hide is a violation too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tests::cluster::Cluster;

use crate::members;

/// Pause between two rounds over all shards. A content is computed from the whole state of a shard.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest time in which members are looked for at one position. The log goes on meanwhile.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Results of the comparisons.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Number of pairs of members that were at one position.
    pub(crate) pairs: u64,
    pub(crate) violations: Vec<String>,
}

/// A running thread that compares.
#[derive(Debug)]
pub(crate) struct Replicas {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Compared>,
}

impl Replicas {
    pub(crate) fn start(cluster: Arc<Cluster>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut compared = Compared::default();
            while !stopped.load(Ordering::Relaxed) {
                for shard in members::shards(&cluster) {
                    compare(&cluster, shard, &mut compared);
                }
                std::thread::park_timeout(PAUSE);
            }
            compared
        });
        Self { stop, thread }
    }

    /// Stops the comparisons, and returns their results.
    pub(crate) fn stop(self) -> Compared {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap()
    }
}

/// Reads the contents of a shard's members until two of them were at one position.
fn compare(cluster: &Cluster, shard: u32, compared: &mut Compared) {
    let began = Instant::now();
    let mut seen = Seen::default();
    while seen.pairs == 0 && began.elapsed() < ROUND_MAX {
        let nodes = 1..=cluster.shape().nodes;
        // At the same time, because the log goes on.
        let contents: Vec<_> = std::thread::scope(|scope| {
            let reading: Vec<_> =
                nodes.map(|node| scope.spawn(move || (node, members::content(cluster, node, shard)))).collect();
            reading.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (node, content) in contents {
            // A node that is down has no content.
            if let Ok(Some((Some(index), signature))) = content {
                seen.add(node, index, signature);
            }
        }
    }
    compared.pairs += seen.pairs;
    compared.violations.extend(seen.differences.into_iter().map(|difference| format!("shard {shard}: {difference}")));
}

/// Contents of the members of a shard by position.
#[derive(Debug, Default)]
struct Seen {
    signatures: BTreeMap<u64, BTreeMap<usize, String>>,
    pairs: u64,
    differences: Vec<String>,
}

impl Seen {
    /// Adds the content of a node, and compares it with those of other nodes at the same index.
    fn add(&mut self, node: usize, index: u64, signature: String) {
        let at_index = self.signatures.entry(index).or_default();
        if at_index.contains_key(&node) {
            return;
        }
        for (other, other_signature) in &*at_index {
            self.pairs += 1;
            if *other_signature != signature {
                self.differences.push(format!("nodes {other} and {node} differ at index {index}"));
            }
        }
        at_index.insert(node, signature);
    }
}

#[test]
fn members_are_compared_at_equal_positions_only() {
    let mut seen = Seen::default();
    let found = [(1, 7, "a"), (2, 8, "b"), (1, 8, "b"), (1, 8, "b"), (3, 7, "c")];
    found.into_iter().for_each(|(node, index, signature)| seen.add(node, index, signature.to_owned()));
    assert_eq!((seen.pairs, seen.differences), (2, vec!["nodes 1 and 3 differ at index 7".to_owned()]));
}
