//! The node's clock: the only reader of the system's clocks.
//!
//! It has two times: `now_ns` for retention, and `log_ns` for entries of the log and for ends of windows. A time that
//! changes stored data reaches the shard inside an entry, so that all replicas apply the same time. Neither time
//! follows a jump of the system clock (see [`accepted_time`]).

mod accepted_time;
mod system;

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::config::Retention;
use crate::metrics::{DirectionLabels, Metrics};
use accepted_time::{AcceptedTime, Change, Stored};

pub(crate) use accepted_time::Standing;

/// The allowance for a wrong system clock is the raw retention divided by this, within the bounds below.
const ALLOWANCE_PART: u32 = 8;
const ALLOWANCE_MIN: Duration = Duration::from_secs(600);
const ALLOWANCE_MAX: Duration = Duration::from_secs(86_400);

/// State of the clock for an operator. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReport {
    pub(crate) system_ns: i64,
    pub(crate) accepted_ns: i64,
    pub(crate) log_ns: i64,
    /// System clock minus the expected time; 0 if they agree.
    pub(crate) jump_ns: i64,
    pub(crate) standing: Standing,
    /// The largest jump that is accepted without a confirmation.
    pub(crate) allowance_ns: i64,
}

/// The clock of all shards of a node.
#[derive(Debug)]
pub(crate) struct Clock {
    allowance_ns: i64,
    metrics: Metrics,
    /// `None` until the first replica has applied its log.
    time: Mutex<Option<AcceptedTime>>,
}

impl Clock {
    pub(crate) fn new(retention: Retention, metrics: Metrics) -> Self {
        let allowance = (retention.raw / ALLOWANCE_PART).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX);
        let allowance_ns = i64::try_from(allowance.as_nanos()).unwrap_or(i64::MAX);
        Self { allowance_ns, metrics, time: Mutex::new(None) }
    }

    /// Starts the clock with the time of the last entry in a log and the last stored accepted time of this node,
    /// nanoseconds since 1970. In a running clock it raises the log time.
    ///
    /// 0 means that the log has no entries. The system clock is then the only reference, and no data could expire.
    pub(crate) fn start(&self, last_entry_ns: i64, accepted_ns: Option<i64>) {
        let stored = (last_entry_ns > 0).then_some(Stored { log_ns: last_entry_ns, accepted_ns });
        let mut time = self.time.lock();
        match &mut *time {
            Some(time) => time.raise_log(last_entry_ns),
            None => *time = Some(AcceptedTime::start(stored, system::read(false), self.allowance_ns)),
        }
    }

    /// Returns the accepted time to store for the next start, in nanoseconds since 1970; `None` if `stored_ns` is close
    /// enough.
    pub(crate) fn to_store(&self, stored_ns: Option<i64>) -> Option<i64> {
        let limit_ns = self.read().limit_ns();
        let is_due = |stored_ns: i64| limit_ns.saturating_sub(stored_ns).saturating_abs() >= self.allowance_ns / 24;
        stored_ns.is_none_or(is_due).then_some(limit_ns)
    }

    /// The "now" of retention, nanoseconds since 1970. It may go back.
    pub(crate) fn now_ns(&self) -> i64 {
        self.read().now_ns()
    }

    /// The time of an entry that is proposed now, nanoseconds since 1970. It never goes back.
    pub(crate) fn log_ns(&self) -> i64 {
        self.read().log_ns()
    }

    /// The time before which data may be dropped for its size, nanoseconds since 1970.
    ///
    /// If the system clock and the elapsed time disagree, the newest written time decides: a wrong clock must
    /// neither drop data that is being written nor keep all older data.
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

    /// Accepts a time of the system clock, nanoseconds since 1970, because an operator confirms it.
    pub(crate) fn accept(&self, system_ns: i64) {
        let mut time = self.read();
        let jump_ns = time.jump_ns();
        time.accept(system_ns);
        self.metrics.clock_jump_seconds.set(0);
        tracing::info!(jump_seconds = seconds(jump_ns), "the system clock was accepted by an operator");
    }

    /// Accepted time as of this moment.
    fn read(&self) -> MappedMutexGuard<'_, AcceptedTime> {
        // Nothing is proposed or appended before the start.
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

/// Whole seconds, rounded.
fn seconds(ns: i64) -> i64 {
    ns.saturating_add(ns.signum() * 500_000_000) / 1_000_000_000
}
