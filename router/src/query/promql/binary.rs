//! Binary operators between scalars and vectors.

use crate::query::error::QueryError;
use crate::query::promql::budget::Budget;
use crate::query::promql::expr::{Matching, Operator};
use crate::query::promql::value::{Series, Value, sorted};
use crate::query::promql::vector_matching::VectorMatching;
use crate::query::run::Cancelled;

/// Applies the operator to both sides, step by step. `budget` is for the result, in addition to the memory of both
/// sides.
pub(crate) fn binary(
    operator: Operator,
    (left, right): (Value, Value),
    matching: &Matching,
    returns_bool: bool,
    budget: Budget,
    cancelled: &Cancelled,
) -> Result<Value, QueryError> {
    let drops_name = !operator.is_comparison() || returns_bool;
    Ok(match (left, right) {
        (Value::Scalar(left), Value::Scalar(right)) => {
            let both = left.iter().zip(&right);
            // The parser accepts a comparison of two scalars only with `bool`.
            Value::Scalar(both.map(|(&left, &right)| number(operator, left, right)).collect())
        }
        (Value::Vector(vector), Value::Scalar(scalar)) => {
            let apply = |value, number| apply(operator, value, number, value, returns_bool);
            Value::Vector(sorted(with_scalar(vector, &scalar, drops_name, apply)))
        }
        (Value::Scalar(scalar), Value::Vector(vector)) => {
            // A comparison returns the vector's value, whichever side the vector is on.
            let apply = |value, number| apply(operator, number, value, value, returns_bool);
            Value::Vector(sorted(with_scalar(vector, &scalar, drops_name, apply)))
        }
        (Value::Vector(left), Value::Vector(right)) => {
            let apply = |left, right| apply(operator, left, right, left, returns_bool);
            let matching = VectorMatching { matching, drops_name, budget, cancelled };
            Value::Vector(sorted(matching.apply(left, right, apply)?))
        }
    })
}

/// Applies the operator to each value of a vector. Drops series in which no value remains.
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
            // The name is dropped if it no longer describes the value.
            Series { labels: if drops_name { series.labels.without_name() } else { series.labels }, values }
        })
        .filter(Series::has_values)
        .collect()
}

/// Returns the result for two values. A comparison without `bool` returns `kept` if it holds, and otherwise nothing.
fn apply(operator: Operator, left: f64, right: f64, kept: f64, returns_bool: bool) -> Option<f64> {
    let result = number(operator, left, right);
    if !operator.is_comparison() || returns_bool { Some(result) } else { (result != 0.0).then_some(kept) }
}

/// Applies the operator to numbers. A comparison results in 0 for false and 1 for true.
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
