//! The tenant, which owns profiles.

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// The name of a tenant: 1 to 64 characters of `[a-zA-Z0-9_-]`, which are safe in paths, keys, labels and logs.
///
/// In a router, only `router/src/auth.rs` makes a tenant name from a request. Nodes receive the name from routers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(Arc<str>);

/// The error of a text that is not a valid tenant name.
#[derive(Debug, thiserror::Error)]
#[error("tenant names have 1 to {} characters of a-z A-Z 0-9 _ -", limits::TENANT_NAME_BYTES_MAX)]
pub struct TenantIdError;

impl TenantId {
    /// Name of the only tenant if no authentication is configured.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self(Arc::from("default"))
    }

    /// Makes a tenant name from a text.
    ///
    /// # Errors
    /// Returns a [`TenantIdError`] unless the text is 1 to 64 allowed characters.
    pub fn new(name: &str) -> Result<Self, TenantIdError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > limits::TENANT_NAME_BYTES_MAX || !name.bytes().all(allowed) {
            return Err(TenantIdError);
        }
        Ok(Self(Arc::from(name)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
