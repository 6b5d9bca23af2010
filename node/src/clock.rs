//! The system clock, read for what is proposed only: the time of an entry, and what is too old to be taken or kept.
//!
//! Both enter the shard inside entries, so that every replica applies them alike.

use std::time::SystemTime;

/// Nanoseconds since 1970; never negative, and never past the year 2262, where an i64 ends.
pub(crate) fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}
