//! Roles of a process: node, router, agent, and all of them in `varve up`.
//!
//! A role binds its ports, opens its parts, serves until SIGTERM or SIGINT, and stops its parts. Profiles flow from
//! agent to router to node. The parts are opened in the opposite order, and stopped in this order, so that a part stops
//! only after all parts that send to it.

pub(crate) mod agent;
mod listen;
pub(crate) mod node;
mod operations;
mod receiver;
pub(crate) mod router;
mod servers;
mod symbols;
mod tls;
pub(crate) mod up;

pub(crate) use servers::{StopSignals, block_on, block_on_runtime};
pub(crate) use symbols::{CONVERT_DEBUG_FILE, open_symbols_of_host};
pub(crate) use tls::credentials;
