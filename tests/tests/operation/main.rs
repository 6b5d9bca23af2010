//! Tests of the operation of a varve: access, TLS, commands, deletion, metrics, deployment, and the system clock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod access;
mod clock_jump;
mod command_line;
mod deletion;
mod deploy;
mod doctor;
mod metrics;
mod tls;
