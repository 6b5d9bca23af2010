//! Times that an answer leaves out, because only coarser windows of them are kept: said with every answer that they are missing of.

use proto::selection::{LeftOutLabel, Missing};
use proto::{Answer, Tier};

/// Times that are told; of more, how many there are.
const TOLD_MAX: usize = 10;

/// What is missing of some answers, each once, ascending.
pub(crate) fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Vec<Missing> {
    let mut missing: Vec<Missing> = answers.into_iter().flat_map(|answer| &answer.missing).copied().collect();
    tidy(&mut missing);
    missing
}

/// Puts them in order, each once.
pub(crate) fn tidy(missing: &mut Vec<Missing>) {
    missing.sort_unstable_by_key(|one| (one.window.start_ns, one.window.end_ns, one.finest));
    missing.dedup();
}

/// A sentence for each.
pub(crate) fn told(missing: &[Missing]) -> Vec<String> {
    let tell = |one: &Missing| {
        let (start, end) = (seconds(one.window.start_ns), seconds(one.window.end_ns));
        let tier = one.finest.name();
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
pub(crate) fn told_of_list(missing: &[Missing], left_out: &[LeftOutLabel]) -> Vec<String> {
    let tell = |LeftOutLabel { tier, name }: &LeftOutLabel| {
        let tier = tier.name();
        format!(
            "left out: label {name:?} of series of which only windows of {tier} are kept: those are kept without it"
        )
    };
    told(missing).into_iter().chain(left_out.iter().map(tell)).collect()
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
        let missing = |start_ns| Missing { window: Window { start_ns, end_ns: 2_500_000_000 }, finest: Tier::Hour };
        let answer =
            |starts: std::ops::Range<i64>| Answer { missing: starts.map(missing).collect(), ..Answer::default() };
        let few = of(&[answer(0..1), answer(0..1)]);
        assert_eq!(
            told(&few),
            [
                "left out: from 0 to 2.500000000, of which only whole windows of 1h are kept; a range on their edges misses nothing"
            ]
        );
        let points = Missing { finest: Tier::Raw, ..missing(0) };
        assert!(told(&[points])[0].contains("no single samples"), "{:?}", told(&[points]));
        let pod = LeftOutLabel { tier: Tier::Hour, name: "pod".to_owned() };
        let list = told_of_list(&few, &[pod]);
        assert!(list[1].contains("\"pod\"") && list[1].contains("1h"), "{list:?}");
        let many = told(&of(&[answer(5..12), answer(0..7)]));
        assert_eq!((many.len(), many[10].as_str()), (11, "and 2 more times are left out"));
    }
}
