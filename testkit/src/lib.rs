//! Helpers that tests and benchmarks of several crates share.
//!
//! - [`report`]: lines that a test prints even if it passes, for example the reason why it was skipped.
//! - [`sink`]: an OTLP gRPC server that stores the requests it receives in memory.
//! - [`batches`]: batches of samples for a node. A test recognizes each sample by its time.
//! - [`cost`]: CPU time and memory that a part of a test takes.
//! - [`workshop`]: programs that real compilers and linkers make in a temporary directory.
//! - [`conformance`]: checks of one request against the rules of OTLP profiles.
//! - [`interpreters`]: the installed interpreters of languages.
//! - [`ports`]: free ports for servers under test.
//! - [`power_cut`]: the files that a power cut may leave, from recorded file operations.
//! - [`random`]: pseudorandom numbers that depend only on a seed.
//! - [`small_disk`]: a small file system in memory, for tests in which the disk is full.
//!
//! # Limits
//! This crate depends on no crate of this workspace but `proto`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking, and its helpers with it"
)]

pub mod batches;
pub mod conformance;
pub mod cost;
pub mod interpreters;
pub mod ports;
pub mod power_cut;
pub mod random;
pub mod report;
pub mod sink;
pub mod small_disk;
pub mod workshop;
