//! Tests of the symbol store with the output of real compilers and linkers, with running processes, and with damaged
//! files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod bucket;
mod described;
mod hostile;
mod ladder;
mod live;
mod oracle;
mod rights;
mod upload;
mod workshop;
