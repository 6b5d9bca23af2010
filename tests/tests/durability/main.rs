//! Kills, stops, failing syncs and full disks: nothing that was acknowledged is lost.
//!
//! These tests load the machine, but measure no time, so other test binaries may run at the same time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod crash;
mod damage;
mod disk;
mod log_damage;
mod restart;
mod stop;
mod sync;
