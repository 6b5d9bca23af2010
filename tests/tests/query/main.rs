//! Tests of queries: PromQL, flame graphs, names of frames, and errors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod frames;
mod http_errors;
mod known_faults;
mod promql;
mod shards;
mod symbols;
