//! Tests of the source itself: layout, words, dependencies between crates, and documents that name files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod dependency_edges;
mod documents;
mod files;
mod layout;
mod words;
