//! Tests of tenants: rights of tokens on all routes, limits, what policies store, administration, and rotation of
//! tokens under load.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod administration;
mod limits;
mod policy;
mod rotation;
mod routes;
