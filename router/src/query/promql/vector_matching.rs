//! Vector matching: pairing of the series of the two sides of a binary operator.
//!
//! At each step, a series of the "many" side (by default the left one) is paired with the series of the "one" side that
//! has the same matching labels. To prepare this, the "one" side is converted to one row of partners for each set of
//! matching labels. The work is proportional to the number of values of both sides, even if many series have the same
//! labels.

use std::collections::HashMap;

use indexmap::{IndexMap, IndexSet};

use crate::query::error::{MatchingProblem, QueryError};
use crate::query::promql::budget::Budget;
use crate::query::promql::expr::{Cardinality, Matching};
use crate::query::promql::value::Series;
use crate::query::run::Cancelled;
use crate::query::selection::labels::{Labels, NAME_LABEL};

/// Vector matching of one binary operator.
#[derive(Debug)]
pub(crate) struct VectorMatching<'a> {
    pub(crate) matching: &'a Matching,
    /// True if results lose the metric name.
    pub(crate) drops_name: bool,
    /// Memory budget for the results.
    pub(crate) budget: Budget,
    pub(crate) cancelled: &'a Cancelled,
}

/// Side of a binary operator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }
}

/// State of the "one" side at one step, for one set of matching labels.
#[derive(Clone, Copy)]
enum Partner {
    None,
    One {
        /// Index of the label set that results copy from the series.
        copied: u32,
        value: f64,
    },
    Several,
    /// One series, which is already paired with its only match.
    Taken,
}

/// The "one" side, by matching labels and step.
#[derive(Default)]
struct Partners {
    /// For each set of matching labels, the partner at each step.
    rows: HashMap<Labels, Vec<Partner>>,
    /// Distinct label sets that results copy.
    copied: IndexSet<Labels>,
}

/// Result series by their labels.
struct Results {
    series: IndexMap<Labels, Vec<Option<f64>>>,
    steps: usize,
    budget: Budget,
}

impl VectorMatching<'_> {
    /// Applies the operator `apply` to the left and right value of each pair.
    pub(crate) fn apply(
        self,
        left: Vec<Series>,
        right: Vec<Series>,
        apply: impl Fn(f64, f64) -> Option<f64>,
    ) -> Result<Vec<Series>, QueryError> {
        match self.matching.cardinality {
            Cardinality::OneToMany(_) => self.meet(right, left, Side::Right, |many, one| apply(one, many)),
            Cardinality::OneToOne | Cardinality::ManyToOne(_) => self.meet(left, right, Side::Left, apply),
        }
    }

    fn meet(
        &self,
        many: Vec<Series>,
        one: Vec<Series>,
        many_side: Side,
        apply: impl Fn(f64, f64) -> Option<f64>,
    ) -> Result<Vec<Series>, QueryError> {
        let one_side = if many_side == Side::Left { Side::Right } else { Side::Left };
        let one_to_one = matches!(self.matching.cardinality, Cardinality::OneToOne);
        let mut partners = self.partners(one)?;
        let steps = many.first().map_or(0, |series| series.values.len());
        let mut results = Results { series: IndexMap::new(), steps, budget: self.budget };
        // Indices of the results of one series of the "many" side, by the copied labels.
        let mut indices: HashMap<u32, usize> = HashMap::new();
        for Series { labels, values } in many {
            self.cancelled.check()?;
            let matched = self.matched_labels(&labels);
            let Some(row) = partners.rows.get_mut(&matched) else { continue };
            indices.clear();
            for (step, (value, partner)) in values.into_iter().zip(row).enumerate() {
                let Some(value) = value else { continue };
                let (copied, other) = match *partner {
                    Partner::None => continue,
                    Partner::One { copied, value } => (copied, value),
                    Partner::Several => return Err(duplicate(one_side, &matched)),
                    Partner::Taken => return Err(duplicate(many_side, &matched)),
                };
                if one_to_one {
                    *partner = Partner::Taken;
                }
                let Some(result) = apply(value, other) else { continue };
                let index = match indices.get(&copied) {
                    Some(&index) => index,
                    None => {
                        let copied_labels = partners.copied.get_index(copied as usize);
                        let index = results.index(self.result_labels(&labels, copied_labels))?;
                        indices.insert(copied, index);
                        index
                    }
                };
                results.set(index, step, result)?;
            }
        }
        Ok(results.series.into_iter().map(|(labels, values)| Series { labels, values }).collect())
    }

    fn partners(&self, one: Vec<Series>) -> Result<Partners, QueryError> {
        let mut partners = Partners::default();
        for Series { labels, values } in one {
            self.cancelled.check()?;
            let copied = partners.copied.insert_full(self.copied_labels(&labels)).0;
            let copied = u32::try_from(copied).unwrap_or(u32::MAX);
            let none = || vec![Partner::None; values.len()];
            let row = partners.rows.entry(self.matched_labels(&labels)).or_insert_with(none);
            for (partner, value) in row.iter_mut().zip(&values) {
                *partner = match (*partner, *value) {
                    (before, None) => before,
                    (Partner::None, Some(value)) => Partner::One { copied, value },
                    (_, Some(_)) => Partner::Several,
                };
            }
        }
        Ok(partners)
    }

    /// Returns the labels on which a series matches.
    fn matched_labels(&self, labels: &Labels) -> Labels {
        let names = &self.matching.labels;
        if self.matching.on { labels.only(names) } else { labels.without_name().without(names) }
    }

    /// Returns the labels of a series of the "one" side that `group_left` or `group_right` copies.
    fn copied_labels(&self, one: &Labels) -> Labels {
        match &self.matching.cardinality {
            Cardinality::OneToOne => Labels::default(),
            Cardinality::ManyToOne(names) | Cardinality::OneToMany(names) => one.only(names),
        }
    }

    /// Returns the labels of a result: the labels of the "many" side, and the labels copied from the "one" side.
    fn result_labels(&self, many: &Labels, copied: Option<&Labels>) -> Labels {
        let labels = if self.drops_name { many.without_name() } else { many.clone() };
        match &self.matching.cardinality {
            Cardinality::OneToOne if self.matching.on => labels.only(&self.matching.labels),
            Cardinality::OneToOne => labels.without(&self.matching.labels),
            Cardinality::ManyToOne(names) | Cardinality::OneToMany(names) => {
                let own_name = |name: &&String| self.drops_name || name.as_str() != NAME_LABEL;
                let value = |name| copied.map_or("", |copied| copied.get(name));
                names.iter().filter(own_name).fold(labels, |labels, name| labels.with(name, value(name)))
            }
        }
    }
}

impl Results {
    /// Returns the index of the result series with these labels. Adds the series if it is new.
    fn index(&mut self, labels: Labels) -> Result<usize, QueryError> {
        if let Some(index) = self.series.get_index_of(&labels) {
            return Ok(index);
        }
        self.budget.take(1)?;
        Ok(self.series.insert_full(labels, vec![None; self.steps]).0)
    }

    fn set(&mut self, index: usize, step: usize, result: f64) -> Result<(), QueryError> {
        let Some((labels, values)) = self.series.get_index_mut(index) else { return Ok(()) };
        match values.get_mut(step) {
            Some(empty @ None) => *empty = Some(result),
            _ => return Err(QueryError::Matching(MatchingProblem::SameResult { labels: labels.to_string() })),
        }
        Ok(())
    }
}

fn duplicate(side: Side, matched: &Labels) -> QueryError {
    QueryError::Matching(MatchingProblem::Duplicate { side: side.name(), labels: matched.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the values of both sides. The left side is the "many" side. Copies the label `i`, and matches on no label.
    fn sum(
        left: Vec<Series>,
        right: Vec<Series>,
        budget: Budget,
        cancelled: &Cancelled,
    ) -> Result<Vec<Series>, QueryError> {
        let cardinality = Cardinality::ManyToOne(vec!["i".to_owned()]);
        let matching = Matching { on: true, labels: Vec::new(), cardinality };
        let matching = VectorMatching { matching: &matching, drops_name: true, budget, cancelled };
        matching.apply(left, right, |left, right| Some(left + right))
    }

    fn series(label: &str, i: usize, values: Vec<Option<f64>>) -> Series {
        Series { labels: Labels::new(vec![(label.into(), i.to_string().into())]), values }
    }

    /// Returns `count` series, each with a value at one step only.
    fn one_step_each(count: usize, steps: usize) -> Vec<Series> {
        let values = |i| (0..steps).map(|step| (step == i).then_some(i as f64)).collect();
        (0..count).map(|i| series("i", i, values(i))).collect()
    }

    #[test]
    fn each_step_has_its_own_partner_among_equal_labels() {
        let many = vec![series("many", 1, vec![Some(10.0), None, Some(30.0)])];
        let got = sum(many, one_step_each(3, 3), Budget::new(3), &Cancelled::default()).unwrap();
        let labels = |i: &str| Labels::new(vec![("many".into(), "1".into()), ("i".into(), i.into())]);
        let want = [
            Series { labels: labels("0"), values: vec![Some(10.0), None, None] },
            Series { labels: labels("2"), values: vec![None, None, Some(32.0)] },
        ];
        assert_eq!(got, want);
    }

    // This takes minutes if partners are searched at every step among all series with the same labels.
    #[test]
    fn many_series_with_the_same_labels_are_matched() {
        let absent = |count: usize| (0..count).map(|i| series("i", i, vec![None; 100])).collect::<Vec<_>>();
        let many = (0..20_000).map(|i| series("many", i, vec![Some(1.0); 100])).collect();
        assert!(sum(many, absent(20_000), Budget::new(100), &Cancelled::default()).unwrap().is_empty());
    }

    #[test]
    fn results_multiplied_by_copied_labels_stay_in_the_budget() {
        let many = (0..100).map(|i| series("many", i, vec![Some(1.0); 1000])).collect();
        let got = sum(many, one_step_each(1000, 1000), Budget::new(1000), &Cancelled::default());
        assert!(matches!(got, Err(QueryError::TooLarge { .. })));
    }

    #[test]
    fn cancelled_queries_are_not_matched() {
        let cancelled = Cancelled::default();
        cancelled.cancel();
        let got = sum(one_step_each(1, 1), one_step_each(1, 1), Budget::new(1), &cancelled);
        assert!(matches!(got, Err(QueryError::Cancelled)));
    }
}
