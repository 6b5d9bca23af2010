//! Tests of queries over many shards: equal responses for any number of shards, and requests only to the right ones.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proto::answer::{DroppedLabel, Missing};
use proto::label::SERVICE_NAME_LABEL;
use proto::placement::{Placement, Slot};
use proto::{
    AdministrationTask, Appended, Batch, Consistency, Deleted, Deletion, KnownLocations, LocationPage, ReadAt,
    ReadPoint, Selection, SeriesAnswer, SeriesQuery, Tier, Window,
};
use serde_json::json;

use super::naive_node::Frame;
use super::*;

/// A fake node with several shards, each of which is a [`NaiveNode`].
pub(super) struct ManyShards {
    placement: Mutex<Placement>,
    pub(super) shards: Vec<NaiveNode>,
    /// Shards that got requests.
    asked: Mutex<BTreeSet<u32>>,
    /// Shards that got requests for locations.
    asked_for_locations: Mutex<Vec<u32>>,
    placements_read: AtomicUsize,
    running: AtomicUsize,
    running_max: AtomicUsize,
    /// Time that each request takes.
    pub(super) delay: Duration,
}

pub(super) fn uniform(shards: u16) -> Placement {
    Placement::uniform(NonZeroU16::new(shards).unwrap())
}

pub(super) fn shard_of(placement: &Placement, service: &str) -> u32 {
    placement.newest().shard(Slot::of(&TenantId::default_tenant(), service))
}

/// Returns the shard of a sample.
pub(super) fn place_of(placement: &Placement, sample: &Sample) -> u32 {
    let tenant = TenantId::default_tenant();
    let fingerprint = sample.label_set().fingerprint(&tenant);
    placement.shard_of(&tenant, sample.value_of(SERVICE_NAME_LABEL), fingerprint, sample.time_ns)
}

/// Returns the time and the label that are missing for a service. The times of different services overlap.
fn missing_of(service: &str, number: i64) -> (String, Missing, DroppedLabel) {
    let start_ns = (NOW_S - 300 + number * 40) * S;
    let window = Window { start_ns, end_ns: start_ns + 70 * S };
    let tier = if number % 2 == 0 { Tier::Hour } else { Tier::Day };
    let missing = Missing { window, finest: tier, is_damaged: number % 3 == 0 };
    (service.to_owned(), missing, DroppedLabel { tier, name: format!("label{}", number / 2) })
}

impl ManyShards {
    pub(super) fn new(shards: u16, samples: &[Sample]) -> Self {
        Self::placed(uniform(shards), samples)
    }

    /// Places the samples. The shards of the placement must be numbered from 1 on.
    pub(super) fn placed(placement: Placement, samples: &[Sample]) -> Self {
        let placed: Vec<(Sample, u32)> =
            samples.iter().map(|sample| (sample.clone(), place_of(&placement, sample))).collect();
        Self::holding(placement, &placed)
    }

    /// Puts each sample into the shard beside it. The shards of the placement must be numbered from 1 on.
    pub(super) fn holding(placement: Placement, samples: &[(Sample, u32)]) -> Self {
        let of_shard = |shard: u32| {
            let here = samples.iter().filter(|(_, of)| *of == shard).map(|(sample, _)| sample.clone());
            let missing = SERVICES.iter().zip(0..).map(|(service, number)| missing_of(service, number)).collect();
            NaiveNode { missing, ..NaiveNode::new(here.collect()) }
        };
        Self {
            shards: placement.shards().into_iter().map(of_shard).collect(),
            placement: Mutex::new(placement),
            asked: Mutex::default(),
            asked_for_locations: Mutex::default(),
            placements_read: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
            delay: Duration::ZERO,
        }
    }

    fn placed_at(&self, shard: u32, epoch: u64) -> Result<&NaiveNode, Status> {
        if epoch != self.placement.lock().unwrap().epoch() {
            return Err(Status::failed_precondition("this node has another placement: read the placement again"));
        }
        let shard = self.shards.get(shard as usize - 1);
        shard.ok_or_else(|| Status::not_found("this shard is not on this node: read the placement again"))
    }

    async fn shard(&self, shard: u32, epoch: u64) -> Result<&NaiveNode, Status> {
        let of_shard = self.placed_at(shard, epoch)?;
        self.asked.lock().unwrap().insert(shard);
        self.running_max.fetch_max(self.running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Later shards respond first.
        tokio::time::sleep(self.delay * (100 - shard)).await;
        self.running.fetch_sub(1, Ordering::Relaxed);
        Ok(of_shard)
    }

    pub(super) fn asked(&self) -> Vec<u32> {
        std::mem::take(&mut *self.asked.lock().unwrap()).into_iter().collect()
    }
}

#[tonic::async_trait]
impl Shards for ManyShards {
    type Error = Status;

    async fn placement(&self) -> Result<Placement, Status> {
        self.placements_read.fetch_add(1, Ordering::Relaxed);
        Ok(self.placement.lock().unwrap().clone())
    }

    async fn append(&self, shard: u32, epoch: u64, batch: Batch) -> Result<Appended, Status> {
        self.shard(shard, epoch).await?.append(shard, epoch, batch).await
    }

    async fn read_point(&self, shard: u32, epoch: u64, consistency: Consistency) -> Result<ReadPoint, Status> {
        self.placed_at(shard, epoch)?.read_point(shard, epoch, consistency).await
    }

    async fn select(&self, shard: u32, at: ReadAt, selection: Selection) -> Result<proto::Answer, Status> {
        self.shard(shard, at.placement_epoch).await?.select(shard, at, selection).await
    }

    async fn locations(
        &self,
        shard: u32,
        at: ReadAt,
        tenant: TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, Status> {
        self.asked_for_locations.lock().unwrap().push(shard);
        self.shard(shard, at.placement_epoch).await?.locations(shard, at, tenant, known).await
    }

    async fn series(&self, shard: u32, at: ReadAt, query: SeriesQuery) -> Result<SeriesAnswer, Status> {
        self.shard(shard, at.placement_epoch).await?.series(shard, at, query).await
    }

    async fn delete(&self, shard: u32, epoch: u64, _: Deletion) -> Result<Deleted, Status> {
        let samples = self.shard(shard, epoch).await?.samples.len() as u64;
        Ok(Deleted { samples, windows: 0 })
    }

    async fn holds_batch(&self, _: u32, _: u64, _: proto::TenantId, _: proto::BatchId) -> Result<bool, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, shard: u32, _: AdministrationTask) -> Result<String, Status> {
        Ok(shard.to_string())
    }
}

pub(super) const SERVICES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

pub(super) fn any_sample() -> impl Strategy<Value = Sample> {
    let stack = proptest::collection::vec(0_u8..7, 0..4);
    let value = prop_oneof![4 => 0_i64..50, 2 => -20_i64..0, 1 => 1_i64 << 52..1 << 55];
    (0_i64..280, 0_usize..7, 0_usize..5, stack, value, 0_u8..3).prop_map(
        |(ago_s, service, kind, stack, value, thread)| {
            let kind = [CPU, SAMPLES, ALLOCATED, IN_USE, GOROUTINES][kind];
            let region = ["eu", "us"][service % 2];
            let labels = [(SERVICE_NAME_LABEL, SERVICES[service]), ("region", region)];
            let is_gauge = kind == IN_USE || kind == GOROUTINES;
            let value = if is_gauge { value } else { value.abs() };
            let mut sample = Sample::new(kind, &labels, (NOW_S - ago_s) * S, &[], value);
            let frame = |number: u8| match number {
                0 => Frame::Native { build_id: None, file: "/usr/bin/app".to_owned(), address: 7 },
                1 => Frame::Native { build_id: Some("gnu:0102".to_owned()), file: "/lib/x.so".to_owned(), address: 9 },
                2 => Frame::Lines(vec!["inner".to_owned(), "outer".to_owned()]),
                number => Frame::Lines(vec![format!("f{number}")]),
            };
            sample.stack = stack.into_iter().map(frame).collect();
            if thread > 0 { sample.with("thread.name", &format!("t{thread}")) } else { sample }
        },
    )
}

/// Queries of every kind. Some of them are errors, for some data.
const QUERIES: [&str; 24] = [
    "process_cpu",
    "memory",
    "sum(rate(process_cpu[5m]))",
    "sum(sum_over_time({region=~\".+\"}[5m]))",
    "sum by (region) (sum_over_time({__profile_type__!~\".*(inuse|goroutine).*\"}[5m]))",
    "sum by (thread_name) (increase(process_cpu[2m]))",
    "sum by (leaf_function) (rate(process_cpu[5m]))",
    "sum by (stack_function, stack_binary) (rate(process_cpu[5m]))",
    "avg({region=~\".+\"})",
    "max by (region) (avg_over_time({region=~\".+\"}[4m]))",
    "min(last_over_time(memory:inuse_space:bytes:space:bytes{stack_function=\"f3\"}[5m]))",
    "topk(2, count_over_time({region=~\".+\"}[5m]))",
    "bottomk by (region) (1, memory:inuse_space:bytes:space:bytes)",
    "topk(3, sum by (service_name) (rate(process_cpu[5m])))",
    "count(goroutine) + sum(goroutine)",
    "rate(process_cpu[5m]) / on (region) group_left sum by (region) (rate(process_cpu[5m]))",
    "goroutine - ignoring (service_name) goroutine",
    "sum by (thread_name) (memory:inuse_space:bytes:space:bytes)",
    "process_cpu{service_name=\"a\"}",
    "sum by (service_name) (rate(process_cpu{service_name=~\"a|b|c\"}[5m]))",
    "rate(goroutine[5m])",
    "sum(rate({region=~\".+\"}[5m]))",
    "process_cpu{leaf_function!=\"f4\",service_name=~\"(d|e)\"}",
    "nothing",
];

/// Selectors of flame graphs.
const SELECTORS: [&str; 6] = [
    "process_cpu",
    "memory:inuse_space:bytes:space:bytes",
    "goroutine",
    "process_cpu{service_name=~\"a|b\"}",
    "process_cpu{stack_function=\"f3\"}",
    "{service_name=\"a\"}",
];

/// Returns the responses to requests of every kind. Each of them consists of the request, the status and the body, in
/// which the numbers of shards are omitted.
pub(super) fn responses(server: &Server, nodes_max: usize) -> Vec<(String, StatusCode, Vec<u8>)> {
    let mut all = Vec::new();
    let mut ask = |path: &str, parameters: &[(&str, &str)]| {
        let answer = server.get(path, parameters);
        let number = regex::bytes::Regex::new("\"shards\":\\{\"asked\":[0-9]+,\"answered\":[0-9]+\\}").unwrap();
        let body = number.replace(&answer.body, &b""[..]).into_owned();
        all.push((format!("{path} {parameters:?}"), answer.status, body));
    };
    let now = NOW_S.to_string();
    let start = (NOW_S - 240).to_string();
    let window = [("start", start.as_str()), ("end", now.as_str())];
    for query in QUERIES {
        ask("/api/v1/query", &[("query", query), ("time", &now)]);
        ask("/api/v1/query_range", &[("query", query), window[0], window[1], ("step", "40")]);
    }
    let nodes_max = nodes_max.to_string();
    for query in SELECTORS {
        for format in ["json", "folded", "pprof"] {
            for nodes in ["10000", &nodes_max] {
                let parameters = [("query", query), window[0], window[1], ("format", format), ("max_nodes", nodes)];
                ask("/api/v1/flamegraph", &parameters);
            }
        }
    }
    for selector in ["{region=\"eu\"}", "process_cpu", "{service_name=\"b\"}", "{service_name=~\"a|c\"}"] {
        ask("/api/v1/series", &[("match[]", selector), window[0], window[1]]);
        ask("/api/v1/labels", &[("match[]", selector), window[0], window[1]]);
        for name in ["service_name", "thread_name", "leaf_function", "__name__"] {
            ask(&format!("/api/v1/label/{name}/values"), &[("match[]", selector), window[0], window[1]]);
        }
    }
    ask("/api/v1/metadata", &[]);
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn responses_do_not_depend_on_the_number_of_shards(
        samples in proptest::collection::vec(any_sample(), 0..60),
        nodes_max in 1_usize..20,
    ) {
        let of = |shards| responses(&Server::of(Arc::new(ManyShards::new(shards, &samples))), nodes_max);
        let one = of(1);
        for shards in [4, 16, 64] {
            for (one, many) in one.iter().zip(of(shards)) {
                let text = String::from_utf8_lossy(&many.2).into_owned();
                prop_assert_eq!(one, &many, "{} shards: {}", shards, text);
            }
        }
    }
}

// A shard adds up its own values, so values of two services that cancel out look different in one shard and in two.
#[test]
fn values_that_cancel_out_do_not_depend_on_the_number_of_shards() {
    let sample =
        |service, stack: &[&str], value| Sample::new(IN_USE, &[(SERVICE_NAME_LABEL, service)], NOW_S * S, stack, value);
    let cancelling = [sample("a", &["f", "main"], 5), sample("b", &["f", "main"], -5), sample("a", &["g", "main"], 7)];
    let with_negative: Vec<Sample> = cancelling.iter().cloned().chain([sample("c", &["h", "main"], -1)]).collect();
    for samples in [&cancelling[..], &with_negative] {
        let of = |shards| responses(&Server::of(Arc::new(ManyShards::new(shards, samples))), 3);
        assert_ne!(shard_of(&uniform(16), "a"), shard_of(&uniform(16), "b"));
        assert_eq!(of(1), of(16));
        assert_eq!(of(1), of(64));
    }
}

#[test]
fn only_shards_that_can_have_the_series_are_asked() {
    let samples: Vec<Sample> =
        SERVICES.map(|name| Sample::new(CPU, &[("service_name", name)], NOW_S * S, &["f"], 1)).to_vec();
    let node = Arc::new(ManyShards::new(16, &samples));
    let server = Server::of(Arc::clone(&node));
    let of = |services: &[&str]| -> Vec<u32> {
        let shards: BTreeSet<u32> = services.iter().map(|name| shard_of(&uniform(16), name)).collect();
        shards.into_iter().collect()
    };
    let all: Vec<u32> = (1..=16).collect();
    for (matcher, shards) in [
        ("service_name=\"a\"", of(&["a"])),
        ("service_name=~\"a|b|c\"", of(&["a", "b", "c"])),
        ("service_name=~\"a.*\"", all.clone()),
        ("service_name!=\"a\"", all.clone()),
        ("region=\"\"", all.clone()),
    ] {
        let selector = format!("process_cpu{{{matcher}}}");
        let of_values = [("match[]", selector.as_str())];
        let graph = [("query", selector.as_str()), ("start", "1600000000"), ("end", "1800000000")];
        for answer in [
            server.query(&selector),
            server.query(&format!("sum(rate({selector}[5m]))")),
            server.query(&format!("sum(rate({CPU}{{{matcher},stack_function=\"f\"}}[5m]))")),
            server.get("/api/v1/series", &of_values),
            server.get("/api/v1/label/service_name/values", &of_values),
            server.get("/api/v1/label/leaf_function/values", &of_values),
            server.get("/api/v1/flamegraph", &graph),
        ] {
            assert_eq!(answer.status, StatusCode::OK, "{selector}: {}", answer.text());
            let count = shards.len();
            let asked = format!("asked;desc=\"{count} of {count} shards answered\"");
            assert!(answer.server_timing.ends_with(&asked), "{selector}: {}", answer.server_timing);
        }
        assert_eq!(node.asked(), shards, "{selector}");
        let shown = server.get("/api/v1/flamegraph", &graph).json()["shards"].clone();
        assert_eq!(shown, json!({"asked": shards.len(), "answered": shards.len()}));
        node.asked();
        // The names of attributes are those of whole shards.
        server.get("/api/v1/labels", &of_values);
        assert_eq!(node.asked(), all, "{selector}");
    }
    assert_eq!(server.query("1 + 1").status, StatusCode::OK);
    assert_eq!((node.asked(), node.placements_read.load(Ordering::Relaxed)), (Vec::new(), 1));
}

#[test]
fn shards_work_at_the_same_time_up_to_a_limit() {
    let samples: Vec<Sample> =
        SERVICES.map(|name| Sample::new(CPU, &[("service_name", name)], NOW_S * S, &["f"], 1)).to_vec();
    let node = Arc::new(ManyShards { delay: Duration::from_micros(100), ..ManyShards::new(16, &samples) });
    let server = Server::of(Arc::clone(&node));
    for query in ["sum(sum_over_time(process_cpu[5m]))", "sum(sum_over_time(process_cpu{stack_function=\"f\"}[5m]))"] {
        let sum = server.query(query).json()["data"]["result"][0]["value"][1].clone();
        assert_eq!(sum, "7", "{query}");
    }
    assert_eq!(node.running_max.load(Ordering::Relaxed), 8);
}

#[test]
fn one_renumbered_shard_costs_only_its_own_names() {
    let samples: Vec<Sample> =
        SERVICES.map(|name| Sample::new(CPU, &[("service_name", name)], NOW_S * S, &[name, "main"], 1)).to_vec();
    let node = Arc::new(ManyShards::new(4, &samples));
    let server = Server::of(Arc::clone(&node));
    let query = "sum by (leaf_function) (sum_over_time(process_cpu{stack_function=\"main\"}[5m]))";
    let want = server.query(query).text();
    assert!(want.contains("\"g\""), "{want}");
    let loaded = || std::mem::take(&mut *node.asked_for_locations.lock().unwrap());
    let known = || -> Vec<u32> {
        let count = |shard: &NaiveNode| shard.selections.lock().unwrap().last().unwrap().locations.known.count;
        node.shards.iter().map(count).collect()
    };
    loaded();
    let before = known();
    let renumbered = shard_of(&uniform(4), "a");
    node.shards[renumbered as usize - 1].renumber();
    assert_eq!(server.query(query).text(), want);
    let of_renumbered = loaded();
    assert!(!of_renumbered.is_empty() && of_renumbered.iter().all(|shard| *shard == renumbered), "{of_renumbered:?}");
    assert_eq!(known(), before);
    assert_eq!(server.query(query).text(), want);
    assert!(loaded().is_empty());
    assert_eq!(server.metric("varve_router_names_evicted_total{reason=\"renumbered\"}"), 1.0);
}

#[test]
fn a_query_with_an_old_placement_makes_the_next_one_read_it() {
    let samples: Vec<Sample> =
        SERVICES.map(|name| Sample::new(CPU, &[("service_name", name)], NOW_S * S, &[], 1)).to_vec();
    let node = Arc::new(ManyShards::new(4, &samples));
    let server = Server::of(Arc::clone(&node));
    let right = std::mem::replace(&mut *node.placement.lock().unwrap(), uniform(8));
    let query = "sum(sum_over_time(process_cpu[5m]))";
    let refused = server.query(query);
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text());
    assert!(refused.text().contains("placement"), "{}", refused.text());
    assert_eq!(node.placements_read.load(Ordering::Relaxed), 2, "the query is run once more");
    *node.placement.lock().unwrap() = right;
    assert_eq!(server.query(query).json()["data"]["result"][0]["value"][1], "7");
    server.query(query);
    assert_eq!(node.placements_read.load(Ordering::Relaxed), 3);
}

// Once, a router that knew a placement with fewer shards asked only these shards, and reported that all had answered.
#[test]
fn a_router_with_an_old_placement_misses_no_shard() {
    let samples: Vec<Sample> =
        SERVICES.map(|name| Sample::new(CPU, &[("service_name", name)], NOW_S * S, &["f"], 1)).to_vec();
    let node = Arc::new(ManyShards::new(64, &samples));
    assert!(SERVICES.iter().any(|name| shard_of(&uniform(64), name) > 16), "the test needs a new shard");
    let [start, end] = [("start", "1600000000"), ("end", "1800000000")];
    let graph = [("query", "process_cpu"), start, end];
    let delete = |server: &Server| server.post("/api/v1/delete", &[("query", "{service_name=~\".+\"}"), start, end]);
    type Ask<'a> = &'a dyn Fn(&Server) -> Answer;
    let requests: [(&str, Ask<'_>); 8] = [
        ("sum", &|server| server.query("sum(sum_over_time(process_cpu[5m]))")),
        ("frames", &|server| server.query("sum(sum_over_time(process_cpu{stack_function=\"f\"}[5m]))")),
        ("series", &|server| server.get("/api/v1/series", &[("match[]", "process_cpu"), start, end])),
        ("labels", &|server| server.get("/api/v1/labels", &[start, end])),
        ("values", &|server| server.get("/api/v1/label/service_name/values", &[start, end])),
        ("types", &|server| server.get("/api/v1/metadata", &[])),
        ("graph", &|server| server.get("/api/v1/flamegraph", &graph)),
        ("delete", &delete),
    ];
    for (name, request) in requests {
        let want = request(&Server::of(Arc::clone(&node)));
        assert_eq!(want.status, StatusCode::OK, "{name}: {}", want.text());
        let server = Server::of(Arc::clone(&node));
        let grown = std::mem::replace(&mut *node.placement.lock().unwrap(), uniform(16));
        server.query("nothing");
        *node.placement.lock().unwrap() = grown;
        node.asked();
        assert_eq!(request(&server).text(), want.text(), "{name}");
        assert!(node.asked().iter().any(|shard| *shard > 16), "{name}");
    }
}

#[test]
fn an_error_of_the_query_does_not_name_a_shard() {
    for shards in [1, 16] {
        let mut node = ManyShards::new(shards, &[]);
        node.shards.iter_mut().skip(1).for_each(|shard| shard.refuses = Some(tonic::Code::InvalidArgument));
        node.shards[0].refuses = Some(tonic::Code::InvalidArgument);
        let answer = Server::of(Arc::new(node)).query("sum(rate(process_cpu:cpu:nanoseconds:cpu:nanoseconds[5m]))");
        assert_eq!((answer.status, &answer.json()["error"]), (StatusCode::BAD_REQUEST, &json!("as the test wishes")));
    }
    // Both shards are asked at the same time, and the later one in order fails first.
    let mut node = ManyShards { delay: Duration::from_millis(1), ..ManyShards::new(16, &[]) };
    node.shards[2].refuses = Some(tonic::Code::DataLoss);
    node.shards[6].refuses = Some(tonic::Code::Internal);
    let answer = Server::of(Arc::new(node)).query("sum(rate(process_cpu:cpu:nanoseconds:cpu:nanoseconds[5m]))");
    assert_eq!(answer.json()["error"], "shard 3: as the test wishes", "the first shard in order");
}
