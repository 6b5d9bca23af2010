//! The operators of a query over the values of its leaves, step by step as Prometheus has it.

use crate::query::aggregate;
use crate::query::binary;
use crate::query::error::QueryError;
use crate::query::expr::Expr;
use crate::query::limits::QUERY_VALUES_MAX;
use crate::query::window::Series;

/// What an expression is at all steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// One number at each step.
    Scalar(Vec<f64>),
    /// Series, in the order of their labels.
    Vector(Vec<Series>),
}

/// Evaluates an expression. `leaves`: the values of the query's leaves, each taken once; `steps`: how many there are.
pub(crate) fn evaluate(expr: &Expr, leaves: &mut [Vec<Series>], steps: usize) -> Result<Value, QueryError> {
    let value = match expr {
        Expr::Number(number) => Value::Scalar(vec![*number; steps]),
        Expr::Leaf(i) => Value::Vector(leaves.get_mut(*i).map(std::mem::take).unwrap_or_default()),
        Expr::Negate(of) => match evaluate(of, leaves, steps)? {
            Value::Scalar(values) => Value::Scalar(values.into_iter().map(|value| -value).collect()),
            Value::Vector(series) => Value::Vector(sorted(series.into_iter().map(negated).collect())),
        },
        Expr::Aggregate { operator, parameter, grouping, of } => {
            let parameter = match parameter {
                Some(parameter) => match evaluate(parameter, leaves, steps)? {
                    Value::Scalar(values) => values,
                    // The parser checked that it is a scalar.
                    Value::Vector(_) => Vec::new(),
                },
                None => Vec::new(),
            };
            match evaluate(of, leaves, steps)? {
                Value::Vector(series) => {
                    Value::Vector(sorted(aggregate::aggregate(*operator, &parameter, grouping, series, steps)?))
                }
                // The parser checked that it is a vector.
                Value::Scalar(values) => Value::Scalar(values),
            }
        }
        Expr::Binary { operator, left, right, matching, returns_bool } => {
            let left = evaluate(left, leaves, steps)?;
            let right = evaluate(right, leaves, steps)?;
            binary::binary(*operator, left, right, matching, *returns_bool)?
        }
    };
    if let Value::Vector(series) = &value
        && series.len().saturating_mul(steps) > QUERY_VALUES_MAX
    {
        return Err(QueryError::too_many_values());
    }
    Ok(value)
}

fn negated(series: Series) -> Series {
    let values = series.values.into_iter().map(|value| value.map(|value| -value)).collect();
    Series { labels: series.labels.without_name(), values }
}

/// In the order of their labels, which operators change.
pub(crate) fn sorted(mut series: Vec<Series>) -> Vec<Series> {
    series.sort_by(|a, b| a.labels.cmp(&b.labels));
    series
}
