//! Test of a tenant that pushes ten times its limit, beside another tenant.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::administration::Administration;
use tests::http::request;
use tests::payload::otlp::{Request, now_ns, stack};
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

/// Samples per second that tenant a may push, and that it pushes.
const LIMIT: u64 = 400;
const OFFERED: u64 = 10 * LIMIT;
const SAMPLES_PER_PUSH: u64 = 20;
const CLIENTS: u64 = 4;
/// Pause of a client of tenant b between two pushes.
const PAUSE: Duration = Duration::from_millis(20);
/// Time of one half of a round: tenant b alone, or beside tenant a. Rounds alternate, so that a change of the machine's
/// speed affects both halves.
const HALF: Duration = Duration::from_secs(4);
const ROUNDS: usize = 4;
const THROUGHPUT_MIN: f64 = 0.95;

/// Pushes of one kind of phase.
#[derive(Debug, Default)]
struct Outcome {
    acknowledged: u64,
    limited: u64,
    latencies_ms: Vec<f64>,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.limited += other.limited;
        self.latencies_ms.extend(other.latencies_ms);
    }

    fn p99_ms(&mut self) -> f64 {
        self.latencies_ms.sort_by(f64::total_cmp);
        self.latencies_ms[self.latencies_ms.len() * 99 / 100]
    }
}

/// Pushes `samples` samples at a time until `stop` is set. `pause` waits between two pushes, and gets the time of the
/// first push and the number of pushes.
fn push(varve: &Varve, token: &str, samples: u64, pause: impl Fn(Instant, u64), stop: &AtomicBool) -> Outcome {
    let authorization = format!("Bearer {token}");
    let headers = [("content-type", "application/x-protobuf"), ("authorization", authorization.as_str())];
    let url = format!("http://{}/v1development/profiles", varve.otlp);
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    for n in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let times = (0..samples).map(|sample| now_ns() - sample * 1000).collect();
        let body = Request::new("noisy").seen(stack(&["leaf", "main"]), times).bytes();
        let sent = Instant::now();
        let reply = request("POST", &url, &headers, Some(&body)).unwrap();
        outcome.latencies_ms.push(sent.elapsed().as_secs_f64() * 1000.0);
        match reply.status {
            200 => outcome.acknowledged += 1,
            429 => {
                assert!(!reply.header("retry-after").is_empty());
                outcome.limited += 1;
            }
            status => panic!("{status}: {}", reply.text()),
        }
        pause(begun, n);
    }
    outcome
}

/// Lets tenant b push for one half of a round, beside tenant a if `beside` is true. Returns the pushes of both.
fn half(varve: &Varve, [a, b]: [&str; 2], beside: bool) -> [Outcome; 2] {
    let stop = &AtomicBool::new(false);
    let every = |begun: Instant, n: u64| {
        // A fixed rate, whatever the responses are.
        let due = Duration::from_secs_f64((n * SAMPLES_PER_PUSH * CLIENTS) as f64 / OFFERED as f64);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    };
    std::thread::scope(|scope| {
        let of_a: Vec<_> = (0..if beside { CLIENTS } else { 0 })
            .map(|_| scope.spawn(move || push(varve, a, SAMPLES_PER_PUSH, every, stop)))
            .collect();
        let of_b: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(move || push(varve, b, SAMPLES_PER_PUSH, |_, _| std::thread::sleep(PAUSE), stop)))
            .collect();
        std::thread::sleep(HALF);
        stop.store(true, Ordering::Relaxed);
        [of_a, of_b].map(|clients| {
            let mut all = Outcome::default();
            clients.into_iter().for_each(|client| all.add(client.join().unwrap()));
            all
        })
    })
}

#[test]
fn a_tenant_at_ten_times_its_limit_leaves_another_its_throughput() {
    let _alone = alone();
    let varve = Varve::start(Setup::default().flags(&["--require-token"]));
    let admin = Administration::of(&varve);
    admin.create_tenant("a", &["--samples-per-second", &LIMIT.to_string()]);
    admin.create_tenant("b", &[]);
    let tokens = ["a", "b"].map(|tenant| admin.create_token(tenant, "push", &[]).0);
    std::thread::sleep(Duration::from_secs(1));
    let tokens = [tokens[0].as_str(), tokens[1].as_str()];
    let _warm_up = half(&varve, tokens, true);
    let (mut alone, mut beside, mut noisy) = (Outcome::default(), Outcome::default(), Outcome::default());
    for _ in 0..ROUNDS {
        let [_, b] = half(&varve, tokens, false);
        alone.add(b);
        let [a, b] = half(&varve, tokens, true);
        noisy.add(a);
        beside.add(b);
    }
    let seconds = HALF.as_secs_f64() * ROUNDS as f64;
    let accepted = (noisy.acknowledged * SAMPLES_PER_PUSH) as f64 / seconds;
    let throughput = beside.acknowledged as f64 / alone.acknowledged as f64;
    figure(&json!({"row": "S9", "limit_samples_per_s": LIMIT, "offered_samples_per_s": OFFERED,
        "accepted_samples_per_s": accepted, "limited": noisy.limited, "b_alone": alone.acknowledged,
        "b_beside": beside.acknowledged, "b_throughput": throughput, "b_limited": alone.limited + beside.limited,
        "b_p99_alone_ms": alone.p99_ms(), "b_p99_beside_ms": beside.p99_ms()}));
    assert_eq!(alone.limited + beside.limited, 0);
    // Each half begins with up to a second of the rate.
    assert!(accepted <= LIMIT as f64 * 1.5 && accepted >= LIMIT as f64 * 0.5, "{accepted} samples/s were accepted");
    assert!(noisy.limited > 4 * noisy.acknowledged, "{} of {}", noisy.limited, noisy.acknowledged);
    assert!(throughput >= THROUGHPUT_MIN, "b has {throughput} of its throughput");
}
