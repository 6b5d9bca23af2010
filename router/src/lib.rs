//! The router: takes pushes in, places them on shards, and answers queries. It keeps nothing.
//!
//! # Read in this order
//! A push: `api/push` (HTTP and gRPC) → [`ingest`] (its steps) → [`nodes`].
//! A query: `api` → [`query`] → [`nodes`] → `symbol-store`. Who may: [`auth`].

pub mod api;
pub mod auth;
pub mod connection;
pub mod ingest;
mod json;
pub mod nodes;
pub mod query;
