//! Why a query has no answer.

use proto::{ProfileType, limits as shared};
use tonic::Code;

use crate::nodes::NodesError;
use crate::query::limits;

/// See the module. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// Not PromQL; the parser's words.
    #[error("the query cannot be parsed: {problem}")]
    Syntax {
        /// What the parser says.
        problem: String,
    },
    /// A bound of what a query may be.
    #[error("the query has more than {max} {what}: split it")]
    TooComplex {
        /// Which bound, a plural.
        what: &'static str,
        /// How many are allowed.
        max: usize,
    },
    /// A regular expression that is wrong or needs too much memory.
    #[error("{pattern:?} is no usable regular expression: {source}")]
    BadRegex {
        /// The expression.
        pattern: String,
        /// What is wrong with it.
        source: Box<regex::Error>,
    },
    /// PromQL that is not built yet.
    #[error("{feature} is not supported yet; supported are {supported}")]
    Unsupported {
        /// As it is written.
        feature: String,
        /// What there is of its kind.
        supported: &'static str,
    },
    /// A duration or time that cannot be reckoned with.
    #[error(
        "{what} is out of range: ranges are longer than 0, offsets and ranges at most 100 years, times from 1970 to 2262"
    )]
    TimeOutOfRange {
        /// Which.
        what: &'static str,
    },
    /// A short name that several types have.
    #[error("{name:?} is ambiguous here, use one of: {}", list(types))]
    AmbiguousName {
        /// The short name.
        name: String,
        /// All types that it may be, sorted.
        types: Vec<ProfileType>,
    },
    /// A flame graph of more than one type.
    #[error(
        "the selector covers several profile types, and a flame graph shows one: add a matcher __profile_type__=\"...\" with one of: {}",
        list(types)
    )]
    SeveralTypes {
        /// All types that it covers, sorted.
        types: Vec<ProfileType>,
    },
    /// A gauge in a function that adds up over time.
    #[error(
        "{profile_type} is a gauge, which never adds up over time, so {function} of it means nothing: use last_over_time, avg_over_time, min_over_time or max_over_time, or leave gauges out by a matcher on __profile_type__"
    )]
    GaugeSummed {
        /// The function.
        function: &'static str,
        /// The gauge.
        profile_type: Box<ProfileType>,
    },
    /// Vector matching that is not one to one.
    #[error("{0}")]
    Matching(MatchingProblem),
    /// A parameter of an aggregation that is no number.
    #[error("the parameter of {operator} is {value}: give a number that fits 64 bits")]
    BadParameter {
        /// The aggregation.
        operator: &'static str,
        /// What was given.
        value: f64,
    },
    /// A bound of what an answer may be.
    #[error(
        "the answer needs more than {max} {what}: narrow the selector or the time, use a longer step, or group by less"
    )]
    TooLarge {
        /// What there is too much of, a plural.
        what: &'static str,
        /// How many are allowed.
        max: usize,
    },
    /// A sum that the format cannot hold.
    #[error("a stack's sum does not fit the 64 bits of a pprof value: narrow the selector or the time")]
    ValueTooLarge,
    /// A label that looks into stacks where only series are asked for.
    #[error("{label} looks into the stacks and cannot select series: leave it out")]
    StackLabelInMatch {
        /// The label.
        label: &'static str,
    },
    /// New locations came into stacks as fast as they were asked for.
    #[error(
        "the stacks of this time keep changing while they are looked through by name: try again in a moment, or ask for less time"
    )]
    StacksKeepChanging,
    /// A shard did not answer.
    #[error(transparent)]
    Nodes(Box<NodesError>),
    /// Who asked is gone.
    #[error("the query was cancelled")]
    Cancelled,
    /// A thread could not be started or ended by a panic, which the log has.
    #[error("the query could not be worked on: see the server's log")]
    Broken,
}

/// What is wrong with the sides of a binary operator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchingProblem {
    /// Two series of one side match one of the other.
    #[error(
        "several series of the {side} side have {labels}, but matching is one to one: use on(...), ignoring(...) or group_left / group_right, or aggregate that side"
    )]
    Duplicate {
        /// `left` or `right`.
        side: &'static str,
        /// The labels on which they match.
        labels: String,
    },
    /// Two results have the same labels.
    #[error("several results of the operator have the labels {labels}: match on more labels")]
    SameResult {
        /// Those labels.
        labels: String,
    },
}

/// What kind of failure it is, as the HTTP API tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is wrong.
    BadData,
    /// The query cannot be executed.
    Execution,
    /// Not now: try again.
    Unavailable,
    /// A fault of the server.
    Internal,
}

impl QueryError {
    /// See [`ErrorKind`].
    #[must_use]
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Syntax { .. } | Self::TooComplex { .. } | Self::BadRegex { .. } | Self::TimeOutOfRange { .. } => {
                ErrorKind::BadData
            }
            Self::StackLabelInMatch { .. } => ErrorKind::BadData,
            Self::Nodes(error) => match error.as_ref() {
                NodesError::Refused { status, .. } => kind_of(status.code()),
                NodesError::Unreadable { .. } => ErrorKind::Internal,
            },
            Self::Broken => ErrorKind::Internal,
            Self::Cancelled | Self::StacksKeepChanging => ErrorKind::Unavailable,
            _ => ErrorKind::Execution,
        }
    }

    /// Too many cells, whoever counts them.
    pub(crate) fn too_many_cells() -> Self {
        Self::TooLarge { what: "sums (group x time x stack)", max: shared::QUERY_CELLS_MAX }
    }

    /// Too many values.
    pub(crate) fn too_many_values() -> Self {
        let what = "values (series x steps, and 32 for each series' labels) at one time";
        Self::TooLarge { what, max: limits::QUERY_VALUES_MAX }
    }
}

impl From<NodesError> for QueryError {
    fn from(error: NodesError) -> Self {
        Self::Nodes(Box::new(error))
    }
}

/// What a node's refusal means to who asked.
fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument => ErrorKind::BadData,
        // Too many cells, or an answer that is larger than one message may be.
        Code::ResourceExhausted | Code::OutOfRange => ErrorKind::Execution,
        // Not ready, or the shard is moving to another node.
        Code::Unavailable | Code::NotFound | Code::FailedPrecondition | Code::DeadlineExceeded | Code::Aborted => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Internal,
    }
}

fn list(types: &[ProfileType]) -> String {
    types.iter().map(ProfileType::to_string).collect::<Vec<_>>().join(", ")
}
