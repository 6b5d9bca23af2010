//! Evaluates the operators of a query at each step, as Prometheus does. The operands are the values of the query's
//! leaves: selectors with their functions.

use crate::query::error::QueryError;
use crate::query::promql::aggregate::aggregate;
use crate::query::promql::binary::binary;
use crate::query::promql::budget::Budget;
use crate::query::promql::expr::Expr;
use crate::query::promql::value::{Series, Value, sorted};
use crate::query::run::Cancelled;

/// A query during its evaluation.
#[derive(Debug)]
pub(crate) struct Evaluation<'a> {
    /// Values of the query's leaves. The evaluation consumes each of them once.
    pub(crate) leaves: Vec<Vec<Series>>,
    /// Number of steps.
    pub(crate) steps: usize,
    /// Budget that remains after loading the leaves.
    pub(crate) budget: Budget,
    pub(crate) cancelled: &'a Cancelled,
}

impl Evaluation<'_> {
    /// Returns the value of an expression. Consumes the values of its operands.
    pub(crate) fn of(&mut self, expr: &Expr) -> Result<Value, QueryError> {
        self.cancelled.check()?;
        match expr {
            Expr::Number(number) => Ok(Value::Scalar(vec![*number; self.steps])),
            Expr::Leaf(i) => Ok(Value::Vector(self.leaves.get_mut(*i).map(std::mem::take).unwrap_or_default())),
            Expr::Negate(of) => Ok(match self.of(of)? {
                Value::Scalar(values) => Value::Scalar(values.into_iter().map(|value| -value).collect()),
                Value::Vector(series) => Value::Vector(sorted(series.into_iter().map(negated).collect())),
            }),
            Expr::Aggregate { operator, parameter, grouping, of } => {
                let parameter = match parameter {
                    Some(parameter) => match self.of(parameter)? {
                        Value::Scalar(values) => values,
                        // The parser checked that the parameter is a scalar.
                        Value::Vector(_) => Vec::new(),
                    },
                    None => Vec::new(),
                };
                let series = match self.of(of)? {
                    Value::Vector(series) => series,
                    // The parser checked that the operand is a vector.
                    scalar @ Value::Scalar(_) => return Ok(scalar),
                };
                let held = series.len();
                let result = aggregate(*operator, &parameter, grouping, series, self.steps, self.cancelled)?;
                self.replaced(held, Value::Vector(sorted(result)))
            }
            Expr::Binary { operator, left, right, matching, returns_bool } => {
                let sides = (self.of(left)?, self.of(right)?);
                let held = sides.0.series() + sides.1.series();
                let result = binary(*operator, sides, matching, *returns_bool, self.budget, self.cancelled)?;
                self.replaced(held, result)
            }
        }
    }

    /// Adjusts the budget for a result that replaces `held` series.
    fn replaced(&mut self, held: usize, result: Value) -> Result<Value, QueryError> {
        self.budget.release(held);
        self.budget.take(result.series())?;
        Ok(result)
    }
}

fn negated(series: Series) -> Series {
    let values = series.values.into_iter().map(|value| value.map(|value| -value)).collect();
    Series { labels: series.labels.without_name(), values }
}
