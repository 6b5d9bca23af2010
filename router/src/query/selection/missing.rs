//! Data that a response is missing, and its warnings: times of which only coarser windows are kept, and unknown names.

use std::collections::BTreeSet;

use proto::answer::{LeftOutLabel, Missing};
use proto::{Answer, Tier};

use crate::query::naming::frame::MissingNames;

/// Times, and files without names, that warnings list. Further ones are counted.
const LISTED_MAX: usize = 10;

/// Data that a response is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingData {
    times: Vec<Missing>,
    /// Files whose names are missing.
    names: BTreeSet<MissingNames>,
}

impl MissingData {
    /// Adds times.
    pub(crate) fn times<'a>(&mut self, missing: impl IntoIterator<Item = &'a Missing>) {
        self.times.extend(missing);
        self.times.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
        self.times.dedup();
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

    /// The files whose symbol tables are being made, in the order of their paths.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &str> {
        let mut before = None;
        let pending = self.names.iter().filter(|names| names.is_pending).map(|names| names.binary.as_str());
        pending.filter(move |binary| before.replace(*binary) != Some(*binary))
    }

    /// A sentence for each missing time and name.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = time_warnings(&self.times);
        warnings.extend(self.names.iter().take(LISTED_MAX).map(|one| format!("missing: names of {one}")));
        if self.names.len() > LISTED_MAX {
            warnings.push(format!("missing: names of {} more files", self.names.len() - LISTED_MAX));
        }
        warnings
    }
}

fn time_warnings(missing: &[Missing]) -> Vec<String> {
    let warning = |one: &Missing| {
        let start = seconds(one.window.start_ns);
        let end = seconds(one.window.end_ns);
        let tier = one.finest.name();
        if one.is_damaged {
            return format!(
                "damaged: {start} to {end}: values of tier {tier} cannot be read from disk; `varve admin \
                 verify` names them"
            );
        }
        if one.finest == Tier::Raw {
            return format!(
                "missing: {start} to {end}: single samples are no longer kept, and sums do not answer this query"
            );
        }
        format!("missing: {start} to {end}: only whole windows of {tier} are kept; a range on their edges is complete")
    };
    let mut warnings: Vec<String> = missing.iter().take(LISTED_MAX).map(warning).collect();
    if missing.len() > LISTED_MAX {
        warnings.push(format!("missing: {} more times", missing.len() - LISTED_MAX));
    }
    warnings
}

/// A sentence for each time, name and label that a list is missing.
pub(crate) fn list_warnings(missing: &MissingData, missing_labels: &BTreeSet<LeftOutLabel>) -> Vec<String> {
    let warning = |LeftOutLabel { tier, name }: &LeftOutLabel| {
        let tier = tier.name();
        format!("missing: label {name:?} of series that are kept only in windows of {tier}, which do not have it")
    };
    missing.warnings().into_iter().chain(missing_labels.iter().map(warning)).collect()
}

fn seconds(time_ns: i64) -> String {
    let seconds = time_ns.div_euclid(1_000_000_000);
    let rest = time_ns.rem_euclid(1_000_000_000);
    if rest == 0 { seconds.to_string() } else { format!("{seconds}.{rest:09}") }
}

#[cfg(test)]
mod tests {
    use proto::{Tier, Window};

    use super::*;

    #[test]
    fn each_missing_time_is_listed_once_and_many_are_counted() {
        let missing = |start_ns| Missing {
            window: Window { start_ns, end_ns: 2_500_000_000 },
            finest: Tier::Hour,
            is_damaged: false,
        };
        let answer =
            |starts: std::ops::Range<i64>| Answer { missing: starts.map(missing).collect(), ..Answer::default() };
        let of = |answers: &[Answer]| {
            let mut missing = MissingData::default();
            missing.of_answers(answers);
            missing
        };
        let few = of(&[answer(0..1), answer(0..1)]);
        assert_eq!(
            few.warnings(),
            ["missing: 0 to 2.500000000: only whole windows of 1h are kept; a range on their edges is complete"]
        );
        let points = Missing { finest: Tier::Raw, ..missing(0) };
        let points = time_warnings(&[points]);
        assert!(points[0].contains("single samples"), "{points:?}");
        let damaged = time_warnings(&[Missing { is_damaged: true, ..missing(0) }]);
        assert!(damaged[0].starts_with("damaged: 0 to 2.500000000: values of tier 1h"), "{damaged:?}");
        let pod = LeftOutLabel { tier: Tier::Hour, name: "pod".to_owned() };
        let list = list_warnings(&few, &BTreeSet::from([pod]));
        assert!(list[1].contains("\"pod\"") && list[1].contains("1h"), "{list:?}");
        let many = of(&[answer(5..12), answer(0..7)]).warnings();
        assert_eq!((many.len(), many[10].as_str()), (11, "missing: 2 more times"));
    }

    #[test]
    fn each_file_without_names_is_listed_once_and_many_are_counted() {
        let mut missing = MissingData::default();
        let names =
            |binary: &str, is_pending| MissingNames { binary: binary.to_owned(), text: "why".to_owned(), is_pending };
        for _ in 0..2 {
            missing.names(BTreeSet::from([names("/usr/bin/api", true)]));
        }
        assert_eq!(missing.warnings(), ["missing: names of \"/usr/bin/api\": why"]);
        missing.names((0..20).map(|i| names(&format!("/{i}"), i == 3)).collect());
        assert_eq!(missing.pending().collect::<Vec<_>>(), ["/3", "/usr/bin/api"]);
        assert_eq!(
            (missing.warnings().len(), missing.warnings()[10].as_str()),
            (11, "missing: names of 11 more files")
        );
    }
}
