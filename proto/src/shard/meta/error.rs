//! The error of decoding a state or a command of the meta group.

use crate::shard::error::SelectionError;
use crate::tenant::TenantIdError;

/// The error of a state or a command that contradicts itself or exceeds a limit.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// The bytes are not the protobuf message that they should be.
    #[error("not a message of the meta group: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A name of a tenant is invalid.
    #[error(transparent)]
    Tenant(#[from] TenantIdError),
    /// An epoch of the placement is invalid.
    #[error(transparent)]
    Placement(#[from] SelectionError),
    /// A field is invalid. The text names the fault and the limit.
    #[error("{0}")]
    Invalid(&'static str),
}
