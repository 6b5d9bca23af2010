//! The agent against this kernel: real programs, real samples, a real OTLP server.
//!
//! These tests need root, or CAP_BPF and CAP_PERFMON. Where they cannot run, they report why.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod goroutines;
mod off_cpu;
mod sampling;
mod shares;
mod short_lived;
mod support;
mod unwinding;
