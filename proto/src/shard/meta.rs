//! The state of the meta group (shard 0), and the commands that change it: nodes, shards, placement, tenants.
//!
//! Routers and nodes hold a copy of the [`State`], and read it again when its revision grows. Only the meta group
//! applies a [`Command`].
//!
//! Invariant: decoding returns a state or a command that keeps all limits, or an error. The memory that decoding takes
//! is bounded by the limits on bytes.

mod cluster;
mod command;
mod error;
mod state;
mod tenant;

pub use self::cluster::{CLUSTER_METADATA, ClusterId, DirectoryId, Member, Node, Shard};
pub use self::command::Command;
pub use self::error::MetaError;
pub use self::state::{Access, DEFAULT_CLASS, State, TokenError};
pub(crate) use self::tenant::check_dropped_labels;
pub use self::tenant::{Limits, Policy, Retention, Role, Tenant, TimeResolution, Token, TokenHash};

#[cfg(test)]
mod tests;
