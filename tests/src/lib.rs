//! Whole-system proof: what the tests below `tests/` share. They run the binary, push to it over the network, and compare its
//! answers with what they read out of the same bytes themselves.
//!
//! # Does not
//! Link the router, the node or the storage engine; use any of their decoders; skip anything silently.
//! # Read in this order
//! [`server`] (a varve, or three processes of it) → [`http`], [`grpc`] (how it is talked to) → [`wire`], [`otlp`], [`pprof`],
//! [`sample`] (an independent reading of what is pushed) → [`profilers`], [`generated`] (what property tests make up) → [`stored`] (what a node has) → [`damaged`], [`load`] (pushes with serial numbers, and
//! what became of them) → [`program`], [`report`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, and its helpers with it"
)]

pub mod client;
pub mod damaged;
pub mod generated;
pub mod grpc;
pub mod http;
pub mod load;
pub mod otlp;
pub mod otlp_decoded;
pub mod otlp_json;
pub mod pprof;
pub mod profilers;
pub mod program;
pub mod sample;
pub mod server;
pub mod shared;
pub mod stored;
pub mod wire;
pub mod wrong_clock;

pub use testkit::report;
