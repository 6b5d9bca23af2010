//! The symbol store against real compilers, linkers, processes and damaged files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod described;
mod hostile;
mod ladder;
mod live;
mod oracle;
mod rights;
mod upload;
mod workshop;
