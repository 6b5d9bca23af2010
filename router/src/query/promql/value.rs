//! Values of expressions: scalars and vectors of series, at each step.

use crate::query::selection::labels::Labels;

/// The times at which a query is evaluated, ascending; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steps(pub(crate) Vec<i64>);

/// One series with a value, or none, at each step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) labels: Labels,
    pub(crate) values: Vec<Option<f64>>,
}

impl Series {
    /// Returns whether it has a value at any step.
    pub(crate) fn has_values(&self) -> bool {
        self.values.iter().any(Option::is_some)
    }
}

/// Value of an expression at all steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// One number at each step.
    Scalar(Vec<f64>),
    /// Series, in the order of their labels.
    Vector(Vec<Series>),
}

impl Value {
    /// Number of series. A scalar is one number per step and counts as none.
    pub(crate) fn series(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::Vector(series) => series.len(),
        }
    }
}

/// Sorts series by their labels, which operators change.
pub(crate) fn sorted(mut series: Vec<Series>) -> Vec<Series> {
    series.sort_by(|a, b| a.labels.cmp(&b.labels));
    series
}
