//! The router, which receives pushes, sends them to shards, and serves queries.
//!
//! The router has no state except caches.
//!
//! # Read in this order
//! A push: `api/push` (HTTP and gRPC) → [`ingest`] (its steps) → [`nodes`].
//! A query: `api` → [`query`] → [`nodes`] → `symbol-store`. Access control and limits of tenants: [`auth`].

pub mod api;
pub mod auth;
pub mod connection;
pub mod ingest;
mod json;
pub mod nodes;
mod planted;
pub mod query;
