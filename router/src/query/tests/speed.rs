//! How long the router's half of an answer takes: a measurement on what bench's H mix gives, and a bound ten times as high.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proto::answer::{Cell, Node};
use proto::{
    Address, Answer, BuildId, Dictionary, Function, LabelSet, Line, Location, LocationPage, MappingIdentity, Window,
};

use super::symbols::symbols;
use crate::query::flamegraph::request::{FlamegraphRequest, Format, Writing};
use crate::query::flamegraph::summary::Summary;
use crate::query::naming::namer::Namer;
use crate::query::naming::tenant_names::{Book, ShardAnswer};
use crate::query::promql::parse::parse;
use crate::query::run::{Cancelled, Timings};

const SERVICE_FUNCTIONS: u64 = 600;
const CALLS: u64 = 5;
const SERVICE_STACKS: u64 = 8_400;

/// A sequence that looks random.
struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

fn add_locations(to: &mut Dictionary, service: u64) -> Vec<u32> {
    let binary = to.strings.intern(&format!("/usr/local/bin/service{service}"));
    let kind = to.strings.intern("native");
    let build_id = BuildId::parse(&format!("gnu:{service:040x}")).unwrap();
    let mapping = to.intern_mapping(MappingIdentity::BuildId(build_id), binary);
    let places = (0..SERVICE_FUNCTIONS * CALLS).map(|place| {
        let (function, call) = (place / CALLS, place % CALLS);
        // Every fifth service is one without names.
        if service % 5 == 3 {
            let address = Address::Virtual(0x40_1000 + function * 1024 + call * 97);
            return to.intern_location(Location::Address { mapping, address, frame_type: kind });
        }
        let name = format!("github.com/acme/service{service}/internal/orders.(*Repository).Find{function}");
        let (name, file) = (to.strings.intern(&name), to.strings.intern(&format!("/src/orders/{}.go", function / 8)));
        let function = to.intern_function(Function { name, system_name: name, file, start_line: function as i64 * 20 });
        let lines = [Line { function, line: call as i64, column: 0 }].into();
        to.intern_location(Location::Lines { mapping_file: binary, frame_type: kind, lines })
    });
    places.collect()
}

/// As many services, their stacks branching off one another: deep ones more often than not.
fn answer_of(services: u64) -> Answer {
    let mut answer = Answer { nodes: vec![Node { parent: 0, location: 0 }], ..Answer::default() };
    answer.groups.push(LabelSet::default());
    let mut random = Random(7);
    let mut sums: HashMap<u32, i128> = HashMap::new();
    for service in 0..services {
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
            let node = path.iter().fold(0, |parent, &place| {
                let location = locations[place as usize];
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
    answer
}

/// The best of some runs, and its parts.
fn fastest(answer: &Answer, nodes_max: usize) -> (Duration, Timings) {
    let (_directory, symbols) = symbols();
    let window = Window { start_ns: 0, end_ns: 1 };
    let summary = || Summary { samples: 1, series: 1, shards: 1, ..Summary::of(window) };
    let request = FlamegraphRequest { query: String::new(), window, format: Format::Json, nodes_max };
    // A book that knows all locations, as that of a tenant who asked before.
    let (book, shard, known) = (Book::default(), 0, answer.dictionary.locations.len() as u32);
    let page = LocationPage { generation: 1, first: 0, count: known, dictionary: answer.dictionary.clone() };
    book.add(shard, &page).unwrap();
    let answer = Answer { dictionary: Dictionary::default(), ..answer.clone() };
    let run = |_| {
        let answers = vec![ShardAnswer { shard, known, answer: answer.clone() }];
        let (mut timings, began) = (Timings::default(), Instant::now());
        let namer = Namer::new(symbols.clone(), began + Duration::from_secs(1));
        let named = timings.measure("name", || book.name(answers, &namer));
        let writing = Writing { named, summary: summary(), request: request.clone() };
        writing.write(&Cancelled::default(), &mut timings).unwrap();
        (began.elapsed(), timings)
    };
    (0..15).map(run).min_by_key(|(took, _)| *took).unwrap()
}

#[test]
fn flame_graphs_of_many_stacks_take_milliseconds() {
    for (services, milliseconds_max) in [(1, 40), (5, 300)] {
        let answer = answer_of(services);
        let (took, timings) = fastest(&answer, 8192);
        let parts: Vec<_> =
            timings.0.iter().map(|(part, took)| format!("{part} {:.2}", took.as_secs_f64() * 1e3)).collect();
        let (nodes, locations) = (answer.nodes.len(), answer.dictionary.locations.len());
        eprintln!(
            "{services} services, {nodes} nodes, {locations} locations: {:.2} ms: {}",
            took.as_secs_f64() * 1e3,
            parts.join(", ")
        );
        // Unoptimized builds are ten times as slow.
        let scale = if cfg!(debug_assertions) { 10 } else { 1 };
        assert!(took < Duration::from_millis(milliseconds_max) * scale, "{took:?}: {timings:?}");
    }
}

#[test]
fn parsing_takes_microseconds() {
    let text = "sum by (k8s_pod_name) (rate(process_cpu{service_name=\"checkout\"}[1m]))";
    let began = Instant::now();
    for _ in 0..100 {
        parse(text).unwrap();
    }
    let whole = began.elapsed() / 100;
    let began = Instant::now();
    for _ in 0..100 {
        promql_parser::parser::parse(text).unwrap();
    }
    eprintln!("parse {whole:?}, parser alone {:?}", began.elapsed() / 100);
    assert!(whole < Duration::from_millis(20));
}
