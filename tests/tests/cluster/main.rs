//! Tests of clusters of several nodes: nodes that lost their data.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod lost_directory;
