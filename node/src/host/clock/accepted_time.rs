//! Accepted time: the time that retention uses. It follows the system clock, but not every change of it.
//!
//! Retention deletes data for good, and the system clock may be wrong: a dead battery, a bad hypervisor, a typing
//! error. Accepted time follows the system clock only as far as the elapsed time allows.
//! `docs/decisions/0002-clock-jumps.md` has the reasons and the limits.
//!
//! Invariant: without a confirmation, the limit of accepted time advances by at most the elapsed time, an eighth of the
//! elapsed time, and the allowance. Log time never goes back. It is at most the time of the last entry before the
//! start, or some limit of accepted time, advanced by the time elapsed since then.

/// A used allowance grows again by the elapsed time divided by this number. Log time that is ahead of accepted time
/// falls back to it at the same rate.
const RATE: i64 = 8;
const SECOND_NS: i64 = 1_000_000_000;
/// Time, in nanoseconds, for which the kernel must report a synchronized clock before a jump counts as confirmed. It is
/// long enough to notice and undo a mistake.
pub(super) const SYNCHRONIZED_NS: i64 = 600 * SECOND_NS;
/// Time, in nanoseconds, for which the system clock must stay earlier than the limit before the limit is set back to
/// it.
pub(super) const BEHIND_NS: i64 = 86_400 * SECOND_NS;
/// Smallest change of a jump, in nanoseconds, that counts as another jump. Even the readings of one jump differ a
/// little, because the two clocks are not read at the same moment.
const SAME_NS: i64 = SECOND_NS;

/// The system's clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Time of the system clock, in nanoseconds since 1970. It may jump.
    pub(super) system_ns: i64,
    /// Time since the system booted, in nanoseconds, including the time in which it was suspended. It never jumps.
    pub(super) elapsed_ns: i64,
    /// True if the kernel reports that a time server keeps the system clock right.
    pub(super) is_synchronized: bool,
}

/// Times that an earlier process has stored, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    /// Time of the last log entry.
    pub(super) log_ns: i64,
    /// Limit of accepted time; `None` if the process ended before it stored one.
    pub(super) accepted_ns: Option<i64>,
}

/// Result of comparing the system clock with the limit of accepted time. The limit advances with the elapsed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The system clock and the limit differ by at most the allowance.
    Agrees,
    /// The system clock is later than the limit by more than the remaining allowance, and the jump is not confirmed.
    Ahead,
    /// The system clock is earlier than the limit by more than the allowance.
    Behind,
}

impl Standing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Ahead => "ahead",
            Self::Behind => "behind",
        }
    }
}

/// Change of the [`Standing`] that a reading of the clocks causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The system clock jumped, in the direction that the new standing names.
    Jumped,
    /// The system clock agrees with the elapsed time again.
    Returned,
    /// A time server confirmed the jump, or the system clock was earlier than the limit for a whole day.
    Confirmed,
}

/// The two times of one node: accepted time, which retention takes as the present, and log time, which entries get.
#[derive(Clone, Debug)]
pub(super) struct AcceptedTime {
    /// Largest jump of the system clock that accepted time follows without a confirmation, in nanoseconds.
    allowance_ns: i64,
    /// Part of the allowance that is not used up, in nanoseconds. It grows again with the elapsed time.
    left_ns: i64,
    /// Limit of accepted time: the last time of the system clock that was followed, plus the time elapsed since then.
    limit_ns: i64,
    /// Time of the next log entry. It never goes back.
    log_ns: i64,
    /// Time of the system clock at the last reading.
    system_ns: i64,
    elapsed_ns: i64,
    standing: Standing,
    /// System clock minus the limit at the last reading, in nanoseconds.
    jump_ns: i64,
    /// `elapsed_ns` of the first reading, after the present jump, in which the clock is synchronized. `None` if there
    /// is no jump, or if the clock is not synchronized.
    synchronized_since_ns: Option<i64>,
    /// `elapsed_ns` of the reading at which the system clock became earlier than the limit; `None` if it is not
    /// earlier.
    behind_since_ns: Option<i64>,
}

impl AcceptedTime {
    /// Starts accepted time and log time from the times that an earlier process has stored, or from the system clock if
    /// no times are stored.
    pub(super) fn start(stored: Option<Stored>, reading: Reading, allowance_ns: i64) -> Self {
        let stored = stored.unwrap_or(Stored { log_ns: reading.system_ns, accepted_ns: None });
        // The log alone does not limit accepted time, because log time may come from a wrong clock and never goes back.
        let limit_ns = stored.accepted_ns.unwrap_or(stored.log_ns.min(reading.system_ns));
        Self {
            allowance_ns,
            left_ns: allowance_ns,
            limit_ns,
            log_ns: stored.log_ns,
            system_ns: limit_ns,
            elapsed_ns: reading.elapsed_ns,
            standing: Standing::Agrees,
            jump_ns: 0,
            synchronized_since_ns: None,
            behind_since_ns: None,
        }
    }

    /// Returns accepted time, in nanoseconds since 1970: the present time of retention. It goes back with the system
    /// clock, because an earlier time expires nothing.
    pub(super) fn now_ns(&self) -> i64 {
        self.system_ns.min(self.limit_ns)
    }

    /// Time of the next log entry, in nanoseconds since 1970.
    pub(super) fn log_ns(&self) -> i64 {
        self.log_ns
    }

    /// Returns the limit of accepted time, to be stored for the next start, in nanoseconds since 1970. Unlike accepted
    /// time, the limit does not go back with the system clock.
    pub(super) fn limit_ns(&self) -> i64 {
        self.limit_ns
    }

    /// Returns the time before which nothing is being written any more, in nanoseconds since 1970. It is the time
    /// between the system clock and the limit that is nearest to the newest written time. If there is no newest written
    /// time, it is the earlier of system clock and limit.
    pub(super) fn written_before_ns(&self, newest_written_ns: Option<i64>) -> i64 {
        let earlier_ns = self.system_ns.min(self.limit_ns);
        let later_ns = self.system_ns.max(self.limit_ns);
        newest_written_ns.map_or(earlier_ns, |newest_ns| newest_ns.clamp(earlier_ns, later_ns))
    }

    /// Time of the system clock at the last reading.
    pub(super) fn system_ns(&self) -> i64 {
        self.system_ns
    }

    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns the system clock minus the limit, in nanoseconds; 0 if the two agree.
    pub(super) fn jump_ns(&self) -> i64 {
        if self.standing == Standing::Agrees { 0 } else { self.system_ns.saturating_sub(self.limit_ns) }
    }

    /// Raises the log time to `entry_ns`, the time of a log entry, unless it is already later.
    pub(super) fn raise_log(&mut self, entry_ns: i64) {
        self.log_ns = self.log_ns.max(entry_ns);
    }

    /// Updates accepted time and log time with a reading of the clocks. Returns the change that this causes, if any.
    pub(super) fn read(&mut self, reading: Reading) -> Option<Change> {
        let passed_ns = reading.elapsed_ns.saturating_sub(self.elapsed_ns).max(0);
        self.elapsed_ns = self.elapsed_ns.saturating_add(passed_ns);
        self.system_ns = reading.system_ns;
        self.limit_ns = self.limit_ns.saturating_add(passed_ns);
        self.left_ns = self.left_ns.saturating_add(passed_ns / RATE).min(self.allowance_ns);
        let change = self.judge(reading.is_synchronized);
        self.log_ns = self.log_after(passed_ns);
        change
    }

    /// Sets the limit to a confirmed time of the system clock, so that accepted time follows the system clock from
    /// there. Log time follows with the next reading.
    pub(super) fn accept(&mut self, system_ns: i64) {
        self.limit_ns = system_ns;
        self.standing = Standing::Agrees;
        self.jump_ns = 0;
        self.synchronized_since_ns = None;
        self.behind_since_ns = None;
    }

    /// Compares the system clock with the limit. Follows the system clock as far as the allowance permits, and accepts
    /// a confirmed jump.
    fn judge(&mut self, is_synchronized: bool) -> Option<Change> {
        let ahead_ns = self.system_ns.saturating_sub(self.limit_ns);
        let before = self.standing;
        self.standing = match ahead_ns {
            _ if ahead_ns > self.left_ns => Standing::Ahead,
            _ if ahead_ns < -self.allowance_ns => Standing::Behind,
            _ => Standing::Agrees,
        };
        self.behind_since_ns = (ahead_ns < 0).then(|| self.behind_since_ns.unwrap_or(self.elapsed_ns));
        if self.standing == Standing::Agrees && ahead_ns > 0 {
            self.left_ns -= ahead_ns;
            self.limit_ns = self.system_ns;
        }
        let is_other = ahead_ns.saturating_sub(self.jump_ns).saturating_abs() >= SAME_NS;
        let may_confirm = is_synchronized && self.standing != Standing::Agrees && !is_other;
        self.synchronized_since_ns = may_confirm.then(|| self.synchronized_since_ns.unwrap_or(self.elapsed_ns));
        self.jump_ns = ahead_ns;
        let lasts = |since_ns: Option<i64>, at_least_ns| {
            since_ns.is_some_and(|since_ns| self.elapsed_ns.saturating_sub(since_ns) >= at_least_ns)
        };
        if lasts(self.synchronized_since_ns, SYNCHRONIZED_NS) || lasts(self.behind_since_ns, BEHIND_NS) {
            self.accept(self.system_ns);
            return (before != Standing::Agrees).then_some(Change::Confirmed);
        }
        match (before, self.standing) {
            (Standing::Agrees, Standing::Agrees) => None,
            (_, Standing::Agrees) => Some(Change::Returned),
            (before, standing) if before != standing || is_other => Some(Change::Jumped),
            _ => None,
        }
    }

    /// Returns the log time that is `passed_ns` later. If accepted time is later, log time follows it. If log time is
    /// later by at most the allowance, log time advances more slowly until accepted time reaches it. If log time is
    /// later by more than the allowance, it advances by `passed_ns`.
    fn log_after(&self, passed_ns: i64) -> i64 {
        let full_ns = self.log_ns.saturating_add(passed_ns);
        let over_ns = full_ns.saturating_sub(self.now_ns());
        match over_ns {
            ..=0 => self.now_ns(),
            _ if over_ns <= self.allowance_ns => full_ns - over_ns.min(passed_ns / RATE),
            _ => full_ns,
        }
    }
}

#[cfg(test)]
mod tests;
