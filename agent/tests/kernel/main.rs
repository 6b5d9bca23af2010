//! Tests of the agent with this kernel, real programs, and a real OTLP server.
//!
//! They need root, or CAP_BPF and CAP_PERFMON. If they cannot run, they report the reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

/// Goroutines and spans for which threads work, attributes that programs publish, and containers.
mod context {
    mod attributes;
    mod containers;
    mod goroutines;
    mod spans;
}
mod languages;
mod off_cpu;
mod runtimes;
mod sampling;
mod shares;
mod short_lived;
mod support;
mod unwinding;
