//! Connections to the gRPC port of a node, with or without mutual TLS: listening, dialing, and the role of the peer.
//!
//! # Promise
//! - With TLS, both ends have a certificate of the cluster's CA, and only TLS 1.3 is spoken.
//!   A peer's [`Role`] follows from its certificate alone.
//! - A connection that is refused gets a reason that says what to do, at both ends.
//! - Files that change on disk are used for new connections; open connections continue.
//! # Limits
//! The number and the duration of handshakes are bounded. The crate knows no service and no token.
//! # Read in this order
//! `role` (who a certificate is for), `credentials` (the files), `fault` (texts of TLS errors), `incoming` (the
//! server's side), `dialer` (the client's side).

mod connection;
mod credentials;
mod dialer;
mod fault;
mod incoming;
mod refusal_log;
mod role;

pub use connection::{Connection, peer_role, refuse_admin, require_node};
pub use credentials::{Credentials, CredentialsError, TlsFiles};
pub use dialer::{AddressError, DialError, Dialer};
pub use incoming::incoming;
pub use role::{Role, RoleError};
