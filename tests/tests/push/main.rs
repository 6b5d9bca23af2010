//! Tests of pushes: every format is stored exactly, and invalid input is refused with a reason.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod many_shards;
mod payloads;
mod pprof_meaning;
mod sender_errors;
mod valid_pushes;
