//! The work of a router for a flame graph. Fake shards send prepared responses. The router names their frames, merges
//! and prunes their stacks, and writes the flame graph.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use axum::body::Body;
use axum::extract::Request;
use clap::Args;
use prometheus_client::registry::Registry;
use proto::answer::{Cell, Node};
use proto::placement::Placement;
use proto::{
    Address, AdministrationTask, Answer, Appended, Batch, BuildId, Consistency, Deleted, Deletion, Dictionary,
    Function, KnownLocations, LabelSet, Line, Location, LocationPage, Mapping, ReadAt, ReadPoint, Selection,
    SeriesAnswer, SeriesQuery, Shards, TenantId,
};
use router::api::Parts;
use router::api::agent::{AgentStatus, AgentStatusSource};
use router::auth::Auth;
use router::ingest::Pusher;
use router::nodes::Nodes;
use router::query::Reader;
use serde_json::{Map, Value, json};
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Config, SymbolStore};
use tonic::Status;
use tower::ServiceExt as _;

use crate::report::{Report, rounded};

const SERVICE_FUNCTIONS: u64 = 600;
const CALLS: u64 = 5;
const SERVICE_STACKS: u64 = 8_400;

/// Full ID of the queried profile type. With a short name, the router would request the series, which the fake shard
/// does not have.
const PROFILE_TYPE: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// Measures the work of a router for a flame graph: naming, merging, pruning, writing.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of services in a flame graph, each with 8,400 stacks. Several numbers give several flame graphs
    #[arg(long, default_values_t = [1, 5])]
    services: Vec<u64>,
    /// Number of shards among which the services are divided. Several numbers give several flame graphs
    #[arg(long, default_values_t = [NonZeroU16::MIN])]
    shards: Vec<NonZeroU16>,
    /// Largest number of nodes of the flame graph
    #[arg(long, default_value_t = 8192)]
    nodes: usize,
    /// Number of requests for each flame graph, not counting two warm-up requests; the fastest is reported
    #[arg(long, default_value_t = 15)]
    runs: usize,
    /// Also writes the figures to bench/results/DATE-SAVE.json
    #[arg(long)]
    save: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut report = Report::start(None, folder.path(), arguments.save.as_deref())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let cases = arguments.services.iter().flat_map(|&services| arguments.shards.iter().map(move |&of| (services, of)));
    for (services, shards) in cases {
        let count = u64::from(shards.get());
        let answer = |shard: u64| answer_of(services * shard / count..services * (shard + 1) / count);
        let answers: Vec<Answer> = (0..count).map(answer).collect();
        let nodes: usize = answers.iter().map(|answer| answer.nodes.len()).sum();
        let locations: usize = answers.iter().map(|answer| answer.dictionary.locations.len()).sum();
        let symbols = SymbolStore::open(Config {
            directory: folder.path().join(format!("symbols-{services}-{shards}")),
            converter: Converter { program: "/bin/false".into(), arguments: Vec::new() },
            host_files: false,
            debug_directory: folder.path().join("debug").display().to_string(),
            bucket: None,
            limits: Limits::DEFAULT,
        })?;
        let shards_of = Placement::uniform(shards);
        let routes = routes(Nodes::local(Arc::new(FakeShards { placement: shards_of, answers })), symbols);
        let fastest = runtime.block_on(fastest(&routes, arguments))?;
        let figures = json!({
            "services": services, "shards": shards, "nodes": nodes, "locations": locations,
            "milliseconds": rounded(fastest.milliseconds), "parts": fastest.parts,
        });
        report.add("flamegraph", figures)?;
    }
    report.finish()
}

/// Times that one flame graph took: the total, and the time of each step.
struct Took {
    milliseconds: f64,
    /// Milliseconds of each step, by the name of the step in the header `Server-Timing`.
    parts: Map<String, Value>,
}

/// Returns the HTTP API of a router that queries these nodes.
fn routes(nodes: Nodes, symbols: SymbolStore) -> axum::Router {
    let registry = &mut Registry::default();
    let status = || AgentStatus {
        state: "off",
        reason: String::new(),
        missing: Vec::new(),
        samples: 0,
        dropped: 0,
        frequency_hz: 0,
    };
    router::api::routes(Parts {
        pusher: Pusher::new(nodes.clone(), registry),
        reader: Reader::new(nodes.clone(), symbols.clone(), registry),
        nodes,
        symbols,
        agent: AgentStatusSource(Arc::new(status)),
        auth: Auth::open(),
    })
}

/// Requests the flame graph repeatedly, and returns the times of the fastest request. The first two requests are
/// excluded, because the router knows all locations only after these requests.
async fn fastest(routes: &axum::Router, arguments: &Arguments) -> anyhow::Result<Took> {
    let path = format!("/api/v1/flamegraph?query={PROFILE_TYPE}&start=0&end=1&max_nodes={}", arguments.nodes);
    let mut fastest: Option<Took> = None;
    for run in 0..arguments.runs + 2 {
        let request = Request::get(&path).header("host", "localhost").body(Body::empty())?;
        let began = Instant::now();
        let response = routes.clone().oneshot(request).await?;
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        ensure!(response.status().is_success(), "the flame graph failed: {}", response.status());
        let timing = response.headers().get("server-timing").context("the response has no Server-Timing")?;
        if run >= 2 && fastest.as_ref().is_none_or(|fastest| milliseconds < fastest.milliseconds) {
            fastest = Some(Took { milliseconds, parts: parts(timing.to_str()?) });
        }
    }
    fastest.context("--runs must be at least 1")
}

/// Returns the milliseconds of each step, from a `Server-Timing` header such as `name;dur=1.5, merge;dur=2.5`.
fn parts(timing: &str) -> Map<String, Value> {
    let part = |part: &str| {
        let (name, milliseconds) = part.trim().split_once(";dur=")?;
        Some((name.to_owned(), json!(rounded(milliseconds.parse().ok()?))))
    };
    timing.split(',').filter_map(part).collect()
}

/// Shards, each of which sends one prepared response to every query.
struct FakeShards {
    placement: Placement,
    answers: Vec<Answer>,
}

impl FakeShards {
    fn answer(&self, shard: u32) -> Result<&Answer, Status> {
        let answer = self.placement.shards().iter().position(|known| *known == shard);
        answer.and_then(|index| self.answers.get(index)).ok_or_else(|| Status::not_found("no such shard"))
    }
}

#[tonic::async_trait]
impl Shards for FakeShards {
    type Error = Status;

    async fn placement(&self) -> Result<Placement, Status> {
        Ok(self.placement.clone())
    }

    async fn append(&self, _shard: u32, _placement_epoch: u64, _batch: Batch) -> Result<Appended, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn delete(&self, _shard: u32, _placement_epoch: u64, _deletion: Deletion) -> Result<Deleted, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn holds_batch(&self, _: u32, _: u64, _: proto::TenantId, _: proto::BatchId) -> Result<bool, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, _shard: u32, _task: AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn read_point(&self, _: u32, _: u64, _: Consistency) -> Result<ReadPoint, Status> {
        Ok(ReadPoint::default())
    }

    async fn series(&self, _: u32, _: ReadAt, _: SeriesQuery) -> Result<SeriesAnswer, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn locations(&self, shard: u32, _: ReadAt, _: TenantId, _: KnownLocations) -> Result<LocationPage, Status> {
        let dictionary = self.answer(shard)?.dictionary.clone();
        let count = u32::try_from(dictionary.locations.len()).unwrap_or(u32::MAX);
        Ok(LocationPage { generation: 1, first: 0, count, dictionary })
    }

    async fn select(&self, shard: u32, _: ReadAt, selection: Selection) -> Result<Answer, Status> {
        let mut answer = self.answer(shard)?.clone();
        if selection.locations.known.count > 0 {
            answer.dictionary = Dictionary::default();
        }
        Ok(answer)
    }
}

/// A pseudorandom sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// Adds the locations of one service to a dictionary, and returns their IDs.
fn add_locations(to: &mut Dictionary, service: u64) -> Vec<u32> {
    let binary = to.strings.intern(&format!("/usr/local/bin/service{service}"));
    let kind = to.strings.intern("native");
    let build_id = BuildId::Gnu(service.to_be_bytes().repeat(3)[..20].to_vec());
    let mapping = to.intern_mapping(Mapping { build_id: Some(build_id), file: binary });
    let locations = (0..SERVICE_FUNCTIONS * CALLS).map(|number| {
        let function = number / CALLS;
        let call = number % CALLS;
        // The locations of every fifth service have addresses and no names.
        if service % 5 == 3 {
            let address = Address::Virtual(0x40_1000 + function * 1024 + call * 97);
            return to.intern_location(Location::Address { mapping, address, frame_type: kind });
        }
        let name = format!("github.com/acme/service{service}/internal/orders.(*Repository).Find{function}");
        let name = to.strings.intern(&name);
        let file = to.strings.intern(&format!("/src/orders/{}.go", function / 8));
        let function = to.intern_function(Function { name, system_name: name, file, start_line: function as i64 * 20 });
        let lines = [Line { function, line: call as i64, column: 0 }].into();
        to.intern_location(Location::Lines { mapping_file: binary, frame_type: kind, lines })
    });
    locations.collect()
}

/// Returns a shard's response with the stacks of these services. Stacks of a service have common callers, and
/// differ mostly near their leaves.
fn answer_of(services: Range<u64>) -> Answer {
    let mut answer = Answer { nodes: vec![Node { parent: 0, location: 0 }], ..Answer::default() };
    answer.groups.push(LabelSet::default());
    let mut random = Random(7);
    let mut sums: HashMap<u32, i128> = HashMap::new();
    let count = services.end - services.start;
    for service in services {
        let locations = add_locations(&mut answer.dictionary, service);
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut stacks: Vec<Vec<u64>> = Vec::new();
        for stack in 0..SERVICE_STACKS {
            let mut path: Vec<u64> = Vec::new();
            if stack > 0 {
                let model = &stacks[random.below(stack) as usize];
                let kept = model.len() as u64;
                path.extend(&model[..random.below(kept).max(random.below(kept)) as usize]);
            }
            for _ in path.len() as u64..15 + random.below(20) {
                let caller = path.last().copied().unwrap_or(0);
                let callee = (caller * 31 + random.below(4)) % SERVICE_FUNCTIONS;
                path.push(callee * CALLS + random.below(CALLS));
            }
            let node = path.iter().fold(0, |parent, &number| {
                let location = locations[number as usize];
                *known.entry((parent, location)).or_insert_with(|| {
                    answer.nodes.push(Node { parent, location });
                    answer.nodes.len() as u32 - 1
                })
            });
            *sums.entry(node).or_default() += 52_631_578 * i128::from(1 + SERVICE_STACKS / (1 + stack));
            stacks.push(path);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable();
    answer.cells = sums.into_iter().map(|(node, sum)| Cell { group: 0, bucket: 0, node, sum }).collect();
    answer.samples = SERVICE_STACKS * count;
    answer.series = count;
    answer
}
