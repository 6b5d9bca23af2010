//! Errors of queries.

use proto::{ProfileType, ResponseTooLarge};
use tonic::Code;

use crate::auth::tenants::Exceeded;
use crate::nodes::NodesError;
use crate::query::limits;

/// The error of a query. Each text tells the caller what to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    /// The text is not PromQL.
    #[error("the query cannot be parsed: {problem}")]
    Syntax {
        /// Error text of the parser.
        problem: String,
    },
    /// The query exceeds a limit.
    #[error("the query has more than {max} {what}: split it")]
    TooComplex {
        /// Name of the counted items, in the plural.
        what: &'static str,
        /// Largest allowed number of items.
        max: usize,
    },
    /// A regular expression is invalid or needs too much memory.
    #[error("{pattern:?} is not a usable regular expression: {source}")]
    BadRegex {
        /// Text of the regular expression.
        pattern: String,
        /// Fault in the regular expression.
        source: Box<regex::Error>,
    },
    /// The PromQL is valid, but not supported yet.
    #[error("{feature} is not supported yet; supported are {supported}")]
    Unsupported {
        /// Name of the unsupported feature.
        feature: String,
        /// Names of the supported features of the same kind.
        supported: &'static str,
    },
    /// A duration or time is out of range.
    #[error(
        "{what} is out of range: ranges are longer than 0, offsets and ranges at most 100 years, times from \
         1970 to 2262"
    )]
    TimeOutOfRange {
        /// Name of the duration or time.
        what: &'static str,
    },
    /// Several profile types have the short name that the selector uses.
    #[error("{name:?} is ambiguous here, use one of: {}", list(types))]
    AmbiguousName {
        /// Short name in the selector.
        name: String,
        /// Profile types with that short name, sorted.
        types: Vec<ProfileType>,
    },
    /// The selector of a flame graph covers several profile types.
    #[error(
        "the selector covers several profile types, and a flame graph shows one: \
         add a matcher __profile_type__=\"...\" with one of: {}",
        list(types)
    )]
    SeveralTypes {
        /// Profile types that the selector covers, sorted.
        types: Vec<ProfileType>,
    },
    /// A function that adds values over time is applied to a gauge.
    #[error(
        "{profile_type} is a gauge, whose values do not add up over time, so {function} of it has no meaning: \
         use last_over_time, avg_over_time, min_over_time or max_over_time, or exclude gauges with a matcher on \
         __profile_type__"
    )]
    GaugeSummed {
        /// Name of the function.
        function: &'static str,
        /// Profile type of the gauge.
        profile_type: Box<ProfileType>,
    },
    /// The series of the two sides of a binary operator cannot be matched.
    #[error("{0}")]
    Matching(MatchingProblem),
    /// The parameter of an aggregation is not a usable number.
    #[error("the parameter of {operator} is {value}: give a number that fits 64 bits")]
    BadParameter {
        /// Name of the aggregation.
        operator: &'static str,
        /// Value of the parameter.
        value: f64,
    },
    /// The response exceeds a limit.
    #[error(
        "the response needs more than {max} {what}: narrow the selector or the range, use a longer step, or \
         group by fewer labels"
    )]
    TooLarge {
        /// Name of the counted items, in the plural.
        what: &'static str,
        /// Largest allowed number of items.
        max: usize,
    },
    /// The responses of the shards exceed a limit together.
    #[error(transparent)]
    ResponseTooLarge(#[from] ResponseTooLarge),
    /// A sum does not fit in the number type of the response's format.
    #[error("a stack's sum does not fit the 64 bits of a pprof value: narrow the selector or the range")]
    ValueTooLarge,
    /// A label of stacks is used to select series.
    #[error("{label} is a stack label and cannot select series: remove it")]
    StackLabelInMatch {
        /// Name of the label.
        label: &'static str,
    },
    /// New locations kept appearing in shards while stacks were selected by name.
    #[error(
        "the stacks of this range keep changing while they are searched by name: try again in a moment, or use \
         a shorter range"
    )]
    StacksKeepChanging,
    /// The tenant runs as many queries as it may.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// A shard failed.
    #[error(transparent)]
    Nodes(Box<NodesError>),
    /// Several shards did not answer, and the caller accepts no partial response, or no shard answered at all.
    #[error("{} of {asked} shards did not answer: {}; {first}", shards.len(), numbers(shards))]
    ShardsMissing {
        /// Numbers of the shards that did not answer, ascending.
        shards: Vec<u32>,
        /// Number of shards that were asked.
        asked: usize,
        /// Error of the first of these shards.
        first: Box<NodesError>,
    },
    /// The client has disconnected.
    #[error("the query was cancelled")]
    Cancelled,
    /// A thread could not be started, or it panicked. The log has the details.
    #[error("the query could not be run: see the server's log")]
    Broken,
}

/// Reason why the series of two operands cannot be matched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchingProblem {
    /// Several series of one side have the same matching labels.
    #[error(
        "several series of the {side} side have {labels}, but matching is one to one: use on(...), ignoring(...) or \
         group_left / group_right, or aggregate that side"
    )]
    Duplicate {
        /// Side with these series: `left` or `right`.
        side: &'static str,
        /// Matching labels of these series.
        labels: String,
    },
    /// Several results have the same labels.
    #[error("several results of the operator have the labels {labels}: match on more labels")]
    SameResult {
        /// Labels of these results.
        labels: String,
    },
}

/// Kind of a query error, as the HTTP API reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request is invalid.
    BadData,
    /// The request is valid, but the query cannot be executed.
    Execution,
    /// The query cannot be run now; a retry may succeed.
    Unavailable,
    /// The tenant has reached a limit at this moment.
    Overloaded,
    /// The server has a fault.
    Internal,
}

impl QueryError {
    /// Returns the kind of this error.
    #[must_use]
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Syntax { .. } | Self::TooComplex { .. } | Self::BadRegex { .. } | Self::TimeOutOfRange { .. } => {
                ErrorKind::BadData
            }
            Self::StackLabelInMatch { .. } => ErrorKind::BadData,
            Self::Nodes(error) => kind_of(error.code()),
            Self::Exceeded(_) => ErrorKind::Overloaded,
            Self::Broken => ErrorKind::Internal,
            Self::Cancelled | Self::StacksKeepChanging | Self::ShardsMissing { .. } => ErrorKind::Unavailable,
            _ => ErrorKind::Execution,
        }
    }

    /// Divides off the error of a shard that did not answer.
    ///
    /// # Errors
    /// Returns `self` if the shard answered, or if the fault is not in one shard.
    pub(crate) fn silent_shard(self) -> Result<(u32, Box<NodesError>), Self> {
        match self {
            Self::Nodes(error) => match error.silent_shard() {
                Some(shard) => Ok((shard, error)),
                None => Err(Self::Nodes(error)),
            },
            other => Err(other),
        }
    }

    /// Returns whether a node refused the query because its placement is another one.
    pub(crate) fn is_misplaced(&self) -> bool {
        matches!(self, Self::Nodes(error) if error.is_misplaced())
    }

    /// Returns the error of more than `max` sums in the responses of shards.
    pub(crate) fn too_many_cells(max: usize) -> Self {
        Self::ResponseTooLarge(ResponseTooLarge::Cells { max })
    }

    /// Returns the error of too many values in memory.
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

/// Returns the kind of an error that a node returned with this code.
fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument => ErrorKind::BadData,
        // The query has too many sums, or the response is larger than the limit for messages.
        Code::ResourceExhausted | Code::OutOfRange => ErrorKind::Execution,
        // The node is not ready, or the shard is moving to another node.
        Code::Unavailable | Code::NotFound | Code::FailedPrecondition | Code::DeadlineExceeded | Code::Aborted => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Internal,
    }
}

fn numbers(shards: &[u32]) -> String {
    shards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn list(types: &[ProfileType]) -> String {
    types.iter().map(ProfileType::to_string).collect::<Vec<_>>().join(", ")
}
