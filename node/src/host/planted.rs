//! Faults that show that the tests detect them. Without the feature `planted-faults`, only a unit test can have one,
//! and the compiler removes their code from programs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Returns true if the environment variable `VARVE_PLANTED` has this value.
pub(crate) fn is_planted(fault: &str) -> bool {
    cfg!(any(test, feature = "planted-faults")) && std::env::var("VARVE_PLANTED").is_ok_and(|chosen| chosen == fault)
}

/// The fault of a leader that is sure of its lead until a time of the system clock.
const LEASE_BY_CLOCK: &str = "lease-by-clock";
/// Time of the system clock until which the leaders of this node have a lease, in milliseconds since 1970.
static LEASED_UNTIL_MS: AtomicU64 = AtomicU64::new(0);

/// Returns true if a leader serves reads without a majority, because its lease has not ended by the system clock.
pub(crate) fn has_lease_by_clock() -> bool {
    is_planted(LEASE_BY_CLOCK) && system_ms() < LEASED_UNTIL_MS.load(Ordering::Relaxed)
}

/// Begins the lease of a leader whose lead a majority has just confirmed.
pub(crate) fn begin_lease_by_clock(lease: Duration) {
    if is_planted(LEASE_BY_CLOCK) {
        LEASED_UNTIL_MS.store(system_ms() + milliseconds(lease), Ordering::Relaxed);
    }
}

fn system_ms() -> u64 {
    milliseconds(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
