//! Tests of whole nodes: requests, restarts, failing and full disks, retention, shards, changes of members.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking and prints figures, and its helpers with it"
)]

mod damage;
mod disk_full;
mod durability;
mod lagging;
mod members;
mod meta_log;
mod requests;
mod retention;
mod shards;
mod support;
