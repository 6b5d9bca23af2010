//! Roles of a process: node, router, agent, and all of them in `varve up`.
//!
//! A role binds its ports, opens its parts in the order in which data flows, serves until SIGTERM, and stops its
//! parts in the opposite order, so that requests in flight finish or are refused.

pub(crate) mod agent;
mod listen;
pub(crate) mod node;
mod operations;
mod receiver;
pub(crate) mod router;
mod servers;
mod symbols;
pub(crate) mod up;

pub(crate) use servers::{StopSignals, block_on, block_on_runtime};
pub(crate) use symbols::{CONVERT_DEBUG_FILE, open_symbols};
