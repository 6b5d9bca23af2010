//! Test helpers that several crates share. Only tests depend on this crate.
//!
//! - [`report`]: lines that a test prints although it passes, such as why it was skipped.
//! - [`sink`]: an OTLP gRPC server that keeps the requests it receives.
//! - [`workshop`]: programs that real compilers and linkers make in a temporary directory.
//! - [`conformance`]: the rules of OTLP profiles, checked on one request.
//!
//! # Does not
//! Depend on any crate of this workspace but `proto`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, and its helpers with it"
)]

pub mod conformance;
pub mod report;
pub mod sink;
pub mod workshop;
