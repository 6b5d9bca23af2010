//! The router: takes pushes in, places them on shards, and answers queries. It keeps nothing.
//!
//! # Read in this order
//! A push: [`push`] → `body` → `admission` → `ingest` (any format to the normal form) → `write` (to batches of shards) → [`nodes`].
//! A query: `api` → `query` → [`nodes`] → `symbol-store`. Who may: [`auth`].

mod admission;
pub mod api;
pub mod auth;
mod body;
pub mod connection;
mod ingest;
mod json;
mod known_stacks;
pub mod nodes;
pub mod otlp_grpc;
pub mod push;
pub mod query;
mod refusal_log;
mod rejection;
mod write;
