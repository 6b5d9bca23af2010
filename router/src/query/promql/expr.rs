//! A query as an expression: the supported part of PromQL, with all times in nanoseconds.
//!
//! The leaves are selectors, each with the function around it. The leaves are loaded first, each with one or two
//! requests to the shards. Then the operators above the leaves are evaluated at each step.

use crate::query::selection::selector::Selector;

/// A whole query.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) root: Expr,
    /// Leaves of the query. Expressions refer to a leaf by its index.
    pub(crate) leaves: Vec<Leaf>,
}

/// An expression: a number, a leaf, or an operator with its operands.
#[derive(Debug)]
pub(crate) enum Expr {
    Number(f64),
    /// Index of a leaf in [`Query::leaves`].
    Leaf(usize),
    Negate(Box<Expr>),
    Aggregate {
        operator: Aggregation,
        parameter: Option<Box<Expr>>,
        grouping: Grouping,
        of: Box<Expr>,
    },
    Binary {
        operator: Operator,
        left: Box<Expr>,
        right: Box<Expr>,
        matching: Matching,
        /// True if comparisons return 0 or 1 instead of dropping values (`bool`).
        returns_bool: bool,
    },
}

/// A selector, and the function that is applied to the samples of its time range.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) function: Function,
    pub(crate) selector: Selector,
    /// Length of the window, in nanoseconds; always positive. For an instant selector, it is the time in which the last
    /// point is looked for.
    pub(crate) range_ns: i64,
    /// Offset of the window into the past, in nanoseconds.
    pub(crate) offset_ns: i64,
    pub(crate) at: Option<At>,
    /// Grouping of samples into series.
    pub(crate) group: Group,
}

/// Time of an `@` modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Start,
    End,
    Time(i64),
}

/// Grouping of samples into the series of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Groups by stored series, and also by these labels: sample attributes, and labels of stacks.
    Series(Vec<String>),
    /// Groups by the values of these labels. The `sum` above the leaf is computed together with the leaf: exactly, and
    /// mostly in the shards.
    By(Vec<String>),
}

/// Function that is applied to the samples in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// An instant selector, whose value is the last point in the window.
    Instant,
    Rate,
    Increase,
    SumOverTime,
    LastOverTime,
    AvgOverTime,
    MinOverTime,
    MaxOverTime,
    CountOverTime,
}

/// Names of the supported functions, for errors.
pub(crate) const FUNCTIONS: &str =
    "rate, increase, sum_over_time, last_over_time, avg_over_time, min_over_time, max_over_time, count_over_time";

impl Function {
    const NAMED: [Self; 8] = [
        Self::Rate,
        Self::Increase,
        Self::SumOverTime,
        Self::LastOverTime,
        Self::AvgOverTime,
        Self::MinOverTime,
        Self::MaxOverTime,
        Self::CountOverTime,
    ];

    /// Name of the function in PromQL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instant => "an instant selector",
            Self::Rate => "rate",
            Self::Increase => "increase",
            Self::SumOverTime => "sum_over_time",
            Self::LastOverTime => "last_over_time",
            Self::AvgOverTime => "avg_over_time",
            Self::MinOverTime => "min_over_time",
            Self::MaxOverTime => "max_over_time",
            Self::CountOverTime => "count_over_time",
        }
    }

    /// Returns the function with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|function| function.name() == name)
    }

    /// Returns whether the function is a sum over all samples of the window. Other functions need points: sums of 10 s
    /// each, or the single profiles of a gauge.
    pub(crate) fn is_linear(self) -> bool {
        matches!(self, Self::Rate | Self::Increase | Self::SumOverTime)
    }

    /// Returns whether results keep the metric name, because they are values of the series itself.
    pub(crate) fn keeps_name(self) -> bool {
        matches!(self, Self::Instant | Self::LastOverTime)
    }
}

/// An aggregation over series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aggregation {
    Sum,
    Avg,
    Min,
    Max,
    Count,
    TopK,
    BottomK,
}

/// Names of the supported aggregations, for errors.
pub(crate) const AGGREGATIONS: &str = "sum, avg, min, max, count, topk, bottomk";

impl Aggregation {
    /// Name of the aggregation in PromQL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Count => "count",
            Self::TopK => "topk",
            Self::BottomK => "bottomk",
        }
    }

    /// Returns whether the aggregation selects some of its operand's series, with all their labels.
    pub(crate) fn selects(self) -> bool {
        matches!(self, Self::TopK | Self::BottomK)
    }
}

/// Labels that distinguish the groups of an aggregation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    By(Vec<String>),
    Without(Vec<String>),
}

/// A binary operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Names of the supported operators, for errors.
pub(crate) const OPERATORS: &str = "+ - * / % ^ == != < <= > >=";

impl Operator {
    /// Returns whether the operator is a comparison.
    pub(crate) fn is_comparison(self) -> bool {
        !matches!(self, Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Modulo | Self::Power)
    }
}

/// Rule for matching the series of the two sides of a binary operator.
#[derive(Debug)]
pub(crate) struct Matching {
    /// True if series match on the listed labels; false if they match on all other labels.
    pub(crate) on: bool,
    pub(crate) labels: Vec<String>,
    pub(crate) cardinality: Cardinality,
}

/// Number of series of one side that may match one series of the other side.
#[derive(Debug)]
pub(crate) enum Cardinality {
    OneToOne,
    /// `group_left`: many series on the left match one on the right. The listed labels are copied from the right.
    ManyToOne(Vec<String>),
    /// `group_right`: many series on the right match one on the left. The listed labels are copied from the left.
    OneToMany(Vec<String>),
}
