//! Data that a response is missing, and the warnings about it. A response may lack function names, and times for which
//! only coarser sums are kept.

use std::collections::BTreeSet;

use proto::answer::{DroppedLabel, Missing};
use proto::{Answer, Tier};

use crate::api::time::rfc_3339;
use crate::query::naming::frame::MissingNames;

/// Largest number of missing times that the warnings list, and largest number of files without names. Further times and
/// files are only counted.
const LISTED_MAX: usize = 10;

/// Data that a response is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingData {
    times: Vec<Missing>,
    /// Files whose function names are missing.
    names: BTreeSet<MissingNames>,
}

impl MissingData {
    /// Adds missing times. Joins times of one kind that overlap or touch, because shards may divide them differently.
    pub(crate) fn times<'a>(&mut self, missing: impl IntoIterator<Item = &'a Missing>) {
        self.times.extend(missing);
        let kind = |one: &Missing| (one.finest, one.is_damaged);
        self.times.sort_unstable_by_key(|one| (kind(one), one.window.start_ns, one.window.end_ns));
        self.times.dedup_by(|later, first| {
            let joins = kind(later) == kind(first) && later.window.start_ns <= first.window.end_ns;
            if joins {
                first.window.end_ns = first.window.end_ns.max(later.window.end_ns);
            }
            joins
        });
        self.times.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, kind(one)));
    }

    /// Adds the times that responses of shards are missing.
    pub(crate) fn of_answers<'a>(&mut self, answers: impl IntoIterator<Item = &'a Answer>) {
        self.times(answers.into_iter().flat_map(|answer| &answer.missing));
    }

    /// Adds files whose names are missing.
    pub(crate) fn names(&mut self, names: BTreeSet<MissingNames>) {
        self.names.extend(names);
    }

    /// Adds the data that another response is missing.
    pub(crate) fn extend(&mut self, other: Self) {
        self.times(&other.times);
        self.names(other.names);
    }

    /// Iterates over the files whose symbol tables are being built, in the order of their paths.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &str> {
        let mut before = None;
        let pending = self.names.iter().filter(|names| names.is_pending).map(|names| names.binary.as_str());
        pending.filter(move |binary| before.replace(*binary) != Some(*binary))
    }

    /// Returns one sentence for each missing time and for each file without names. If there are more than
    /// [`LISTED_MAX`] of a kind, one more sentence gives their number.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = time_warnings(&self.times);
        let files = self.names.len();
        if files > LISTED_MAX {
            warnings.push(format!("names are missing in {files} files, {LISTED_MAX} of which are listed"));
        }
        warnings.extend(self.names.iter().take(LISTED_MAX).map(|one| format!("names are missing in {one}")));
        warnings
    }
}

fn time_warnings(missing: &[Missing]) -> Vec<String> {
    let mut warnings = Vec::new();
    if missing.len() > LISTED_MAX {
        warnings.push(format!("data is missing in {} ranges of time, {LISTED_MAX} of which are listed", missing.len()));
    }
    warnings.extend(missing.iter().take(LISTED_MAX).map(time_warning));
    warnings
}

fn time_warning(missing: &Missing) -> String {
    let start = rfc_3339(missing.window.start_ns);
    let end = rfc_3339(missing.window.end_ns);
    let stored = stored(missing.finest);
    if missing.is_damaged {
        return format!(
            "damaged: from {start} to {end}: {stored} cannot be read from disk; `varve admin verify` names them"
        );
    }
    let edge = match missing.finest {
        Tier::Raw => {
            return format!(
                "no data from {start} to {end}: single samples are no longer kept for that time, and sums do not \
                 answer this query"
            );
        }
        Tier::Minute => "minute",
        Tier::Hour => "hour",
        Tier::Day => "day (UTC)",
    };
    format!(
        "no data from {start} to {end}: only {stored} are kept for that time; choose a range that starts and ends on \
         a full {edge}"
    )
}

/// Returns a text that describes the data of a tier.
fn stored(tier: Tier) -> &'static str {
    match tier {
        Tier::Raw => "single samples",
        Tier::Minute => "sums of minutes",
        Tier::Hour => "sums of hours",
        Tier::Day => "sums of days",
    }
}

/// Returns one sentence for each time, file and label that a list is missing.
pub(crate) fn list_warnings(missing: &MissingData, missing_labels: &BTreeSet<DroppedLabel>) -> Vec<String> {
    let warning = |DroppedLabel { tier, name }: &DroppedLabel| {
        let stored = stored(*tier);
        format!("label {name:?} is missing from series of which only {stored} are kept, which do not have it")
    };
    missing.warnings().into_iter().chain(missing_labels.iter().map(warning)).collect()
}

#[cfg(test)]
mod tests {
    use proto::{Tier, Window};

    use super::*;

    #[test]
    fn each_missing_time_is_listed_once_and_many_are_counted() {
        // Times of 2.5 s, with a gap of 1 s after each of them.
        let missing = |number: i64| Missing {
            window: Window { start_ns: number * 3_500_000_000, end_ns: number * 3_500_000_000 + 2_500_000_000 },
            finest: Tier::Hour,
            is_damaged: false,
        };
        let answer =
            |numbers: std::ops::Range<i64>| Answer { missing: numbers.map(missing).collect(), ..Answer::default() };
        let of = |answers: &[Answer]| {
            let mut missing = MissingData::default();
            missing.of_answers(answers);
            missing
        };
        let few = of(&[answer(0..1), answer(0..1)]);
        let expected = "no data from 1970-01-01T00:00:00Z to 1970-01-01T00:00:02.5Z: only sums of hours are kept for \
                        that time; choose a range that starts and ends on a full hour";
        assert_eq!(few.warnings(), [expected]);
        let points = Missing { finest: Tier::Raw, ..missing(0) };
        let points = time_warnings(&[points]);
        assert!(points[0].contains("single samples are no longer kept"), "{points:?}");
        let damaged = time_warnings(&[Missing { is_damaged: true, ..missing(0) }]);
        let expected = "damaged: from 1970-01-01T00:00:00Z to 1970-01-01T00:00:02.5Z: sums of hours cannot be read";
        assert!(damaged[0].starts_with(expected), "{damaged:?}");
        let pod = DroppedLabel { tier: Tier::Hour, name: "pod".to_owned() };
        let list = list_warnings(&few, &BTreeSet::from([pod]));
        assert!(list[1].contains("\"pod\"") && list[1].contains("sums of hours"), "{list:?}");
        let many = of(&[answer(5..12), answer(0..7)]).warnings();
        assert_eq!(many.len(), 11);
        assert_eq!(many[0], "data is missing in 12 ranges of time, 10 of which are listed");
    }

    #[test]
    fn times_that_overlap_or_touch_are_one() {
        let missing =
            |start_ns, end_ns, finest, is_damaged| Missing { window: Window { start_ns, end_ns }, finest, is_damaged };
        let of = |times: &[Missing]| {
            let mut missing = MissingData::default();
            // Each shard reports its own times.
            times.iter().for_each(|one| missing.times([one]));
            missing.times
        };
        let mut times = [
            missing(0, 10, Tier::Hour, false),
            missing(20, 30, Tier::Hour, false),
            missing(5, 12, Tier::Hour, false),
            missing(30, 31, Tier::Hour, false),
            missing(12, 13, Tier::Day, false),
            missing(8, 21, Tier::Hour, true),
        ];
        let expected = [
            missing(0, 12, Tier::Hour, false),
            missing(8, 21, Tier::Hour, true),
            missing(12, 13, Tier::Day, false),
            missing(20, 31, Tier::Hour, false),
        ];
        assert_eq!(of(&times), expected);
        times.reverse();
        assert_eq!(of(&times), expected);
    }

    #[test]
    fn each_file_without_names_is_listed_once_and_many_are_counted() {
        let mut missing = MissingData::default();
        let names =
            |binary: &str, is_pending| MissingNames { binary: binary.to_owned(), text: "why".to_owned(), is_pending };
        for _ in 0..2 {
            missing.names(BTreeSet::from([names("/usr/bin/api", true)]));
        }
        assert_eq!(missing.warnings(), ["names are missing in \"/usr/bin/api\": why"]);
        missing.names((0..20).map(|i| names(&format!("/{i}"), i == 3)).collect());
        assert_eq!(missing.pending().collect::<Vec<_>>(), ["/3", "/usr/bin/api"]);
        let warnings = missing.warnings();
        assert_eq!(warnings.len(), 11);
        assert_eq!(warnings[0], "names are missing in 21 files, 10 of which are listed");
    }
}
