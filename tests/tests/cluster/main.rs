//! Tests of clusters of several nodes: killed nodes, nodes that lost their data, shards without a majority, epochs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod epochs;
mod kills;
mod lost_directory;
mod no_quorum;
mod replaced_disk;
