//! Tests of clusters of several nodes: killed nodes, and nodes that lost their data.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod kills;
mod lost_directory;
mod replaced_disk;
