//! Property test: valid pushes of every profiler and format are stored exactly.
//!
//! Other profiles in the same push and the content of the store change nothing. Each stored push is compared with an
//! independent reading of its bytes. `VARVE_PUSH_CASES` runs that many random cases instead of a few fixed ones.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proto::Window;
use tests::grpc::{Sending, export, rejected};
use tests::payload::generated::{Defect, Profile, Seen, Shape, otlp};
use tests::payload::otlp::now_ns;
use tests::payload::profilers::PROFILERS;
use tests::payload::sample::{Expected, Folded, is_gauge};
use tests::payload::wire::{decode, encode};
use tests::payload::{otlp_decoded, otlp_json, pprof};
use tests::server::{Processes, Setup, Varve};
use tests::stored;

/// Cases of a usual run; each is two pushes and all that is asked about them.
const CASES: u32 = 128;

/// How a push is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Pprof,
    Otlp,
    OtlpJson,
    OtlpGrpc,
}

const FORMATS: [Format; 4] = [Format::Pprof, Format::Otlp, Format::OtlpJson, Format::OtlpGrpc];

/// One push: of a pprof, the first profile of the first resource.
#[derive(Clone, Debug)]
struct Case {
    format: Format,
    /// Names that no other case has, so that the store knows none of its stacks.
    is_new: bool,
    resources: Vec<Vec<Profile>>,
}

/// A number that no other push of this process has.
fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An answer: its status, and how many profiles it says were refused.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Stored(u64),
    Refused,
}

impl Case {
    /// Pushes it for a service that the store does not know and then for another, and checks what is stored of both.
    fn check(&self, varve: &Varve) {
        let serial = serial();
        let names = if self.is_new { format!("c{serial}_") } else { String::new() };
        for service in ["first", "second"] {
            self.push(varve, &format!("s{serial}-{service}"), &names);
        }
    }

    fn push(&self, varve: &Varve, service: &str, names: &str) {
        let now = now_ns();
        let what = format!("{service} {:?}", self.format);
        let (answer, expected) = match self.format {
            Format::Pprof => {
                let body = self.resources[0][0].pprof(names, now);
                let labels = [("service_name".to_owned(), service.to_owned())];
                let reply = varve.push_pprof(&pprof::gzip(&body), &[("service_name", service)], None);
                (answer(reply.status, &reply.text(), 0), pprof::Profile::read(&body).expected(&labels))
            }
            format => {
                let request = otlp(service, names, &self.resources, now);
                let bytes = encode(&request);
                (send_otlp(varve, format, &bytes), Some(otlp_decoded::expected(&bytes)))
            }
        };
        let Some(expected) = expected else {
            assert_eq!(answer, Answer::Refused, "{what}");
            return check(varve, service, &Expected::default(), now, &what);
        };
        let is_refused = expected.accepted == 0 && expected.rejected > 0;
        let told = if self.format == Format::Pprof { 0 } else { expected.rejected };
        assert_eq!(answer, if is_refused { Answer::Refused } else { Answer::Stored(told) }, "{what}");
        check(varve, service, &expected, now, &what);
    }
}

/// What a status means; every other is a failure of the test.
fn answer(status: u16, text: &str, rejected: u64) -> Answer {
    match status {
        200 => Answer::Stored(rejected),
        400 => Answer::Refused,
        _ => panic!("answered {status}: {text}"),
    }
}

fn send_otlp(varve: &Varve, format: Format, bytes: &[u8]) -> Answer {
    if format == Format::OtlpGrpc {
        return match export(&varve.grpc, bytes, Sending::default()) {
            Ok(response) => Answer::Stored(rejected(&response).0),
            Err(status) if status.code() == tonic::Code::InvalidArgument => Answer::Refused,
            Err(status) => panic!("answered {status}"),
        };
    }
    if format == Format::Otlp {
        let reply = varve.push_otlp(bytes, None);
        let rejected = if reply.status == 200 { rejected(&decode(&reply.body)).0 } else { 0 };
        return answer(reply.status, &reply.text(), rejected);
    }
    let reply = varve.push_otlp_as("application/json", &[], &otlp_json::of_request(&decode(bytes))).unwrap();
    let rejected =
        reply.json()["partialSuccess"]["rejectedProfiles"].as_str().map_or(0, |count| count.parse().unwrap());
    answer(reply.status, &reply.text(), rejected)
}

/// Sums that are not zero; a stack without frames as folded lines have it.
fn shown(folded: &Folded) -> Folded {
    let name = |stack: &Vec<String>| if stack.is_empty() { vec!["[no stack]".to_owned()] } else { stack.clone() };
    folded.iter().filter(|(_, sum)| **sum != 0).map(|(stack, sum)| (name(stack), *sum)).collect()
}

/// Types, totals, stacks, and each sample with its labels and time.
fn check(varve: &Varve, service: &str, expected: &Expected, now_ns: u64, what: &str) {
    let at_s = now_ns as f64 / 1e9 + 60.0;
    let selector = format!("{{service_name=\"{service}\"}}");
    let window = [("start", at_s - 7200.0), ("end", at_s)].map(|(name, time)| (name, format!("{time:.9}")));
    let parameters = [("match[]", selector.as_str()), ("start", &window[0].1), ("end", &window[1].1)];
    let series = varve.get("/api/v1/series", &parameters).expect(200).json();
    let types = series["data"].as_array().unwrap().iter().map(|labels| labels["__profile_type__"].as_str().unwrap());
    let types: BTreeSet<&str> = types.collect();
    for id in types.iter().copied().chain(expected.folded.keys().map(String::as_str)).collect::<BTreeSet<_>>() {
        let want = expected.folded.get(id).map(shown).unwrap_or_default();
        if !types.contains(id) {
            assert_eq!(want, Folded::new(), "{what} {id}: nothing is stored");
            continue;
        }
        let selector = format!("{{__profile_type__=\"{id}\",service_name=\"{service}\"}}");
        assert_eq!(shown(&varve.folded(&selector, (at_s - 7200.0, at_s))), want, "{what} {id}");
        let function = if is_gauge(id) { "last_over_time" } else { "sum_over_time" };
        let (got, want) =
            (varve.total(&format!("{function}({selector}[2h])"), at_s), want.values().sum::<i128>() as f64);
        assert!((got - want).abs() <= want.abs() * 1e-9, "{what} {id}: the total is {got}, not {want}");
    }
    let window = Window { start_ns: proto::limits::TIME_MIN_NS, end_ns: i64::MAX / 2 };
    let mut got = stored::samples(varve, ("service_name", service), window);
    // A gauge that is all zeros has a sample that says so.
    got.count = expected.samples.count;
    got.assert_equals(&expected.samples, what);
}

fn any_seen(columns: usize, values: BoxedStrategy<i64>) -> impl Strategy<Value = Seen> {
    let stack = prop_oneof![
        4 => prop::collection::vec(0_u8..24, 1..7),
        3 => prop::sample::select(vec![vec![1, 2], vec![5, 1, 2], vec![13, 6, 1, 2], vec![6]]),
        1 => Just(Vec::new()),
    ];
    let label = prop_oneof![2 => Just(0_u8), 1 => 1_u8..5];
    let seconds = prop::collection::vec(0_u32..300, 1..4);
    (stack, prop::collection::vec(values, columns), label, seconds)
        .prop_map(|(stack, values, label, seconds_before)| Seen { stack, values, label, seconds_before })
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let usual = || prop_oneof![3 => Just(0_i64), 4 => 1_i64..1000, 1 => 0_i64..1 << 35];
    let values = prop_oneof![
        12 => Just(usual().boxed()),
        2 => Just(prop_oneof![4 => usual(), 1 => -1000_i64..0].boxed()),
        1 => Just(prop_oneof![6 => usual(), 1 => Just(i64::MAX)].boxed()),
        1 => Just(Just(0_i64).boxed()),
    ];
    let defects = [Defect::TooOld, Defect::Ahead, Defect::Shape];
    let defect = prop_oneof![6 => Just(Defect::None), 1 => prop::sample::select(defects.to_vec())];
    let shape = prop::sample::select(vec![Shape::Value, Shape::Timestamps, Shape::Both]);
    (0..PROFILERS.len(), values, defect, shape).prop_flat_map(|(profiler, values, defect, shape)| {
        let profiler = &PROFILERS[profiler];
        let samples = prop::collection::vec(any_seen(profiler.sample_types.len(), values), 0..10);
        samples.prop_map(move |samples| Profile { profiler, defect, shape, samples })
    })
}

fn any_case() -> impl Strategy<Value = Case> {
    let resources = prop::collection::vec(prop::collection::vec(any_profile(), 1..4), 1..3);
    (prop::sample::select(FORMATS.to_vec()), any::<bool>(), resources).prop_map(|(format, is_new, resources)| Case {
        format,
        is_new,
        resources,
    })
}

/// Runs the cases against one varve. It is an error of the test's own if the same case is another the next time.
fn run(varve: &Varve, cases: u32) {
    let named = std::env::var("VARVE_PUSH_CASES").ok().map(|cases| cases.parse().unwrap());
    let config = Config { cases: named.unwrap_or(cases), failure_persistence: None, ..Config::default() };
    let mut runner = match named {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let outcome = runner.run(&any_case(), |case| {
        case.check(varve);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn valid_pushes_of_every_profiler_are_stored_exactly() {
    run(&Varve::up(), CASES);
}

#[test]
fn valid_pushes_are_stored_exactly_by_a_remote_node() {
    run(&Varve::start(Setup { processes: Processes::Three, ..Setup::default() }), CASES / 4);
}

/// A sample of stack `[number]` with these values.
fn seen(number: u8, values: &[i64]) -> Seen {
    Seen { stack: vec![number], values: values.to_vec(), label: number % 3, seconds_before: vec![0] }
}

fn profile(name: &str, defect: Defect, samples: Vec<Seen>) -> Profile {
    let profiler = PROFILERS.iter().find(|profiler| profiler.name == name).unwrap();
    Profile { profiler, defect, shape: Shape::Value, samples }
}

#[test]
fn stacks_of_dropped_samples_do_not_refuse_a_push_to_an_empty_store() {
    let zero = || vec![seen(1, &[0]), seen(2, &[4])];
    let good = || profile("async-profiler cpu", Defect::None, vec![seen(3, &[5])]);
    let beside = |defect| vec![vec![good(), profile("async-profiler wall", defect, vec![seen(4, &[6])])]];
    let negative = profile("async-profiler wall", Defect::None, vec![seen(4, &[-6])]);
    let heap = vec![seen(1, &[0, 0, 0, 0]), seen(2, &[3, 4, 0, 0])];
    let pushes = [
        vec![vec![profile("async-profiler cpu", Defect::None, zero())]],
        vec![vec![profile("go heap", Defect::None, heap)]],
        vec![vec![profile("go cpu", Defect::None, vec![seen(1, &[-1, 0]), seen(2, &[-1, 7])])]],
        vec![vec![good(), negative.clone()], vec![negative]],
        beside(Defect::TooOld),
        beside(Defect::Ahead),
        beside(Defect::Shape),
    ];
    for format in FORMATS {
        let varve = Varve::up();
        for resources in &pushes {
            Case { format, is_new: true, resources: resources.clone() }.check(&varve);
        }
    }
}
