//! The samples that an engine must hold, and the times up to which its tiers dropped data.

use std::collections::BTreeMap;

use proto::answer::Missing;
use proto::{Tier, Window};

use crate::samples::{Drawn, functions_of, labels_of};
use crate::steps::CLASSES;

/// A sample of the model.
#[derive(Clone, Debug)]
pub struct Row {
    /// Labels of the sample's series.
    pub labels: BTreeMap<String, String>,
    /// Time of the sample, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Function names, root first: the user part, then the kernel part.
    pub stack: Vec<String>,
    /// Value in the unit of the profile type.
    pub value: i64,
    /// Name of the thread; `None` if the thread has no name.
    pub thread: Option<String>,
    /// Retention class in which the sample was stored.
    pub class: u8,
}

/// Times up to which the data of tiers and retention classes was dropped, in nanoseconds since 1970.
#[derive(Clone, Debug, Default)]
pub struct Horizons(BTreeMap<(Tier, u8), i64>);

impl Horizons {
    /// Notes that the partitions of a tier and class that end at or before a time were dropped.
    pub fn expire(&mut self, tier: Tier, class: u8, before_ns: i64) {
        let horizon_ns = before_ns.div_euclid(tier.partition_ns()) * tier.partition_ns();
        let known = self.0.entry((tier, class)).or_insert(i64::MIN);
        *known = horizon_ns.max(*known);
    }

    /// Returns the time up to which the data of a tier and class was dropped; `i64::MIN` if nothing was dropped.
    pub fn of(&self, tier: Tier, class: u8) -> i64 {
        self.0.get(&(tier, class)).copied().unwrap_or(i64::MIN)
    }

    /// Returns the latest of these times over all classes.
    pub fn latest(&self, tier: Tier) -> i64 {
        CLASSES.map(|class| self.of(tier, class)).into_iter().max().unwrap_or(i64::MIN)
    }

    /// Returns the finest tier that holds a sample; `None` if no tier does.
    pub fn holder(&self, row: &Row) -> Option<Tier> {
        Tier::ALL.into_iter().find(|&tier| row.time_ns > self.of(tier, row.class))
    }

    /// Returns whether an answer reports that it lacks a sample.
    pub fn is_missing(&self, row: &Row, missing: &[Missing]) -> bool {
        let holder = self.holder(row);
        missing.iter().any(|missing| {
            let Window { start_ns, end_ns } = missing.window;
            // The samples of another class may be there, in another tier.
            let is_of_class = missing.finest == Tier::Raw || holder == Some(missing.finest);
            start_ns < row.time_ns && row.time_ns <= end_ns && is_of_class && holder != Some(Tier::Raw)
        })
    }
}

/// Returns the model's row of a generated sample, in class 0.
pub fn row_of(drawn: &Drawn) -> Row {
    Row {
        labels: labels_of(drawn.service)
            .iter()
            .map(|label| (label.name.to_string(), label.value.to_string()))
            .collect(),
        time_ns: drawn.time_ns(),
        stack: functions_of(drawn.user, drawn.kernel),
        value: drawn.value,
        thread: (drawn.thread > 0).then(|| format!("t{}", drawn.thread)),
        class: 0,
    }
}
