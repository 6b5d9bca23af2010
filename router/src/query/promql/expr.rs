//! A query as it is evaluated: PromQL without what is not supported, all times in nanoseconds.
//!
//! Selectors, with the function around each, are the leaves; they are loaded first, each with one or two calls to the shards,
//! and what stands above them is reckoned from their values at each step.

use crate::query::selection::selector::Selector;

/// A whole query.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) root: Expr,
    /// What `Expr::Leaf` refers to.
    pub(crate) leaves: Vec<Leaf>,
}

/// An operator and its operands.
#[derive(Debug)]
pub(crate) enum Expr {
    Number(f64),
    /// Index into the leaves.
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
        /// Comparisons answer 0 or 1 instead of leaving out.
        returns_bool: bool,
    },
}

/// A selector, and the function over the range of time that it selects.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) function: Function,
    pub(crate) selector: Selector,
    /// Length of the window, nanoseconds, above 0; an instant selector's is the lookback.
    pub(crate) range_ns: i64,
    /// By how much the window is earlier.
    pub(crate) offset_ns: i64,
    pub(crate) at: Option<At>,
    /// What one series of the leaf is.
    pub(crate) group: Group,
}

/// What `@` fixes the time to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Start,
    End,
    Time(i64),
}

/// What of the samples makes a series of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// The stored series, told apart further by these labels: sample attributes, and labels that look into stacks.
    Series(Vec<String>),
    /// The values of these labels: the sum above the leaf is worked out with the leaf, exactly, and mostly in the shards.
    By(Vec<String>),
}

/// What is made of the samples in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    /// An instant selector: the last point.
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

/// What errors list.
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

    /// As it is written.
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

    /// The function of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|function| function.name() == name)
    }

    /// Whether it is a sum over all samples of the window; others see points.
    pub(crate) fn is_linear(self) -> bool {
        matches!(self, Self::Rate | Self::Increase | Self::SumOverTime)
    }

    /// Whether results keep the metric's name: they are values that the series has, and not something made of them.
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

/// What errors list.
pub(crate) const AGGREGATIONS: &str = "sum, avg, min, max, count, topk, bottomk";

impl Aggregation {
    /// As it is written.
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

    /// Whether it passes some of its operand's series on, labels and all.
    pub(crate) fn selects(self) -> bool {
        matches!(self, Self::TopK | Self::BottomK)
    }
}

/// Which labels tell the groups of an aggregation apart.
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

/// What errors list.
pub(crate) const OPERATORS: &str = "+ - * / % ^ == != < <= > >=";

impl Operator {
    /// Whether it compares.
    pub(crate) fn is_comparison(self) -> bool {
        !matches!(self, Self::Add | Self::Subtract | Self::Multiply | Self::Divide | Self::Modulo | Self::Power)
    }
}

/// Which series of two sides belong together.
#[derive(Debug)]
pub(crate) struct Matching {
    /// Whether series match on these labels, or on all but these.
    pub(crate) on: bool,
    pub(crate) labels: Vec<String>,
    pub(crate) cardinality: Cardinality,
}

/// How many series of one side may match one of the other.
#[derive(Debug)]
pub(crate) enum Cardinality {
    OneToOne,
    /// `group_left`: many on the left; these labels come from the right.
    ManyToOne(Vec<String>),
    /// `group_right`: many on the right; these labels come from the left.
    OneToMany(Vec<String>),
}
