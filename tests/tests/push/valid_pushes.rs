//! Property test: valid pushes of every profiler and format are stored exactly.
//!
//! Neither other profiles in the same push nor the content of the store change the result. Each stored push is compared
//! with an independent decoder. `VARVE_SOAK=1` runs many random cases instead of a few fixed ones.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proto::Window;
use tests::grpc::{Sending, export, rejected};
use tests::payload::generated::{Defect, FRAMES, LABELS, Layout, Profile, Seen, Shape, otlp};
use tests::payload::otlp::now_ns;
use tests::payload::profilers::PROFILERS;
use tests::payload::sample::{Expected, Folded, Multiset, Sample, is_gauge};
use tests::payload::wire::{decode, encode};
use tests::payload::{otlp_decoded, otlp_json, pprof};
use tests::server::{Processes, Setup, Varve};
use tests::stored;

/// Default number of cases. Each case makes two pushes, and queries the stored samples.
const CASES: u32 = 128;

/// Factor by which `VARVE_SOAK=1` multiplies the number of cases.
const SOAK_FACTOR: u32 = 16;

/// Format and transport of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// A pprof. `name` is the name of the profile types; it may be empty.
    Pprof {
        name: &'static str,
        has_time: bool,
    },
    Otlp(Layout),
    OtlpJson,
    OtlpGrpc(Layout),
}

const FORMATS: [Format; 8] = [
    Format::Pprof { name: "", has_time: true },
    Format::Pprof { name: "given name", has_time: true },
    Format::Pprof { name: "", has_time: false },
    Format::Otlp(Layout::V1_8),
    Format::Otlp(Layout::V1_9),
    Format::Otlp(Layout::Newest),
    Format::OtlpJson,
    Format::OtlpGrpc(Layout::Newest),
];

/// One push. If the format is pprof, only the first profile of the first resource is pushed.
#[derive(Clone, Debug)]
struct Case {
    format: Format,
    /// True if no other push has the same names of functions. The store then has none of the push's stacks.
    is_new: bool,
    resources: Vec<Vec<Profile>>,
}

/// Returns a number that no other push of this process has.
fn serial() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Outcome of a push, as the response reports it.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The push is stored. `samples` is the number of stored samples, which only the response to a pprof reports.
    Stored {
        rejected: u64,
        samples: Option<u64>,
    },
    Refused,
}

impl Case {
    /// Pushes the case twice, each time for a service that the store does not know. Checks the stored samples of both
    /// services.
    fn check(&self, varve: &Varve) {
        let serial = serial();
        let names = if self.is_new { format!("c{serial}_") } else { String::new() };
        for service in ["first", "second"] {
            self.push(varve, &format!("s{serial}-{service}"), &names);
        }
    }

    fn push(&self, varve: &Varve, service: &str, names: &str) {
        let now_ns = now_ns();
        let what = format!("{service} {:?}", self.format);
        let request = |layout| encode(&otlp(layout, service, names, &self.resources, now_ns));
        let (answer, expected) = match self.format {
            Format::Pprof { name, has_time } => {
                let body = self.resources[0][0].pprof(names, now_ns);
                let body = if has_time { body } else { pprof::without_time(&body) };
                let labels = [("service_name".to_owned(), service.to_owned())];
                let expected = pprof::Profile::read(&body).named(name).received_at(now_ns).expected(&labels);
                (send_pprof(varve, service, name, &body), expected)
            }
            Format::Otlp(layout) => {
                let bytes = request(layout);
                (send_otlp(varve, &bytes), Some(otlp_decoded::expected(&bytes)))
            }
            Format::OtlpJson => {
                let bytes = request(Layout::Newest);
                (send_otlp_json(varve, &bytes), Some(otlp_decoded::expected(&bytes)))
            }
            Format::OtlpGrpc(layout) => {
                let bytes = request(layout);
                (send_otlp_grpc(varve, &bytes), Some(otlp_decoded::expected(&bytes)))
            }
        };
        let has_time = !matches!(self.format, Format::Pprof { has_time: false, .. });
        let pushed = Pushed { service, now_ns, has_time, what: &what };
        let Some(expected) = expected else {
            assert_eq!(answer, Answer::Refused, "{what}");
            return pushed.check(varve, &Expected::default());
        };
        let is_refused = expected.accepted == 0 && expected.rejected > 0;
        let samples = matches!(self.format, Format::Pprof { .. }).then_some(expected.samples.count);
        let stored = Answer::Stored { rejected: expected.rejected, samples };
        assert_eq!(answer, if is_refused { Answer::Refused } else { stored }, "{what}");
        pushed.check(varve, &expected);
    }
}

/// Converts a status and counts to an [`Answer`]. A status other than 200 and 400 fails the test.
fn answer(status: u16, text: &str, counts: impl FnOnce() -> (u64, Option<u64>)) -> Answer {
    match status {
        200 => {
            let (rejected, samples) = counts();
            Answer::Stored { rejected, samples }
        }
        400 => Answer::Refused,
        _ => panic!("answered {status}: {text}"),
    }
}

fn send_pprof(varve: &Varve, service: &str, name: &str, body: &[u8]) -> Answer {
    let reply = varve.push_pprof(&pprof::gzip(body), &[("service_name", service), ("name", name)], None);
    answer(reply.status, &reply.text(), || {
        let data = &reply.json()["data"];
        (data["rejected_profiles"].as_u64().unwrap(), Some(data["samples"].as_u64().unwrap()))
    })
}

fn send_otlp(varve: &Varve, bytes: &[u8]) -> Answer {
    let reply = varve.push_otlp(bytes, None);
    answer(reply.status, &reply.text(), || (rejected(&decode(&reply.body)).0, None))
}

fn send_otlp_json(varve: &Varve, bytes: &[u8]) -> Answer {
    let reply = varve.push_otlp_as("application/json", &[], &otlp_json::of_request(&decode(bytes))).unwrap();
    answer(reply.status, &reply.text(), || {
        let json = reply.json();
        (json["partialSuccess"]["rejectedProfiles"].as_str().map_or(0, |count| count.parse().unwrap()), None)
    })
}

fn send_otlp_grpc(varve: &Varve, bytes: &[u8]) -> Answer {
    match export(&varve.grpc, bytes, Sending::default()) {
        Ok(response) => Answer::Stored { rejected: rejected(&response).0, samples: None },
        Err(status) if status.code() == tonic::Code::InvalidArgument => Answer::Refused,
        Err(status) => panic!("answered {status}"),
    }
}

/// Returns the stacks whose sums are not 0. The empty stack becomes `[no stack]`, as in responses with folded stacks.
fn shown(folded: &Folded) -> Folded {
    let name = |stack: &Vec<String>| if stack.is_empty() { vec!["[no stack]".to_owned()] } else { stack.clone() };
    folded.iter().filter(|(_, sum)| **sum != 0).map(|(stack, sum)| (name(stack), *sum)).collect()
}

/// A push that was sent and got a response.
struct Pushed<'c> {
    service: &'c str,
    /// Time just before the push was sent.
    now_ns: u64,
    has_time: bool,
    what: &'c str,
}

impl Pushed<'_> {
    /// Checks the stored types, totals and stacks, and each stored sample with its labels and time.
    fn check(&self, varve: &Varve, expected: &Expected) {
        let &Self { service, now_ns, what, .. } = self;
        let at_s = now_ns as f64 / 1e9 + 60.0;
        let selector = format!("{{service_name=\"{service}\"}}");
        let window = [("start", at_s - 7200.0), ("end", at_s)].map(|(name, time)| (name, format!("{time:.9}")));
        let parameters = [("match[]", selector.as_str()), ("start", &window[0].1), ("end", &window[1].1)];
        let series = varve.get("/api/v1/series", &parameters).expect(200).json();
        let id = |labels: &'_ serde_json::Value| labels["__profile_type__"].as_str().unwrap().to_owned();
        let types: BTreeSet<String> = series["data"].as_array().unwrap().iter().map(id).collect();
        assert!(types.iter().eq(&expected.types()), "{what}: {types:?}, not {:?}", expected.types());
        for id in &types {
            let want = shown(&expected.folded(id));
            let selector = format!("{{__profile_type__=\"{id}\",service_name=\"{service}\"}}");
            assert_eq!(shown(&varve.folded(&selector, (at_s - 7200.0, at_s))), want, "{what} {id}");
            let function = if is_gauge(id) { "last_over_time" } else { "sum_over_time" };
            let got = varve.total(&format!("{function}({selector}[2h])"), at_s);
            let want = want.values().sum::<i128>() as f64;
            assert!((got - want).abs() <= want.abs() * 1e-9, "{what} {id}: the total is {got}, not {want}");
        }
        self.stored(varve).assert_equals(&expected.samples, what);
    }

    /// Returns the stored samples. If the push has no time, the time of each sample must be that of receipt, and is
    /// replaced by `now_ns`.
    fn stored(&self, varve: &Varve) -> Multiset {
        let window = Window { start_ns: proto::limits::TIME_MIN_NS, end_ns: i64::MAX / 2 };
        let mut stored = stored::samples(varve, ("service_name", self.service), window);
        if !self.has_time {
            let [sent_ns, until_ns] = [self.now_ns, now_ns()].map(u64::cast_signed);
            let at_sending = |(mut sample, sum): (Sample, i128)| {
                assert!((sent_ns..=until_ns).contains(&sample.time_ns), "{}: {sample:?}", self.what);
                sample.time_ns = sent_ns;
                (sample, sum)
            };
            stored.sums = stored.sums.into_iter().map(at_sending).collect();
        }
        stored
    }
}

fn any_seen(columns: usize, values: BoxedStrategy<i64>) -> impl Strategy<Value = Seen> {
    let stack = prop_oneof![
        4 => prop::collection::vec(0..FRAMES, 1..7),
        3 => prop::sample::select(vec![vec![1, 2], vec![5, 1, 2], vec![13, 6, 1, 2], vec![6]]),
        1 => Just(Vec::new()),
    ];
    let label = prop_oneof![2 => Just(0_u8), 1 => 1..LABELS];
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

/// Runs the cases against one varve.
fn run(varve: &Varve, cases: u32) {
    let is_soak = std::env::var("VARVE_SOAK").is_ok_and(|value| value == "1");
    let cases = if is_soak { cases * SOAK_FACTOR } else { cases };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = if is_soak {
        TestRunner::new(config)
    } else {
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
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

/// Returns a sample with these values. Its stack is only the frame with this number.
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
        for resources in &pushes {
            Case { format, is_new: true, resources: resources.clone() }.check(&Varve::up());
        }
    }
}
