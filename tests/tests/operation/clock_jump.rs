//! Tests of a system clock that jumps: retention does not follow the jump, and no push is refused once the clock is
//! right again.
//!
//! The process uses a system clock that the test sets ([`tests::wrong_clock`]).

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::server::{Setup, Varve};
use tests::shared::varve_binary;
use tests::wrong_clock::WrongClock;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400 * SECOND_NS;
const YEAR_S: i64 = 365 * 86_400;
const RETENTION: [&str; 8] =
    ["--retention", "10d", "--retention-1m", "20d", "--retention-1h", "30d", "--retention-1d", "60d"];

/// Returns the time for which a test leaves the clock wrong. Some seconds are enough, because expiry runs every second;
/// with `VARVE_SOAK=1` it is a minute.
fn wrong_for() -> Duration {
    let is_soak = std::env::var("VARVE_SOAK").is_ok_and(|value| value == "1");
    Duration::from_secs(if is_soak { 60 } else { 8 })
}

/// A varve whose clock a test sets, and the number of samples that it must have.
struct World {
    varve: Varve,
    clock: WrongClock,
    /// Number of samples that were pushed for the service `right`.
    pushed: u64,
}

impl World {
    fn start() -> Self {
        let mut world = Self::start_empty(0);
        world.push_history();
        world
    }

    /// Starts a varve without samples, and with the clock this many seconds ahead.
    fn start_empty(ahead_s: i64) -> Self {
        let clock = WrongClock::new();
        clock.set(ahead_s);
        let setup = Setup { environment: clock.environment(), ..Setup::default() };
        Self { varve: Varve::start(setup.flags(&RETENTION)), clock, pushed: 0 }
    }

    fn push_history(&mut self) {
        for days in [9, 5, 1, 0] {
            self.push(now_ns() - days * DAY_NS).unwrap();
        }
    }

    /// Pushes one sample with this time. The error is the response.
    fn push_to(&self, service: &str, time_ns: u64) -> Result<(), String> {
        let reply =
            self.varve.push_otlp(&Request::new(service).seen(stack(&["f", "main"]), vec![time_ns]).bytes(), None);
        if reply.status == 200 { Ok(()) } else { Err(format!("{} {}", reply.status, reply.text())) }
    }

    fn push(&mut self, time_ns: u64) -> Result<(), String> {
        self.push_to("right", time_ns)?;
        self.pushed += 1;
        Ok(())
    }

    /// Returns the number of a service's samples in the 400 days before a time.
    fn samples(&self, service: &str, end_ns: u64) -> u64 {
        let promql = format!("sum_over_time(process_cpu{{service_name=\"{service}\"}}[400d])");
        (self.varve.total(&promql, end_ns as f64 / 1e9) / PERIOD_NS as f64) as u64
    }

    /// Pushes samples for some time, and checks that no sample is refused or missing.
    fn holds_for(&mut self, duration: Duration, when: &str) {
        let began = Instant::now();
        while began.elapsed() < duration {
            self.push(now_ns()).unwrap_or_else(|said| panic!("{when}: {said}"));
            assert_eq!(self.samples("right", now_ns() + 60 * SECOND_NS), self.pushed, "{when}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn restart(&mut self) {
        self.varve.kill();
        self.varve.launch();
    }

    fn metric(&self, name: &str) -> f64 {
        self.varve.metric(&self.varve.http, name).unwrap_or_else(|| panic!("there is no metric {name}"))
    }

    /// Runs `varve admin clock`. Returns its text, and its report in JSON.
    fn admin_clock(&self, flags: &[&str]) -> (String, Value) {
        let endpoint = format!("http://{}", self.varve.http);
        let run = |more: &[&str]| {
            let arguments = [&["admin", "clock", "--endpoint", &endpoint], more].concat();
            let output = Command::new(varve_binary()).args(arguments).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let text = run(flags);
        let report: Value = serde_json::from_str(&run(&["--format", "json"])).unwrap();
        (text, report[0]["report"].clone())
    }
}

#[test]
fn a_year_ahead_expires_nothing_and_refuses_nothing_afterwards() {
    let mut world = World::start();
    world.holds_for(Duration::from_secs(2), "with the right clock");

    world.clock.set(YEAR_S);
    world.holds_for(wrong_for(), "a year ahead");
    // Samples of agents with the same wrong clock are accepted, and make no other data expire.
    let year_later_ns = now_ns() + YEAR_S.unsigned_abs() * SECOND_NS;
    world.push_to("wrong", year_later_ns).unwrap();
    world.holds_for(Duration::from_secs(2), "with samples of a year later");
    let (text, report) = world.admin_clock(&[]);
    assert!(text.contains("365days") && text.contains("varve admin clock --accept"), "{text}");
    assert_eq!(report["state"], "ahead");
    let jump = report["jump_seconds"].as_f64().unwrap();
    assert!((jump - YEAR_S as f64).abs() < 60.0, "{jump}");
    assert_eq!(world.metric("varve_node_clock_jumps_total"), 1.0);
    assert!((world.metric("varve_node_clock_jump_seconds") as i64 - YEAR_S).abs() < 60);
    assert_eq!(world.varve.said().matches("the system clock jumped ahead").count(), 1, "{}", world.varve.said());

    world.restart();
    world.holds_for(wrong_for(), "after a start with the clock a year ahead");

    world.clock.set(0);
    world.holds_for(Duration::from_secs(3), "after the clock is set back");
    assert_eq!(world.admin_clock(&[]).1["state"], "agrees");
    assert_eq!(world.metric("varve_node_clock_jump_seconds"), 0.0);
    assert_eq!(world.samples("wrong", year_later_ns + 60 * SECOND_NS), 1, "it stays until its time comes");
    assert!(world.varve.terminate().success(), "{}", world.varve.said());
    world.varve.launch();
    world.holds_for(Duration::from_secs(2), "after a restart with the right clock");
}

#[test]
fn a_year_back_expires_nothing_and_refuses_nothing_afterwards() {
    let mut world = World::start();
    world.clock.set(-YEAR_S);
    // Samples of agents with the same wrong clock are accepted. Samples with right times are refused, because these
    // times are ahead of the server's clock.
    let year_before_ns = now_ns() - YEAR_S.unsigned_abs() * SECOND_NS;
    let began = Instant::now();
    while began.elapsed() < wrong_for() {
        world.push_to("wrong", year_before_ns).unwrap();
        assert_eq!(world.samples("right", now_ns() + 60 * SECOND_NS), world.pushed);
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = world.push_to("right", now_ns()).unwrap_err();
    assert!(said.starts_with("400") && said.contains("clock"), "{said}");
    assert_eq!(world.admin_clock(&[]).1["state"], "behind");
    world.restart();
    assert_eq!(world.admin_clock(&[]).1["state"], "behind", "after a restart");
    assert_eq!(world.samples("right", now_ns() + 60 * SECOND_NS), world.pushed);
    world.clock.set(0);
    world.holds_for(Duration::from_secs(3), "with the right clock again");
    // With the right clock, the samples of a year ago are too old, and expire.
    let began = Instant::now();
    while world.samples("wrong", year_before_ns + 60 * SECOND_NS) > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "they are kept");
        std::thread::sleep(Duration::from_millis(200));
    }
    world.restart();
    world.holds_for(Duration::from_secs(2), "after a restart");
}

/// The clock is a year ahead at the first start, so the times in the log are a year ahead, too. Then the clock is set
/// right, and an operator accepts it.
#[test]
fn a_log_ahead_of_the_clock_does_not_let_a_jump_expire_data() {
    let mut world = World::start_empty(YEAR_S);
    world.push_to("wrong", now_ns() + YEAR_S.unsigned_abs() * SECOND_NS).unwrap();
    world.clock.set(0);
    world.admin_clock(&["--accept"]);
    world.push_history();
    world.restart();
    let report = world.admin_clock(&[]).1;
    assert_eq!(report["state"], "agrees");
    assert!(report["log_time"].as_f64().unwrap() > now_ns() as f64 / 1e9 + 300.0 * 86_400.0, "{report}");
    world.clock.set(200 * 86_400);
    world.holds_for(wrong_for(), "200 days ahead");
    world.restart();
    world.holds_for(wrong_for(), "after a restart 200 days ahead");
    assert_eq!(world.admin_clock(&[]).1["state"], "ahead");
    world.clock.set(0);
    world.holds_for(Duration::from_secs(2), "with the right clock again");
    assert_eq!(world.admin_clock(&[]).1["state"], "agrees");
}

/// After a restart, a node knows the right time only if it was stored. An idle node must therefore store it, too.
#[test]
fn an_idle_node_restarts_with_the_right_time() {
    let mut world = World::start();
    // In these two seconds, the node stores the time of the start.
    std::thread::sleep(Duration::from_secs(2));
    let hours = |hours: i64| hours * 3600;
    let syncs = |world: &World| world.metric("varve_node_log_syncs_total");
    let before = syncs(&world);
    world.clock.set(hours(20));
    let began = Instant::now();
    while syncs(&world) == before {
        assert!(began.elapsed() < Duration::from_secs(10), "the time is not stored");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A flush may have synced the log. The time is stored within a second.
    std::thread::sleep(Duration::from_secs(3));
    world.varve.kill();
    world.clock.set(hours(40));
    world.varve.launch();
    assert_eq!(world.admin_clock(&[]).1["state"], "agrees", "20 hours since the time was stored");
    world.varve.kill();
    world.clock.set(hours(120));
    world.varve.launch();
    assert_eq!(world.admin_clock(&[]).1["state"], "ahead", "three days since the time was stored");
}

#[test]
fn an_accepted_jump_expires_old_data_and_holds_after_a_restart() {
    let mut world = World::start();
    world.clock.set(12 * 86_400);
    world.holds_for(Duration::from_secs(3), "before it is accepted");
    let (text, report) = world.admin_clock(&["--accept"]);
    assert!(text.contains("They agree."), "{text}");
    assert_eq!((report["state"].as_str(), report["jump_seconds"].as_f64()), (Some("agrees"), Some(0.0)));
    let began = Instant::now();
    let raw_samples = |world: &World| {
        let stats = world.varve.get("/api/v1/admin/stats", &[]).expect(200).json();
        stats["data"][0]["report"]["samples"]["raw"].as_u64().unwrap_or(0)
    };
    while raw_samples(&world) > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing expires");
        std::thread::sleep(Duration::from_millis(200));
    }
    let said = world.push_to("right", now_ns()).unwrap_err();
    assert!(said.contains("retention"), "{said}");
    world.restart();
    assert_eq!(world.admin_clock(&[]).1["state"], "agrees");
}
