//! Warnings about pprof files that are valid but may not mean what their sender expects. Nothing is refused.

use super::Column;
use crate::ingest::normalize::builder::Builder;

/// Warns of a profile that its file does not name, and of totals that would be added again with each push.
///
/// `name`: of the push, if it gives one.
pub(super) fn warn(columns: &[Column], duration_nanos: i64, name: Option<&str>, builder: &mut Builder) {
    let has_values = |column: &&Column| column.samples.values.iter().any(|&value| value != 0);
    let kinds = |are: fn(&str) -> bool| -> Vec<&str> {
        let kinds = columns.iter().filter(has_values).map(|column| column.profile_type.sample().kind.as_str());
        kinds.filter(|kind| are(kind)).collect()
    };
    let contention = kinds(is_contention);
    // Go writes both with the same sample types, period type and default, and without a comment.
    if !contention.is_empty() && name.is_none_or(str::is_empty) {
        builder.warn(format!(
            "{}: mutex and block profiles of Go have the same sample types and are added together: send \
             name=mutex or name=block",
            contention.join(", ")
        ));
    }
    let totals = kinds(|kind| is_contention(kind) || is_allocation(kind));
    if !totals.is_empty() && duration_nanos == 0 {
        builder.warn(format!(
            "{}: the profile has no duration, like Go's totals since the process started; if these are totals, \
             each push adds all of them again: push /debug/pprof/...?seconds=N, which covers N seconds",
            totals.join(", ")
        ));
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
