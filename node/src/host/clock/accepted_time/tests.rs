//! Tests of accepted time and log time with system clocks that jump, return or are corrected, also across restarts.

use proptest::prelude::*;

use super::*;

const HOUR_NS: i64 = 3600 * SECOND_NS;
const DAY_NS: i64 = 24 * HOUR_NS;
const YEAR_NS: i64 = 365 * DAY_NS;
/// True time at the start of each test: midnight of 2026-11-23, in nanoseconds since 1970.
const T: i64 = 1_795_392_000 * SECOND_NS;

/// A host whose clocks a test sets.
struct Host {
    time: AcceptedTime,
    elapsed_ns: i64,
    /// System clock minus the true time, in nanoseconds.
    wrong_ns: i64,
    is_synchronized: bool,
    changes: Vec<Change>,
}

impl Host {
    /// Returns a host that starts with a log whose last entry has the time `log_ns`, and without a stored accepted
    /// time.
    fn started(log_ns: Option<i64>) -> Self {
        Self::started_with(log_ns.map(|log_ns| Stored { log_ns, accepted_ns: None }), 0)
    }

    fn started_with(stored: Option<Stored>, wrong_ns: i64) -> Self {
        let reading = Reading { system_ns: T + wrong_ns, elapsed_ns: 0, is_synchronized: false };
        let time = AcceptedTime::start(stored, reading, DAY_NS);
        let mut host = Self { time, elapsed_ns: 0, wrong_ns, is_synchronized: false, changes: Vec::new() };
        host.pass(0);
        host
    }

    /// Restarts the process at once, with the times that the ended process has stored.
    fn restart(&mut self) {
        let stored = Stored { log_ns: self.time.log_ns(), accepted_ns: Some(self.time.limit_ns()) };
        let system_ns = T + self.elapsed_ns + self.wrong_ns;
        let reading = Reading { system_ns, elapsed_ns: self.elapsed_ns, is_synchronized: false };
        self.time = AcceptedTime::start(Some(stored), reading, DAY_NS);
        self.pass(0);
    }

    /// Confirms the system clock, as an operator does.
    fn accept(&mut self) {
        self.time.accept(T + self.elapsed_ns + self.wrong_ns);
    }

    /// Lets `ns` nanoseconds pass, and reads the clocks every minute.
    fn pass(&mut self, ns: i64) {
        let end_ns = self.elapsed_ns + ns;
        loop {
            self.elapsed_ns = (self.elapsed_ns + 60 * SECOND_NS).min(end_ns);
            let system_ns = T + self.elapsed_ns + self.wrong_ns;
            let reading = Reading { system_ns, elapsed_ns: self.elapsed_ns, is_synchronized: self.is_synchronized };
            self.changes.extend(self.time.read(reading));
            if self.elapsed_ns == end_ns {
                return;
            }
        }
    }

    /// Returns the accepted time and the log time, each minus the true time, in nanoseconds.
    fn off(&self) -> (i64, i64) {
        (self.time.now_ns() - T - self.elapsed_ns, self.time.log_ns() - T - self.elapsed_ns)
    }
}

#[test]
fn a_year_ahead_for_a_minute_changes_nothing_and_is_reported_once() {
    let mut host = Host::started(None);
    host.pass(HOUR_NS);
    host.wrong_ns = YEAR_NS;
    host.pass(60 * SECOND_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Ahead));
    host.pass(HOUR_NS);
    assert_eq!(host.time.jump_ns(), YEAR_NS);
    host.wrong_ns = 0;
    host.pass(60 * SECOND_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
    assert_eq!(host.changes, [Change::Jumped, Change::Returned]);
}

#[test]
fn a_year_back_expires_nothing_keeps_log_time_going_and_returns() {
    let mut host = Host::started(None);
    host.wrong_ns = -YEAR_NS;
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((-YEAR_NS, 0), Standing::Behind));
    host.wrong_ns = 0;
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
    assert_eq!(host.changes, [Change::Jumped, Change::Returned]);
}

#[test]
fn a_clock_that_stays_back_for_a_day_is_accepted() {
    let mut host = Host::started(None);
    host.wrong_ns = -YEAR_NS;
    host.pass(DAY_NS + HOUR_NS);
    assert_eq!(
        (host.changes.as_slice(), host.time.standing()),
        ([Change::Jumped, Change::Confirmed].as_slice(), Standing::Agrees)
    );
    assert_eq!(host.off(), (-YEAR_NS, 0), "log time never goes back");
    // From now on, a return to the true time is a jump ahead.
    host.wrong_ns = 0;
    host.pass(HOUR_NS);
    assert_eq!((host.off().0, host.time.standing()), (-YEAR_NS, Standing::Ahead));
}

#[test]
fn corrections_within_the_allowance_are_accepted_at_once() {
    let mut host = Host::started(None);
    for wrong_ns in [HOUR_NS, 3 * HOUR_NS, 2 * HOUR_NS, 5 * HOUR_NS] {
        host.wrong_ns = wrong_ns;
        host.pass(60 * SECOND_NS);
        assert_eq!(host.off().0, wrong_ns);
    }
    assert_eq!(host.changes, []);
}

#[test]
fn many_small_jumps_together_stay_within_the_allowance() {
    let mut host = Host::started(None);
    for _ in 0..1000 {
        host.wrong_ns += HOUR_NS;
        host.pass(60 * SECOND_NS);
    }
    // In these 1000 minutes, accepted time may gain an eighth of 1000 minutes, and the allowance of one day.
    assert!(host.off().0 <= DAY_NS + 125 * 60 * SECOND_NS, "{}", host.off().0 / HOUR_NS);
    assert_eq!(host.changes, [Change::Jumped].repeat(host.changes.len()));
}

#[test]
fn log_time_slows_to_meet_a_clock_that_was_set_back_a_little() {
    let mut host = Host::started(None);
    host.wrong_ns = -HOUR_NS;
    host.pass(4 * HOUR_NS);
    assert_eq!(host.off(), (-HOUR_NS, -HOUR_NS / 2), "an eighth slower");
    host.pass(4 * HOUR_NS);
    assert_eq!(host.off(), (-HOUR_NS, -HOUR_NS));
}

#[test]
fn a_gap_within_the_allowance_is_accepted_at_a_start() {
    let host = Host::started(Some(T - 20 * HOUR_NS));
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
}

#[test]
fn a_month_later_time_continues_from_the_log_until_it_is_accepted() {
    let mut host = Host::started(Some(T - 30 * DAY_NS));
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((-30 * DAY_NS, -30 * DAY_NS), Standing::Ahead));
    host.accept();
    host.pass(0);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.changes.as_slice()), ((0, 0), [Change::Jumped].as_slice()));
}

/// The log of this store is a year ahead, because the system clock was once a year ahead. Its accepted time is right
/// again.
#[test]
fn log_time_ahead_does_not_lift_the_limit_at_a_restart() {
    for wrong_ns in [0, 200 * DAY_NS] {
        let stored = Stored { log_ns: T + YEAR_NS, accepted_ns: Some(T) };
        let mut host = Host::started_with(Some(stored), wrong_ns);
        host.pass(HOUR_NS);
        host.wrong_ns = 200 * DAY_NS;
        host.pass(HOUR_NS);
        assert_eq!((host.off(), host.time.standing()), ((0, YEAR_NS), Standing::Ahead));
    }
}

#[test]
fn without_a_stored_time_a_log_ahead_of_the_clock_limits_nothing() {
    let mut host = Host::started(Some(T + YEAR_NS));
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, YEAR_NS), Standing::Agrees));
    host.wrong_ns = 200 * DAY_NS;
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, YEAR_NS), Standing::Ahead));
}

#[test]
fn a_clock_of_1970_at_boot_returns_without_a_confirmation() {
    let stored = Stored { log_ns: T, accepted_ns: Some(T - HOUR_NS) };
    let mut host = Host::started_with(Some(stored), -T);
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((-T, 0), Standing::Behind));
    // A time server corrects the clock. The host was off for some hours.
    host.wrong_ns = 10 * HOUR_NS;
    host.pass(60 * SECOND_NS);
    assert_eq!((host.off(), host.time.standing()), ((10 * HOUR_NS, 10 * HOUR_NS), Standing::Agrees));
}

#[test]
fn an_accepted_jump_back_holds_after_a_restart() {
    let mut host = Host::started(None);
    host.wrong_ns = -YEAR_NS;
    host.pass(HOUR_NS);
    assert_eq!(host.time.standing(), Standing::Behind);
    host.accept();
    host.restart();
    assert_eq!((host.off().0, host.time.standing()), (-YEAR_NS, Standing::Agrees));
    host.wrong_ns = 0;
    host.pass(HOUR_NS);
    assert_eq!((host.off().0, host.time.standing()), (-YEAR_NS, Standing::Ahead));
}

#[test]
fn a_clock_that_is_behind_stays_behind_after_a_restart() {
    let mut host = Host::started(None);
    host.wrong_ns = -YEAR_NS;
    host.pass(HOUR_NS);
    host.restart();
    assert_eq!((host.off(), host.time.standing()), ((-YEAR_NS, 0), Standing::Behind));
    host.wrong_ns = 0;
    host.pass(HOUR_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
}

#[test]
fn a_synchronized_clock_confirms_a_jump_after_ten_minutes() {
    let mut host = Host::started(Some(T - 30 * DAY_NS));
    host.is_synchronized = true;
    host.pass(SYNCHRONIZED_NS);
    assert_eq!(host.time.standing(), Standing::Ahead);
    host.pass(120 * SECOND_NS);
    assert_eq!((host.off(), host.time.standing()), ((0, 0), Standing::Agrees));
    assert_eq!(host.changes, [Change::Jumped, Change::Confirmed]);
}

#[test]
fn another_jump_restarts_the_ten_minutes() {
    let mut host = Host::started(Some(T - 30 * DAY_NS));
    host.is_synchronized = true;
    for _ in 0..10 {
        host.pass(SYNCHRONIZED_NS - 120 * SECOND_NS);
        host.wrong_ns += DAY_NS;
        assert_eq!(host.time.standing(), Standing::Ahead);
    }
}

#[test]
fn entries_of_another_leader_raise_log_time_and_not_accepted_time() {
    let mut host = Host::started(None);
    host.time.raise_log(T + YEAR_NS);
    host.pass(HOUR_NS);
    assert_eq!(host.off(), (0, YEAR_NS));
}

#[test]
fn no_jump_makes_data_being_written_drop_for_its_size() {
    for (wrong_ns, written_ns, want_ns) in [
        // The clock is wrong, and samples have the right time.
        (YEAR_NS, Some(0), 0),
        (-YEAR_NS, Some(0), 0),
        // The clock is right and the limit was wrong: samples agree with the clock.
        (YEAR_NS, Some(YEAR_NS), YEAR_NS),
        (-YEAR_NS, Some(-YEAR_NS), -YEAR_NS),
        // Only old samples arrive, or only samples of the far future, or none.
        (YEAR_NS, Some(-5 * YEAR_NS), 0),
        (YEAR_NS, Some(5 * YEAR_NS), YEAR_NS),
        (YEAR_NS, None, 0),
        (-YEAR_NS, None, -YEAR_NS),
        (0, Some(10 * SECOND_NS), 0),
    ] {
        let mut host = Host::started(None);
        host.wrong_ns = wrong_ns;
        host.pass(0);
        let before_ns = host.time.written_before_ns(written_ns.map(|ns| T + ns));
        assert_eq!(before_ns - T, want_ns, "{wrong_ns} {written_ns:?}");
    }
}

#[test]
fn no_reading_overflows() {
    let extremes = [i64::MIN, 0, i64::MAX];
    let stored = extremes.map(|log_ns| extremes.map(|accepted_ns| Stored { log_ns, accepted_ns: Some(accepted_ns) }));
    for stored in stored.into_iter().flatten().map(Some).chain([None]) {
        let mut host = Host::started_with(stored, 0);
        for system_ns in [i64::MIN, i64::MAX, 0, i64::MAX, i64::MIN] {
            for elapsed_ns in [i64::MAX, 0, i64::MIN] {
                let _change = host.time.read(Reading { system_ns, elapsed_ns, is_synchronized: true });
                let _jump = host.time.jump_ns();
                host.time.accept(system_ns);
            }
        }
    }
}

/// Generates the elapsed time and the jump of the system clock between two readings, in nanoseconds.
fn step() -> impl Strategy<Value = (i64, i64)> {
    let jump = prop_oneof![
        4 => Just(0),
        3 => -10 * SECOND_NS..10 * SECOND_NS,
        2 => -2 * DAY_NS..2 * DAY_NS,
        1 => -3 * YEAR_NS..3 * YEAR_NS,
    ];
    (prop_oneof![0..10 * SECOND_NS, 0..3 * DAY_NS], jump)
}

proptest! {
    #[test]
    fn time_gains_at_most_the_allowance_and_log_time_never_goes_back(
        steps in prop::collection::vec((step(), prop::bool::weighted(0.1)), 1..60),
        log_ns in prop::option::of(T - YEAR_NS..T + YEAR_NS),
    ) {
        let mut host = Host::started(log_ns);
        let mut limits = vec![(0, host.time.limit_ns, 0)];
        let mut log_ns = host.time.log_ns();
        let first_log_ns = log_ns;
        let mut restarts = 0;
        for ((passed_ns, jump_ns), restarts_now) in steps {
            host.wrong_ns += jump_ns;
            host.elapsed_ns += passed_ns;
            if restarts_now {
                restarts += 1;
                host.restart();
            } else {
                host.pass(0);
            }
            let now_ns = host.time.now_ns();
            let limit_ns = host.time.limit_ns;
            prop_assert!(now_ns <= limit_ns && now_ns <= T + host.elapsed_ns + host.wrong_ns);
            limits.push((host.elapsed_ns, limit_ns, restarts));
            for &(then_ns, limit_then_ns, restarts_then) in &limits {
                let passed_ns = host.elapsed_ns - then_ns;
                let gained_ns = limit_ns - limit_then_ns;
                // Each start begins with the whole allowance, because the used part is not stored.
                let allowed_ns = passed_ns + passed_ns / RATE + (1 + restarts - restarts_then) * DAY_NS;
                prop_assert!(gained_ns <= allowed_ns, "{gained_ns} ns in {passed_ns}");
            }
            // Log time is at most the first log time or some limit, advanced by the elapsed time.
            let offsets = limits.iter().map(|&(then_ns, limit_ns, _)| limit_ns - then_ns).chain([first_log_ns]);
            let latest_ns = offsets.max().unwrap() + host.elapsed_ns;
            let next_ns = host.time.log_ns();
            prop_assert!(log_ns <= next_ns && now_ns <= next_ns && next_ns <= latest_ns);
            log_ns = next_ns;
        }
    }

    #[test]
    fn a_right_clock_is_accepted_again_within_two_days(
        steps in prop::collection::vec(step(), 1..20),
    ) {
        let mut host = Host::started(None);
        for (passed_ns, jump_ns) in steps {
            host.wrong_ns += jump_ns;
            host.elapsed_ns += passed_ns;
            host.pass(0);
        }
        // From here on the clock is steady. After two days, it is accepted, or it is a jump ahead that nothing has
        // confirmed.
        host.pass(2 * DAY_NS);
        let off_ns = T + host.elapsed_ns + host.wrong_ns - host.time.now_ns();
        match host.time.standing() {
            Standing::Agrees => prop_assert_eq!(off_ns, 0),
            Standing::Ahead => prop_assert_eq!(off_ns, host.time.jump_ns()),
            Standing::Behind => prop_assert!(false, "still behind after two days"),
        }
        host.accept();
        host.pass(60 * SECOND_NS);
        prop_assert_eq!(host.time.now_ns(), T + host.elapsed_ns + host.wrong_ns);
    }
}
