//! Measurements of a running varve over the network: ingest, restart, queries.
//!
//! Each measurement compares the responses with the sent samples.

mod client;
pub(crate) mod cluster;
mod history;
mod ingest;
mod query;
mod restart;
mod sending;
pub(crate) mod series;
mod server;
mod totals;
pub(crate) mod up;
mod wide;

pub(crate) use client::Client;
