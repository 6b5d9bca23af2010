//! The node's clock: the only reader of the system's clocks.
//!
//! Times that it tells: `now_ns` for retention, on appends and in what is proposed to be dropped, and `log_ns` for entries of the
//! log and for windows that end. Both enter the shard inside entries where they change what is stored, so that every replica
//! applies them alike. Neither follows a jump of the system clock: see [`accepted_time`].

mod accepted_time;
mod system;

use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

use crate::config::Retention;
use crate::metrics::{DirectionLabels, Metrics};
use accepted_time::{AcceptedTime, Change};

pub(crate) use accepted_time::Standing;

/// Part of the raw retention that the system clock may be wrong by, and the bounds of that.
const ALLOWANCE_PART: u32 = 8;
const ALLOWANCE_MIN: Duration = Duration::from_secs(600);
const ALLOWANCE_MAX: Duration = Duration::from_secs(86_400);

/// What an operator is told of the clock. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReport {
    pub(crate) system_ns: i64,
    pub(crate) accepted_ns: i64,
    pub(crate) log_ns: i64,
    /// How far the system clock is ahead of the time that was seen to pass, negative where it is behind; 0 where they agree.
    pub(crate) jump_ns: i64,
    pub(crate) standing: Standing,
    /// How much a jump may be to be accepted by itself.
    pub(crate) allowance_ns: i64,
}

/// One for all shards of a node.
#[derive(Debug)]
pub(crate) struct Clock {
    allowance_ns: i64,
    metrics: Metrics,
    /// None until the first replica has applied its log.
    time: Mutex<Option<AcceptedTime>>,
}

impl Clock {
    pub(crate) fn new(retention: Retention, metrics: Metrics) -> Self {
        let allowance = (retention.raw / ALLOWANCE_PART).clamp(ALLOWANCE_MIN, ALLOWANCE_MAX);
        let allowance_ns = i64::try_from(allowance.as_nanos()).unwrap_or(i64::MAX);
        Self { allowance_ns, metrics, time: Mutex::new(None) }
    }

    /// Starts the clock, with the time of the last entry in a log, nanoseconds since 1970. 0: the log has no entries, so the system
    /// clock is all there is, and there is nothing that it could delete.
    pub(crate) fn start(&self, last_entry_ns: i64) {
        let reference_ns = (last_entry_ns > 0).then_some(last_entry_ns);
        let mut time = self.time.lock();
        match &mut *time {
            Some(time) => time.raise_log(last_entry_ns),
            None => *time = Some(AcceptedTime::start(reference_ns, system::read(false), self.allowance_ns)),
        }
    }

    /// What retention counts from, nanoseconds since 1970. It may go back.
    pub(crate) fn now_ns(&self) -> i64 {
        self.read().now_ns()
    }

    /// The time of an entry that is proposed now, nanoseconds since 1970. It never goes back.
    pub(crate) fn log_ns(&self) -> i64 {
        self.read().log_ns()
    }

    /// The end of what may be dropped for its size, nanoseconds since 1970. Where the system clock and the time that was seen to pass
    /// disagree, what is written decides: a wrong clock must neither drop what is being written nor keep all that is older.
    pub(crate) fn written_before_ns(&self, newest_written_ns: Option<i64>) -> i64 {
        self.read().written_before_ns(newest_written_ns)
    }

    /// How far apart entries may be in time, nanoseconds: the last one is all that a start knows.
    pub(crate) fn entry_interval_ns(&self) -> i64 {
        self.allowance_ns / 4
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

    /// Accepts the system clock as it is: an operator says that it is right.
    pub(crate) fn accept(&self) {
        let mut time = self.read();
        let jump_ns = time.jump_ns();
        time.accept();
        self.metrics.clock_jump_seconds.set(0);
        tracing::info!(jump_seconds = seconds(jump_ns), "the system clock was accepted by an operator");
    }

    /// Accepted time as of this moment.
    fn read(&self) -> MappedMutexGuard<'_, AcceptedTime> {
        // Nothing is proposed or appended before the start.
        let start = || AcceptedTime::start(None, system::read(false), self.allowance_ns);
        let mut time = MutexGuard::map(self.time.lock(), |time| time.get_or_insert_with(start));
        let is_unsettled = time.standing() != Standing::Agrees;
        let change = time.read(system::read(is_unsettled));
        if change.is_some() || is_unsettled {
            self.metrics.clock_jump_seconds.set(seconds(time.jump_ns()));
        }
        if let Some(change) = change {
            self.tell(change, &time);
        }
        time
    }

    fn tell(&self, change: Change, time: &AcceptedTime) {
        let (jump_seconds, standing) = (seconds(time.jump_ns()), time.standing());
        match (change, standing) {
            (Change::Jumped, Standing::Behind) => tracing::warn!(
                jump_seconds,
                "the system clock went back: nothing is dropped for its age until it is past the last accepted time, or has \
                 been back for a day"
            ),
            (Change::Jumped, _) => tracing::warn!(
                jump_seconds,
                "the system clock is ahead of the time that was seen to pass: retention does not follow it; if the system \
                 clock is right, run `varve admin clock --accept`"
            ),
            (Change::Returned, _) => {
                tracing::info!("the system clock agrees with the time that was seen to pass again")
            }
            (Change::Confirmed, _) => tracing::info!(
                "the jump of the system clock is accepted: it is kept by a time server, or was set back a day ago"
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
