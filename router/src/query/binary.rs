//! Binary operators between scalars and vectors.

use std::collections::BTreeMap;

use crate::query::error::{MatchingProblem, QueryError};
use crate::query::evaluate::{Value, sorted};
use crate::query::expr::{Cardinality, Matching, Operator};
use crate::query::labels::{Labels, NAME_LABEL};
use crate::query::window::Series;

/// The operator applied to both sides, step by step.
pub(crate) fn binary(
    operator: Operator,
    left: Value,
    right: Value,
    matching: &Matching,
    returns_bool: bool,
) -> Result<Value, QueryError> {
    Ok(match (left, right) {
        (Value::Scalar(left), Value::Scalar(right)) => {
            let both = left.iter().zip(&right);
            // The parser lets scalars be compared with `bool` only.
            Value::Scalar(both.map(|(&left, &right)| number(operator, left, right)).collect())
        }
        (Value::Vector(vector), Value::Scalar(scalar)) => {
            let apply = |value, number| apply(operator, value, number, value, returns_bool);
            Value::Vector(sorted(with_scalar(vector, &scalar, drops_name(operator, returns_bool), apply)))
        }
        (Value::Scalar(scalar), Value::Vector(vector)) => {
            // A comparison passes the vector's value on, on whichever side it stands.
            let apply = |value, number| apply(operator, number, value, value, returns_bool);
            Value::Vector(sorted(with_scalar(vector, &scalar, drops_name(operator, returns_bool), apply)))
        }
        (Value::Vector(left), Value::Vector(right)) => {
            Value::Vector(sorted(vectors(operator, left, right, matching, returns_bool)?))
        }
    })
}

/// Whether the result is no longer what the metric's name says.
fn drops_name(operator: Operator, returns_bool: bool) -> bool {
    !operator.is_comparison() || returns_bool
}

fn with_scalar(
    vector: Vec<Series>,
    scalar: &[f64],
    drops_name: bool,
    apply: impl Fn(f64, f64) -> Option<f64>,
) -> Vec<Series> {
    vector
        .into_iter()
        .map(|series| {
            let both = series.values.iter().zip(scalar);
            let values = both.map(|(value, &number)| value.and_then(|value| apply(value, number))).collect();
            Series { labels: if drops_name { series.labels.without_name() } else { series.labels }, values }
        })
        .collect()
}

/// The result for two values; comparisons without `bool` pass `kept` on or nothing.
fn apply(operator: Operator, left: f64, right: f64, kept: f64, returns_bool: bool) -> Option<f64> {
    let result = number(operator, left, right);
    if !operator.is_comparison() || returns_bool { Some(result) } else { (result != 0.0).then_some(kept) }
}

/// The operator on numbers; comparisons are 0 or 1.
#[allow(clippy::float_cmp, reason = "== and != of PromQL are those of IEEE 754")]
fn number(operator: Operator, left: f64, right: f64) -> f64 {
    let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
    match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::Modulo => left % right,
        Operator::Power => left.powf(right),
        Operator::Equal => truth(left == right),
        Operator::NotEqual => truth(left != right),
        Operator::Less => truth(left < right),
        Operator::LessOrEqual => truth(left <= right),
        Operator::Greater => truth(left > right),
        Operator::GreaterOrEqual => truth(left >= right),
    }
}

/// Which side of an operator series come from.
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

/// Vector and vector. Each series of the "many" side (the left one, where none is) meets the one of the other side that has
/// the same labels to match on; which series are there is decided at each step.
fn vectors(
    operator: Operator,
    left: Vec<Series>,
    right: Vec<Series>,
    matching: &Matching,
    returns_bool: bool,
) -> Result<Vec<Series>, QueryError> {
    let many_side = if matches!(matching.cardinality, Cardinality::OneToMany(_)) { Side::Right } else { Side::Left };
    let (many, one, one_side) = match many_side {
        Side::Left => (left, right, Side::Right),
        Side::Right => (right, left, Side::Left),
    };
    let mut ones: BTreeMap<Labels, Vec<Series>> = BTreeMap::new();
    for series in one {
        ones.entry(signature(matching, &series.labels)).or_default().push(series);
    }
    let one_to_one = matches!(matching.cardinality, Cardinality::OneToOne);
    let drops_name = drops_name(operator, returns_bool);
    let mut out: BTreeMap<Labels, Vec<Option<f64>>> = BTreeMap::new();
    // Steps at which a series of the "many" side has matched already, where only one may.
    let mut taken: BTreeMap<Labels, Vec<bool>> = BTreeMap::new();
    for series in many {
        let matched = signature(matching, &series.labels);
        let Some(partners) = ones.get(&matched) else { continue };
        let taken = taken.entry(matched.clone()).or_insert_with(|| vec![false; series.values.len()]);
        let mut labels_with: Option<(usize, Labels)> = None;
        for ((step, value), taken) in series.values.iter().enumerate().zip(taken) {
            let Some(value) = *value else { continue };
            let Some((partner, other)) = only(partners, step, one_side, &matched)? else { continue };
            if std::mem::replace(taken, one_to_one) {
                return Err(duplicate(many_side, &matched));
            }
            let (a, b) = if many_side == Side::Left { (value, other) } else { (other, value) };
            let Some(result) = apply(operator, a, b, a, returns_bool) else { continue };
            if labels_with.as_ref().is_none_or(|(known, _)| *known != partner) {
                let other_labels = partners.get(partner).map(|partner| &partner.labels);
                labels_with =
                    other_labels.map(|one| (partner, result_labels(matching, &series.labels, one, drops_name)));
            }
            let Some((_, labels)) = &labels_with else { continue };
            if !out.contains_key(labels) {
                out.insert(labels.clone(), vec![None; series.values.len()]);
            }
            match out.get_mut(labels).and_then(|values| values.get_mut(step)) {
                Some(empty @ None) => *empty = Some(result),
                _ => return Err(QueryError::Matching(MatchingProblem::SameResult { labels: labels.to_string() })),
            }
        }
    }
    Ok(out.into_iter().map(|(labels, values)| Series { labels, values }).collect())
}

/// The place and value of the series that is there at a step; an error if there are several.
fn only(partners: &[Series], step: usize, side: Side, matched: &Labels) -> Result<Option<(usize, f64)>, QueryError> {
    let value = |(i, series): (usize, &Series)| Some((i, series.values.get(step).copied().flatten()?));
    let mut present = partners.iter().enumerate().filter_map(value);
    let first = present.next();
    if present.next().is_some() { Err(duplicate(side, matched)) } else { Ok(first) }
}

fn duplicate(side: Side, matched: &Labels) -> QueryError {
    QueryError::Matching(MatchingProblem::Duplicate { side: side.name(), labels: matched.to_string() })
}

/// The labels on which a series matches.
fn signature(matching: &Matching, labels: &Labels) -> Labels {
    if matching.on { labels.only(&matching.labels) } else { labels.without_name().without(&matching.labels) }
}

/// The labels of a result: those of the "many" side, and what `group_left` or `group_right` copies from the other.
fn result_labels(matching: &Matching, many: &Labels, one: &Labels, drops_name: bool) -> Labels {
    let labels = if drops_name { many.without_name() } else { many.clone() };
    match &matching.cardinality {
        Cardinality::OneToOne if matching.on => labels.only(&matching.labels),
        Cardinality::OneToOne => labels.without(&matching.labels),
        Cardinality::ManyToOne(copied) | Cardinality::OneToMany(copied) => {
            let own_name = |name: &&String| drops_name || name.as_str() != NAME_LABEL;
            copied.iter().filter(own_name).fold(labels, |labels, name| labels.with(name, one.get(name)))
        }
    }
}
