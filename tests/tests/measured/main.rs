//! Tests that measure time, CPU or memory, or sample the host.
//!
//! Nothing else may run on the machine at the same time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod agent_spool;
mod browser;
mod cluster_ui;
mod end_to_end;
mod failover;
mod idle_shards;
mod latency;
mod log_writes;
mod noisy_neighbour;
mod readiness;
mod record;
mod sixteen_shards;
