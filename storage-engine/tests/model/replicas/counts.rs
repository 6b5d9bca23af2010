//! Counts of the entries, outcomes and upkeep that a test run has generated.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use storage_engine::Outcome;

/// Everything that must occur in a test run.
const KINDS: [&str; 40] = [
    "append",
    "append in another class",
    "append of another tenant",
    "append of early samples",
    "append of late samples",
    "append with unused definitions",
    "append without definitions",
    "append without known definitions",
    "applied",
    "clean-up of idle dictionaries",
    "compaction",
    "comparison",
    "crash",
    "dangling",
    "delete by attribute",
    "delete by labels",
    "deleted nothing",
    "deleted samples",
    "deleted sums",
    "drop labels",
    "duplicate",
    "entry at a later time",
    "entry of consensus",
    "expire days",
    "expire hours",
    "expire minutes",
    "expire raw",
    "flush",
    "membership",
    "partial",
    "query of expired data",
    "query that only some refuse",
    "query with different missing times",
    "query with sums",
    "reclaim",
    "restart",
    "retry",
    "snapshot",
    "time without entries",
    "undecidable",
];

/// Those of [`KINDS`] that may be missing: a few in a thousand cases have them.
const RARE: [&str; 2] = ["query that only some refuse", "query with different missing times"];

/// Number of times that each of [`KINDS`] occurred.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<BTreeMap<&'static str, u64>>);

impl Counts {
    pub(super) fn add(&self, kind: &'static str) {
        *self.0.lock().entry(kind).or_default() += 1;
    }

    pub(super) fn add_if(&self, is_so: bool, kind: &'static str) {
        if is_so {
            self.add(kind);
        }
    }

    pub(super) fn add_outcome(&self, outcome: Outcome) {
        self.add(match outcome {
            Outcome::Applied => "applied",
            Outcome::Partial { .. } => "partial",
            Outcome::Duplicate => "duplicate",
            Outcome::Deleted { samples: 0, windows: 0 } => "deleted nothing",
            Outcome::Deleted { windows: 0, .. } => "deleted samples",
            Outcome::Deleted { .. } => "deleted sums",
            Outcome::Undecidable { .. } => "undecidable",
            Outcome::Dangling => "dangling",
        });
    }

    /// Prints all counts. Fails if there were many cases, and something never occurred.
    pub(super) fn check(self, has_many_cases: bool) {
        let counts = self.0.into_inner();
        counts.iter().for_each(|(kind, count)| println!("{count:>8} {kind}"));
        let missing: Vec<_> =
            KINDS.into_iter().filter(|kind| !RARE.contains(kind) && !counts.contains_key(kind)).collect();
        assert!(missing.is_empty() || !has_many_cases, "these never occurred: {missing:?}");
        let unknown: Vec<_> = counts.keys().filter(|kind| !KINDS.contains(kind)).collect();
        assert_eq!(unknown, Vec::<&&str>::new(), "these are not in the list");
    }
}
