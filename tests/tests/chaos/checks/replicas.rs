//! Comparisons of the members of each shard during the faults.
//!
//! Whenever two members are found at one position of the shard's log, their contents must be equal. A difference that a
//! later snapshot would hide is a violation too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tests::cluster::Cluster;
use tonic::Code;

use crate::members;

/// Pause between the comparisons of two shards. Each of them flushes the members of one shard, and most of the shards
/// are to have a long unflushed tail when a fault comes.
const PAUSE: Duration = Duration::from_secs(3);
/// Longest time in which members are looked for at one position. The log goes on meanwhile.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Results of the comparisons.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    /// Number of times that a member was found at a position at which another one had been.
    pub(crate) pairs: u64,
    /// Number of positions at which all members of a shard were found.
    pub(crate) whole: u64,
    pub(crate) violations: Vec<String>,
}

/// A running thread that compares.
#[derive(Debug)]
pub(crate) struct Replicas {
    /// The thread ends when this is dropped.
    stop: Sender<()>,
    thread: JoinHandle<Compared>,
}

impl Replicas {
    pub(crate) fn start(cluster: Arc<Cluster>) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut compared = Compared::default();
            let mut seen = BTreeMap::<u32, Seen>::new();
            for shard in members::shards(&cluster).collect::<Vec<_>>().into_iter().cycle() {
                compare(&cluster, shard, seen.entry(shard).or_default(), &mut compared);
                if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            compared
        });
        Self { stop, thread }
    }

    /// Stops the comparisons, and returns their results.
    pub(crate) fn stop(self) -> Compared {
        drop(self.stop);
        self.thread.join().unwrap()
    }
}

/// Reads the contents of a shard's members until two of them were at one position.
fn compare(cluster: &Cluster, shard: u32, seen: &mut Seen, compared: &mut Compared) {
    let began = Instant::now();
    let before = compared.pairs;
    while compared.pairs == before && began.elapsed() < ROUND_MAX {
        let nodes = 1..=cluster.shape().nodes;
        // At the same time, because the log goes on.
        let contents: Vec<_> = std::thread::scope(|scope| {
            let read = |node| scope.spawn(move || (node, members::content(cluster, node, shard)));
            let reading: Vec<_> = nodes.map(read).collect();
            reading.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (node, content) in contents {
            match content {
                Ok(Some((Some(index), signature))) => {
                    if let Some(earlier) = seen.add(node, index, &signature) {
                        compared.pairs += 1;
                        compared.whole += u64::from(earlier.is_last_of(cluster.shape().nodes));
                        compared.violations.extend(earlier.difference(shard, node, index, &signature));
                    }
                }
                // It has nothing yet, or is down, or is being started or replaced.
                Ok(_) => {}
                Err(status) if !matches!(status.code(), Code::DataLoss | Code::Internal) => {}
                Err(status) => compared.violations.push(format!("shard {shard} on node {node}: {status}")),
            }
        }
    }
}

/// Contents of a shard by position, since the start of the row.
#[derive(Debug, Default)]
struct Seen(BTreeMap<u64, Earlier>);

/// The first content that was seen at a position.
#[derive(Clone, Debug)]
struct Earlier {
    node: usize,
    signature: String,
    /// All nodes whose contents were seen at the position.
    nodes: BTreeSet<usize>,
}

impl Seen {
    /// Adds the content of a node. Returns the content to compare it with, if there is one: that of another node, or
    /// that of the same node if it has changed.
    fn add(&mut self, node: usize, index: u64, signature: &str) -> Option<Earlier> {
        let new = || Earlier { node, signature: signature.to_owned(), nodes: BTreeSet::new() };
        let earlier = self.0.entry(index).or_insert_with(new);
        let is_new = earlier.nodes.insert(node) && earlier.node != node;
        (is_new || earlier.signature != signature).then(|| earlier.clone())
    }
}

impl Earlier {
    /// Returns true if all `members` of the shard were seen at the position.
    fn is_last_of(&self, members: usize) -> bool {
        self.nodes.len() == members
    }

    fn difference(&self, shard: u32, node: usize, index: u64, signature: &str) -> Option<String> {
        let text = || format!("shard {shard} at index {index} differs on nodes {} and {node}", self.node);
        (self.signature != signature).then(text)
    }
}

#[test]
fn contents_are_compared_at_equal_positions_only() {
    let mut seen = Seen::default();
    let found = [(1, 7, "a"), (2, 8, "b"), (1, 8, "b"), (2, 8, "b"), (3, 7, "c"), (1, 7, "d"), (3, 8, "b")];
    let compared = found.into_iter().filter_map(|(node, index, signature)| {
        let earlier = seen.add(node, index, signature)?;
        Some((node, earlier.difference(1, node, index, signature).is_some(), earlier.is_last_of(3)))
    });
    let wanted = [(1, false, false), (3, true, false), (1, true, false), (3, false, true)];
    assert_eq!(compared.collect::<Vec<_>>(), wanted);
}
