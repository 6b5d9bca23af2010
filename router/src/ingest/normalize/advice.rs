//! Warnings about profiles that are valid but may not mean what their sender expects. Nothing is refused.

use super::builder::Builder;

/// Profiles that one warning may be about: those of a pprof, or one of an OTLP request.
#[derive(Debug)]
pub(super) struct Subject<'k> {
    /// Sample types that have values other than 0.
    pub(super) kinds: Vec<&'k str>,
    /// In nanoseconds.
    pub(super) duration: u64,
    /// Advice on how to name mutex and block profiles; `None` if the sender has named them.
    pub(super) naming: Option<&'static str>,
}

impl Subject<'_> {
    /// Warns of profiles without a name, and of totals that would be added again with each push.
    pub(super) fn warn(&self, builder: &mut Builder) {
        let kinds =
            |are: fn(&str) -> bool| -> Vec<&str> { self.kinds.iter().copied().filter(|kind| are(kind)).collect() };
        let contention = kinds(is_contention);
        // Go writes both with the same sample types, period type and default, and without a comment.
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

/// Returns whether a sample type is one of Go's mutex and block profiles.
fn is_contention(kind: &str) -> bool {
    matches!(kind, "contentions" | "delay")
}

/// Returns whether a sample type is a total of Go's heap and allocs profiles.
fn is_allocation(kind: &str) -> bool {
    matches!(kind, "alloc_objects" | "alloc_space")
}
