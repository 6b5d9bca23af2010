//! What an answer leaves out, and says so: times of which only coarser windows are kept, and names that are not known yet.

use std::collections::BTreeSet;

use proto::answer::{LeftOutLabel, Missing};
use proto::{Answer, Tier};

use crate::query::frame::LackingNames;

/// Times, and files whose names are lacking, that are told; of more, how many there are.
const TOLD_MAX: usize = 10;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    times: Vec<Missing>,
    /// Whose names, and why.
    names: BTreeSet<LackingNames>,
}

impl Lacking {
    /// Adds times.
    pub(crate) fn times<'a>(&mut self, missing: impl IntoIterator<Item = &'a Missing>) {
        self.times.extend(missing);
        self.times.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest, one.is_damaged));
        self.times.dedup();
    }

    /// Adds the times that answers lack.
    pub(crate) fn of_answers<'a>(&mut self, answers: impl IntoIterator<Item = &'a Answer>) {
        self.times(answers.into_iter().flat_map(|answer| &answer.missing));
    }

    /// Adds whose names are lacking, and why.
    pub(crate) fn names(&mut self, names: BTreeSet<LackingNames>) {
        self.names.extend(names);
    }

    /// Adds what another answer lacks.
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

    /// A sentence for each.
    pub(crate) fn told(&self) -> Vec<String> {
        let mut told = told_of_times(&self.times);
        told.extend(self.names.iter().take(TOLD_MAX).map(|one| format!("left out: names of {one}")));
        if self.names.len() > TOLD_MAX {
            told.push(format!("and names of {} more files are left out", self.names.len() - TOLD_MAX));
        }
        told
    }
}

fn told_of_times(missing: &[Missing]) -> Vec<String> {
    let tell = |one: &Missing| {
        let (start, end) = (seconds(one.window.start_ns), seconds(one.window.end_ns));
        let tier = one.finest.name();
        if one.is_damaged {
            return format!(
                "damaged: from {start} to {end}, samples are missing because values of tier {tier} cannot be read from disk; \
                 `varve admin verify` names them"
            );
        }
        if one.finest == Tier::Raw {
            return format!(
                "left out: from {start} to {end}, of which no single samples are kept any more, and sums cannot answer this"
            );
        }
        format!(
            "left out: from {start} to {end}, of which only whole windows of {tier} are kept; a range on their edges misses nothing"
        )
    };
    let mut told: Vec<String> = missing.iter().take(TOLD_MAX).map(tell).collect();
    if missing.len() > TOLD_MAX {
        told.push(format!("and {} more times are left out", missing.len() - TOLD_MAX));
    }
    told
}

/// A sentence for each time and label that a list lacks.
pub(crate) fn told_of_list(lacking: &Lacking, left_out: &BTreeSet<LeftOutLabel>) -> Vec<String> {
    let tell = |LeftOutLabel { tier, name }: &LeftOutLabel| {
        let tier = tier.name();
        format!(
            "left out: label {name:?} of series of which only windows of {tier} are kept: those are kept without it"
        )
    };
    lacking.told().into_iter().chain(left_out.iter().map(tell)).collect()
}

fn seconds(time_ns: i64) -> String {
    let (seconds, rest) = (time_ns.div_euclid(1_000_000_000), time_ns.rem_euclid(1_000_000_000));
    if rest == 0 { seconds.to_string() } else { format!("{seconds}.{rest:09}") }
}

#[cfg(test)]
mod tests {
    use proto::{Tier, Window};

    use super::*;

    #[test]
    fn each_time_is_told_once_and_many_are_counted() {
        let missing = |start_ns| Missing {
            window: Window { start_ns, end_ns: 2_500_000_000 },
            finest: Tier::Hour,
            is_damaged: false,
        };
        let answer =
            |starts: std::ops::Range<i64>| Answer { missing: starts.map(missing).collect(), ..Answer::default() };
        let of = |answers: &[Answer]| {
            let mut lacking = Lacking::default();
            lacking.of_answers(answers);
            lacking
        };
        let few = of(&[answer(0..1), answer(0..1)]);
        assert_eq!(
            few.told(),
            [
                "left out: from 0 to 2.500000000, of which only whole windows of 1h are kept; a range on their edges misses nothing"
            ]
        );
        let points = Missing { finest: Tier::Raw, ..missing(0) };
        let points = told_of_times(&[points]);
        assert!(points[0].contains("no single samples"), "{points:?}");
        let damaged = told_of_times(&[Missing { is_damaged: true, ..missing(0) }]);
        assert!(
            damaged[0].starts_with("damaged: from 0 to 2.500000000, ") && damaged[0].contains("tier 1h"),
            "{damaged:?}"
        );
        let pod = LeftOutLabel { tier: Tier::Hour, name: "pod".to_owned() };
        let list = told_of_list(&few, &BTreeSet::from([pod]));
        assert!(list[1].contains("\"pod\"") && list[1].contains("1h"), "{list:?}");
        let many = of(&[answer(5..12), answer(0..7)]).told();
        assert_eq!((many.len(), many[10].as_str()), (11, "and 2 more times are left out"));
    }

    #[test]
    fn each_file_without_names_is_told_once_and_many_are_counted() {
        let mut lacking = Lacking::default();
        let names =
            |binary: &str, is_pending| LackingNames { binary: binary.to_owned(), text: "why".to_owned(), is_pending };
        for _ in 0..2 {
            lacking.names(BTreeSet::from([names("/usr/bin/api", true)]));
        }
        assert_eq!(lacking.told(), ["left out: names of \"/usr/bin/api\": why"]);
        lacking.names((0..20).map(|i| names(&format!("/{i}"), i == 3)).collect());
        assert_eq!(lacking.pending().collect::<Vec<_>>(), ["/3", "/usr/bin/api"]);
        assert_eq!(
            (lacking.told().len(), lacking.told()[10].as_str()),
            (11, "and names of 11 more files are left out")
        );
    }
}
