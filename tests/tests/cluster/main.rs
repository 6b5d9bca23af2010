//! Tests of clusters: killed nodes, nodes that lost their data, and debug files that several routers share.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod debug_files;
mod kills;
mod lost_directory;
