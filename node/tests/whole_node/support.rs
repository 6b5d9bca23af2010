//! A node under test, and queries that read its samples back.

use std::path::Path;
use std::sync::Arc;

use node::{Config, Node};
use prometheus_client::registry::Registry;
use proto::placement::FIRST_DATA_SHARD;
use proto::wire::node_server::Node as _;
use proto::{Batch, Fold, Matcher, Selection, StackDetail, TenantId, Window, wire};
pub(crate) use testkit::batches::{START_NS, batch, batch_of, long_name, time_of, times_of};
use tonic::{Request, Status};

pub(crate) struct Opened {
    pub(crate) node: Arc<Node>,
    pub(crate) registry: Registry,
}

pub(crate) async fn open_with(config: Config) -> Opened {
    let mut registry = Registry::default();
    let node = Node::open(config, &mut registry).await.unwrap();
    Opened { node, registry }
}

/// Opens a node and waits until it serves.
pub(crate) async fn open(data_dir: &Path) -> Opened {
    let opened = open_with(config(data_dir)).await;
    opened.node.ready().await;
    opened
}

/// Returns a configuration with a retention of 100 years, because the samples of the tests are of 2026 and must be
/// accepted.
pub(crate) fn config(data_dir: &Path) -> Config {
    let century = std::time::Duration::from_secs(100 * 365 * 24 * 3600);
    let retention = node::Retention { raw: century, minutes: century, hours: century, days: century };
    Config::new(data_dir.to_owned(), retention, 100 << 30)
}

impl Opened {
    pub(crate) async fn append(&self, batch: &Batch) -> Result<bool, Status> {
        append(&self.node, batch).await
    }

    /// Returns the times of all samples, each as often as its sample was stored. Every sample must have the value 1 for
    /// this.
    pub(crate) async fn times(&self) -> Vec<i64> {
        times(&self.node).await.unwrap()
    }

    /// Returns the sum of all metrics whose lines in `/metrics` begin with `name`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let values = self.metrics(name);
        assert!(!values.is_empty(), "no metric {name}");
        values.iter().sum()
    }

    /// Returns all metrics whose lines in `/metrics` begin with `name`.
    pub(crate) fn metrics(&self, name: &str) -> Vec<f64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }
}

pub(crate) async fn append(node: &Node, batch: &Batch) -> Result<bool, Status> {
    Ok(answer(node, batch).await?.duplicate)
}

pub(crate) async fn answer(node: &Node, batch: &Batch) -> Result<wire::AppendResponse, Status> {
    answer_of(node, FIRST_DATA_SHARD, batch).await
}

/// Appends a batch to a shard.
pub(crate) async fn answer_of(node: &Node, shard: u32, batch: &Batch) -> Result<wire::AppendResponse, Status> {
    let batch = Some(batch.encode());
    let placement_epoch = proto::Shards::placement(node).await?.epoch();
    let request = wire::AppendRequest { shard, placement_epoch, batch };
    Ok(node.append(Request::new(request)).await?.into_inner())
}

/// Returns the sum of the values of all samples. Each value is 1, so this is the number of samples.
pub(crate) async fn count(node: &Node) -> Result<i64, Status> {
    let answer = select(node, FIRST_DATA_SHARD, Fold::Sum(Window::between(&[0, i64::MAX]))).await?;
    Ok(answer.cells.iter().map(|cell| i64::try_from(cell.sum).unwrap()).sum())
}

pub(crate) async fn times(node: &Node) -> Result<Vec<i64>, Status> {
    times_in(node, FIRST_DATA_SHARD).await
}

/// Returns the times of all samples of a shard.
pub(crate) async fn times_in(node: &Node, shard: u32) -> Result<Vec<i64>, Status> {
    let answer = select(node, shard, Fold::Points(Window { start_ns: 0, end_ns: i64::MAX })).await?;
    let each = answer.cells.iter().flat_map(|cell| {
        let time = answer.bucket_times_ns[cell.bucket as usize];
        std::iter::repeat_n(time, usize::try_from(cell.sum).unwrap())
    });
    let mut times: Vec<_> = each.collect();
    times.sort_unstable();
    Ok(times)
}

async fn select(node: &Node, shard: u32, fold: Fold) -> Result<proto::Answer, Status> {
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::<Matcher>::new(),
        fold,
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    let placement_epoch = proto::Shards::placement(node).await?.epoch();
    let answer =
        node.select(Request::new(selection.to_wire(shard, proto::ReadAt::leader(placement_epoch)))).await?.into_inner();
    Ok(proto::Answer::from_wire(answer, &selection).unwrap())
}

/// Returns the bytes on disk of all files below `path`.
pub(crate) fn used_bytes(path: &Path) -> u64 {
    let output = std::process::Command::new("du").args(["-s", "--block-size=1"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}
