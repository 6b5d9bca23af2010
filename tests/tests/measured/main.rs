//! Tests that measure time, CPU or memory, or sample the host. They need the machine to themselves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod agent_spool;
mod browser;
mod end_to_end;
mod latency;
mod readiness;
mod record;
