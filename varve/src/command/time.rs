//! A time on the command line, in the formats of the HTTP API.

use std::fmt;

use router::api::time::{TimeError, now_ns, parse_time, rfc_3339};

const NS_PER_MS: i64 = 1_000_000;

/// A time in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) i64);

impl Time {
    /// Returns the present time, rounded to milliseconds for display.
    pub(crate) fn now() -> Self {
        Self(now_ns() / NS_PER_MS * NS_PER_MS)
    }

    /// Parses a time. The text `now` is the time of the call.
    pub(crate) fn parse(text: &str) -> Result<Self, TimeError> {
        parse_time(text, Self::now().0).map(Self)
    }

    /// Returns the time that is `duration` later; `None` if it is after the year 2262.
    pub(crate) fn after(self, duration: std::time::Duration) -> Option<Self> {
        self.0.checked_add(i64::try_from(duration.as_nanos()).ok()?).map(Self)
    }

    /// Returns the time that is `duration` earlier, but not before 1970.
    pub(crate) fn before(self, duration: std::time::Duration) -> Self {
        let duration_ns = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(duration_ns).max(0))
    }
}

/// Formats the time as RFC 3339, to the nanosecond.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rfc_3339(self.0))
    }
}
