//! Warnings about profiles that are valid, but that might not mean what their sender expects. Such profiles are stored.

use super::builder::Builder;

/// The profiles that one warning is about: all profiles of a pprof file, or one profile of an OTLP request.
#[derive(Debug)]
pub(super) struct Subject<'k> {
    /// Sample types with at least one value other than zero.
    pub(super) kinds: Vec<&'k str>,
    /// Duration of the profiles, in nanoseconds.
    pub(super) duration: u64,
    /// Advice on how to name mutex and block profiles; `None` if the sender has named them.
    pub(super) naming: Option<&'static str>,
}

impl Subject<'_> {
    /// Warns of mutex and block profiles without a name, because nothing else distinguishes the two. Also warns of
    /// running totals, which each push would add again.
    pub(super) fn warn(&self, builder: &mut Builder) {
        let kinds =
            |are: fn(&str) -> bool| -> Vec<&str> { self.kinds.iter().copied().filter(|kind| are(kind)).collect() };
        let contention = kinds(is_contention);
        // Go's mutex and block profiles have the same sample types, period type and default sample type, and no
        // comment.
        if let Some(naming) = self.naming.filter(|_| !contention.is_empty()) {
            builder.warn(format!(
                "{}: mutex and block profiles of Go have the same sample types and are added together: {naming}",
                contention.join(", ")
            ));
        }
        let totals = kinds(|kind| is_contention(kind) || is_allocation(kind));
        if !totals.is_empty() && self.duration == 0 {
            builder.warn(format!(
                "{}: the profile has no duration, like Go's totals since the process started; if these are totals, \
                 each push adds all of them again: push /debug/pprof/...?seconds=N, which covers N seconds",
                totals.join(", ")
            ));
        }
    }
}

/// Returns whether a sample type occurs in Go's mutex and block profiles.
fn is_contention(kind: &str) -> bool {
    matches!(kind, "contentions" | "delay")
}

/// Returns whether a sample type is a running total in Go's heap and allocs profiles.
fn is_allocation(kind: &str) -> bool {
    matches!(kind, "alloc_objects" | "alloc_space")
}
