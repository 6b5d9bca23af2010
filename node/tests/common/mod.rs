//! What the tests of a whole node share: a node, batches whose samples can be told apart, and reading them back.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use node::{Config, Node};
use prometheus_client::registry::Registry;
use proto::dictionary::stack_hash;
use proto::placement::FIRST_DATA_SHARD;
use proto::wire::node_server::Node as _;
use proto::{
    Batch, BatchId, Dictionary, Fold, Function, Label, LabelSet, Line, Location, Matcher, Samples, Selection,
    SeriesSamples, StackDetail, StackPair, TenantId, Window, wire,
};
use tonic::{Request, Status};

/// 2026-01-01, on the edge of a partition.
pub const START_NS: i64 = 1_767_225_600_000_000_000;

pub struct Opened {
    pub node: Arc<Node>,
    pub registry: Registry,
}

pub async fn open_with(config: Config) -> Opened {
    let mut registry = Registry::default();
    let node = Node::open(config, &mut registry).await.unwrap();
    Opened { node, registry }
}

/// Opens and waits until it serves.
pub async fn open(data_dir: &Path) -> Opened {
    let opened = open_with(config(data_dir)).await;
    opened.node.ready().await;
    opened
}

/// So that samples of 2026 stay.
pub fn config(data_dir: &Path) -> Config {
    let century = std::time::Duration::from_secs(100 * 365 * 24 * 3600);
    let retention = node::Retention { raw: century, minutes: century, hours: century, days: century };
    Config::new(data_dir.to_owned(), retention, 100 << 30)
}

impl Opened {
    pub async fn append(&self, batch: &Batch) -> Result<bool, Status> {
        append(&self.node, batch).await
    }

    /// Times of all samples, each as often as it was counted (every sample's value is 1).
    pub async fn times(&self) -> Vec<i64> {
        times(&self.node).await.unwrap()
    }

    /// A metric as a scraper sees it; several of one name are added.
    pub fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        let values: Vec<f64> = lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(!values.is_empty(), "no metric {name} in {text}");
        values.iter().sum()
    }
}

pub async fn append(node: &Node, batch: &Batch) -> Result<bool, Status> {
    Ok(answer(node, batch).await?.duplicate)
}

pub async fn answer(node: &Node, batch: &Batch) -> Result<wire::AppendResponse, Status> {
    let batch = Some(batch.to_wire());
    let request = wire::AppendRequest { shard: FIRST_DATA_SHARD, placement_epoch: 1, batch };
    Ok(node.append(Request::new(request)).await?.into_inner())
}

/// The sum over all samples, which is their number.
pub async fn count(node: &Node) -> Result<i64, Status> {
    let answer = select(node, Fold::Sum(Window::between(&[0, i64::MAX]))).await?;
    Ok(answer.cells.iter().map(|cell| i64::try_from(cell.sum).unwrap()).sum())
}

pub async fn times(node: &Node) -> Result<Vec<i64>, Status> {
    let answer = select(node, Fold::Points(Window { start_ns: 0, end_ns: i64::MAX })).await?;
    let each = answer.cells.iter().flat_map(|cell| {
        let time = answer.bucket_times_ns[cell.bucket as usize];
        std::iter::repeat_n(time, usize::try_from(cell.sum).unwrap())
    });
    let mut times: Vec<_> = each.collect();
    times.sort_unstable();
    Ok(times)
}

async fn select(node: &Node, fold: Fold) -> Result<proto::Answer, Status> {
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::<Matcher>::new(),
        fold,
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    let answer = node.select(Request::new(selection.to_wire(FIRST_DATA_SHARD))).await?.into_inner();
    Ok(proto::Answer::from_wire(answer, &selection).unwrap())
}

/// One sample per serial, at a time of its own, all with one stack.
pub fn batch(id: Option<u128>, serials: impl IntoIterator<Item = i64>) -> Batch {
    batch_of(id, serials, |_serial| "main".to_owned())
}

/// As [`batch`]; the leaf function's name makes it as large as is wanted.
pub fn batch_of(
    id: Option<u128>,
    serials: impl IntoIterator<Item = i64>,
    function_name: impl Fn(i64) -> String,
) -> Batch {
    let tenant = TenantId::default_tenant();
    let labels = LabelSet::new(vec![
        Label::new("service_name", "test"),
        Label::new("__profile_type__", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
    ]);
    let mut dictionary = Dictionary::default();
    let set = dictionary.intern_attributes(Vec::new());
    let mut samples = Samples::default();
    for serial in serials {
        let name = dictionary.strings.intern(&function_name(serial));
        let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
        let lines = [Line { function, line: 1, column: 0 }].into();
        let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        let hash = stack_hash(&[dictionary.location_hash(location)]);
        let user = dictionary.intern_stack(hash, Some(&[location]));
        let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
        samples.push(time_of(serial), pair, 1, set);
    }
    let fingerprint = labels.fingerprint(&tenant);
    let series = vec![SeriesSamples { fingerprint, labels: Some(labels), samples }];
    Batch { tenant, id: id.map(BatchId), retention_class: 0, dictionary, series }
}

/// 50 kB, another for each serial, and hardly compressible.
pub fn long_name(serial: i64) -> String {
    let mut state = serial.unsigned_abs() + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Printable and no quote: the upper bits of a linear congruential generator are the random ones.
        char::from(b'0' + (state >> 58) as u8)
    };
    (0..50_000).map(|_| next()).collect()
}

/// Bytes on disk.
pub fn used_bytes(path: &Path) -> u64 {
    let output = std::process::Command::new("du").args(["-s", "--block-size=1"]).arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

pub fn time_of(serial: i64) -> i64 {
    START_NS + serial * 1_000_000
}

pub fn times_of(serials: impl IntoIterator<Item = i64>) -> Vec<i64> {
    serials.into_iter().map(time_of).collect()
}
