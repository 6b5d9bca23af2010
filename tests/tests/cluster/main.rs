//! Tests of clusters of several nodes: nodes that lost their data, shards without a majority, epochs, senders, and
//! debug files that several routers share.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod debug_files;
mod epochs;
mod large_snapshot;
mod lost_directory;
mod no_quorum;
mod one_bad_shard;
mod replaced_disk;
mod senders;
mod surviving_leader;
