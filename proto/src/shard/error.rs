//! The error of decoding a request to a shard, or its response.

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
