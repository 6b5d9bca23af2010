//! Tests of connections with TLS, over real sockets and with generated certificates.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod addresses;
mod certificates;
mod files;
mod refusals;
mod rotation;
mod service;
