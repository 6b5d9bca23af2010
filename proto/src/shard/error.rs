//! Errors of requests to shards and of their responses: they cannot be decoded, or are too large.

use crate::formats::DefinitionsError;
use crate::tenant::TenantIdError;

/// The error of a request or a response that contradicts itself.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// The tenant name is invalid.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// The definitions are inconsistent.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// Fields contradict each other or exceed a limit. The text says in which way.
    #[error("selection: {0}")]
    Inconsistent(&'static str),
}

/// The error of a response that exceeds a limit. A shard returns it for one response, and a router for all responses to
/// one selection together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseTooLarge {
    /// There are too many sums.
    #[error(
        "the response needs more than {max} sums (group x step x stack): use a shorter range, a longer step or fewer \
         groups"
    )]
    Cells {
        /// Largest allowed number of sums.
        max: usize,
    },
    /// The tree of stacks has too many nodes.
    #[error("the response needs more than {max} frames in all stacks: use a shorter range or fewer services")]
    Nodes {
        /// Largest allowed number of nodes.
        max: usize,
    },
    /// The labels of the groups are too large.
    #[error("the response needs more than {max} bytes of labels: use a shorter range or fewer groups")]
    GroupBytes {
        /// Largest allowed size, in bytes.
        max: usize,
    },
}
