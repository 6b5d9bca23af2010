//! The error of reading a request to a shard, or its response.

use crate::formats::DefinitionsError;
use crate::tenant::TenantIdError;

/// A selection or an answer that contradicts itself.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// See there.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// See there.
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    /// What does not add up.
    #[error("selection: {0}")]
    Inconsistent(&'static str),
}
