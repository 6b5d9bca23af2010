//! Commands that query or change a running varve: over HTTP, or over the ports of its nodes (`cluster`).

pub(crate) mod admin;
mod cluster;
mod destination;
pub(crate) mod flamegraph;
mod output;
mod printable;
pub(crate) mod query;
mod server;
mod table;
pub(crate) mod upload;
mod wrong_port;

pub(crate) use self::output::print;
pub(crate) use self::printable::printable;
