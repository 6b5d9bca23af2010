//! The node's clock: the only reader of the system's clocks.
//!
//! The clock has two times: `now_ns` for retention; `log_ns` for log entries, and for the decision if a window has
//! ended. A time that changes stored data reaches the shard inside an entry, so that all replicas apply the same time.
//! Neither time follows a jump of the system clock (see [`accepted_time`]).

mod accepted_time;
mod system;

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::config::Retention;
use crate::metrics::{DirectionLabels, Metrics};
use accepted_time::{AcceptedTime, Change, Stored};

pub(crate) use accepted_time::Standing;

/// The allowance is the largest jump of the system clock that retention follows without a confirmation. It is the raw
/// retention divided by this number, within the two bounds below.
const ALLOWANCE_PART: u32 = 8;
const ALLOWANCE_MIN: Duration = Duration::from_secs(600);
const ALLOWANCE_MAX: Duration = Duration::from_secs(86_400);

/// State of the clock for an operator. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReport {
    pub(crate) system_ns: i64,
    pub(crate) accepted_ns: i64,
    pub(crate) log_ns: i64,
    /// System clock minus the time that is expected from the elapsed time, in nanoseconds; 0 if the two agree.
    pub(crate) jump_ns: i64,
    pub(crate) standing: Standing,
    /// Largest jump of the system clock that retention follows without a confirmation, in nanoseconds.
    pub(crate) allowance_ns: i64,
}

/// The clock of all shards of a node.
#[derive(Debug)]
pub(crate) struct Clock {
    allowance_ns: i64,
    metrics: Metrics,
    /// Accepted time and log time; `None` until the clock is started, or read for the first time.
    time: Mutex<Option<AcceptedTime>>,
}

impl Clock {
    pub(crate) fn new(retention: Retention, metrics: Metrics) -> Self {
        let allowance = (retention.raw / ALLOWANCE_PART).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX);
        let allowance_ns = i64::try_from(allowance.as_nanos()).unwrap_or(i64::MAX);
        Self { allowance_ns, metrics, time: Mutex::new(None) }
    }

    /// Starts the clock with two times in nanoseconds since 1970: the time of the last entry in a shard's log, and the
    /// limit of accepted time that this node stored last. If the clock already runs, because another shard has started
    /// it, only raises its log time to `last_entry_ns`.
    ///
    /// `last_entry_ns` is 0 if the shard's log has no entries. The limit is then the reference, because other shards
    /// may have data. Without a limit, the system clock is the only reference: a limit is stored as soon as any shard
    /// has data that could expire.
    pub(crate) fn start(&self, last_entry_ns: i64, accepted_ns: Option<i64>) {
        let log_ns = if last_entry_ns > 0 { Some(last_entry_ns) } else { accepted_ns };
        let stored = log_ns.map(|log_ns| Stored { log_ns, accepted_ns });
        let mut time = self.time.lock();
        match &mut *time {
            Some(time) => time.raise_log(last_entry_ns),
            None => *time = Some(AcceptedTime::start(stored, system::read(false), self.allowance_ns)),
        }
    }

    /// Returns the accepted time, and the limit of accepted time that must be stored before retention uses the accepted
    /// time. Both are in nanoseconds since 1970. The limit is `None` if `stored_ns`, the limit stored last, is close
    /// enough.
    pub(crate) fn now_and_to_store_ns(&self, stored_ns: Option<i64>) -> (i64, Option<i64>) {
        let time = self.read();
        let limit_ns = time.limit_ns();
        let is_due = |stored_ns: i64| limit_ns.saturating_sub(stored_ns).saturating_abs() >= self.allowance_ns / 24;
        (time.now_ns(), stored_ns.is_none_or(is_due).then_some(limit_ns))
    }

    /// Returns the present time of retention (accepted time), in nanoseconds since 1970. This time may go back.
    pub(crate) fn now_ns(&self) -> i64 {
        self.read().now_ns()
    }

    /// Returns the time of an entry that is proposed now, in nanoseconds since 1970. This time never goes back.
    pub(crate) fn log_ns(&self) -> i64 {
        self.read().log_ns()
    }

    /// Returns the time, in nanoseconds since 1970, before which data may be dropped to stay below the cap on disk use.
    ///
    /// If the system clock and the elapsed time disagree, the newest written time decides between them. A wrong clock
    /// must not cause a drop of data that is being written, nor prevent the drop of older data.
    pub(crate) fn written_before_ns(&self, newest_written_ns: Option<i64>) -> i64 {
        self.read().written_before_ns(newest_written_ns)
    }

    pub(crate) fn report(&self) -> ClockReport {
        let time = self.read();
        ClockReport {
            system_ns: time.system_ns(),
            accepted_ns: time.now_ns(),
            log_ns: time.log_ns(),
            jump_ns: time.jump_ns(),
            standing: time.standing(),
            allowance_ns: self.allowance_ns,
        }
    }

    /// Sets accepted time to `system_ns`, a time of the system clock that an operator has confirmed.
    pub(crate) fn accept(&self, system_ns: i64) {
        let mut time = self.read();
        let jump_ns = time.jump_ns();
        time.accept(system_ns);
        self.metrics.clock_jump_seconds.set(0);
        tracing::info!(jump_seconds = seconds(jump_ns), "the system clock was accepted by an operator");
    }

    /// Reads the system's clocks, updates accepted time, and returns it locked.
    fn read(&self) -> MappedMutexGuard<'_, AcceptedTime> {
        // Before [`Clock::start`], the clock uses the system clock alone. Nothing is proposed or appended then.
        let start = || AcceptedTime::start(None, system::read(false), self.allowance_ns);
        let mut time = MutexGuard::map(self.time.lock(), |time| time.get_or_insert_with(start));
        let has_jumped = time.standing() != Standing::Agrees;
        let change = time.read(system::read(has_jumped));
        if change.is_some() || has_jumped {
            self.metrics.clock_jump_seconds.set(seconds(time.jump_ns()));
        }
        if let Some(change) = change {
            self.log(change, &time);
        }
        time
    }

    fn log(&self, change: Change, time: &AcceptedTime) {
        let jump_seconds = seconds(time.jump_ns());
        let standing = time.standing();
        match (change, standing) {
            (Change::Jumped, Standing::Behind) => tracing::warn!(
                jump_seconds,
                "the system clock went back: no data expires until it passes the last accepted time, or has been back \
                 for a day"
            ),
            (Change::Jumped, _) => tracing::warn!(
                jump_seconds,
                "the system clock jumped ahead of the elapsed time: retention does not follow it; if the system clock \
                 is right, run `varve admin clock --accept`"
            ),
            (Change::Returned, _) => {
                tracing::info!("the system clock agrees with the elapsed time again")
            }
            (Change::Confirmed, _) => tracing::info!(
                "the jump of the system clock is accepted: a time server keeps the clock, or it was set back a day ago"
            ),
        }
        if change == Change::Jumped {
            let labels = DirectionLabels { direction: standing.name() };
            self.metrics.clock_jumps.get_or_create(&labels).inc();
        }
    }
}

/// Converts nanoseconds to seconds, rounded to the nearest second.
fn seconds(ns: i64) -> i64 {
    ns.saturating_add(ns.signum() * 500_000_000) / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_shard_without_entries_continues_from_the_limit_that_the_node_stored() {
        let day = Duration::from_secs(86_400);
        let retention = Retention { raw: day, minutes: day, hours: day, days: day };
        let clock = |last_entry_ns, accepted_ns| {
            let clock = Clock::new(retention, Metrics::register(&mut Registry::default()));
            clock.start(last_entry_ns, accepted_ns);
            clock
        };
        const MINUTE_NS: i64 = 60_000_000_000;
        // The stored limit is of 1970, so the system clock is decades ahead of it.
        let behind = clock(0, Some(1));
        assert!(behind.now_ns() < MINUTE_NS && behind.log_ns() < MINUTE_NS);
        behind.start(100 * MINUTE_NS, Some(1));
        assert!(behind.now_ns() < MINUTE_NS && behind.log_ns() >= 100 * MINUTE_NS, "another shard has later entries");
        let new = clock(0, None);
        assert_eq!(new.report().standing.name(), "agrees", "a new node trusts the system clock");
        assert!(new.now_ns() > MINUTE_NS);
    }
}
