//! Helpers of the whole-system tests in `tests/`: the tests run the binary, push to it over the network, and compare
//! its responses with an independent decoding of the pushed bytes.
//!
//! # Limits
//! The helpers do not link the router, the node or the storage engine, and use none of their decoders. They report
//! every test that is skipped.
//! # Modules
//! - [`server`]: a varve in one process or in three. [`cluster`]: a cluster of several nodes. [`http`], [`grpc`],
//!   [`client`]: requests to a varve. [`shared`]: files outside of this crate.
//! - [`cluster::members`]: the leaders of a cluster's shards, and the contents of their members.
//! - [`payload`]: payloads and independent decoders. [`stored`]: the samples that a node has.
//! - [`load`]: pushes with serial numbers, and their outcomes. [`payload::damaged`]: invalid payloads. [`program`],
//!   [`wrong_clock`]: compiled C programs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, and its helpers with it"
)]

pub mod client;
pub mod cluster;
pub mod grpc;
pub mod http;
pub mod load;
pub mod payload;
pub mod program;
pub mod server;
pub mod shared;
pub mod stored;
pub mod wrong_clock;

pub use testkit::{report, small_disk};
