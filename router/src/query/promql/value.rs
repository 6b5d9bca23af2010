//! Values of expressions: scalars and vectors of series, at each step.

use crate::query::selection::labels::Labels;

/// Times at which a query is evaluated, ascending; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steps(pub(crate) Vec<i64>);

/// A series with labels. At each step, it has one value or none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    pub(crate) labels: Labels,
    pub(crate) values: Vec<Option<f64>>,
}

impl Series {
    /// Returns whether the series has a value at any step.
    pub(crate) fn has_values(&self) -> bool {
        self.values.iter().any(Option::is_some)
    }
}

/// Value of an expression at all steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// One number at each step.
    Scalar(Vec<f64>),
    /// Series, sorted by their labels.
    Vector(Vec<Series>),
}

impl Value {
    /// Number of series. A scalar is one number per step and counts as 0 series.
    pub(crate) fn series(&self) -> usize {
        match self {
            Self::Scalar(_) => 0,
            Self::Vector(series) => series.len(),
        }
    }
}

/// Sorts series by their labels. Needed after operators, which change labels.
pub(crate) fn sorted(mut series: Vec<Series>) -> Vec<Series> {
    series.sort_by(|a, b| a.labels.cmp(&b.labels));
    series
}
