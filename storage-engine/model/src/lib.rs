//! A plain model of the storage engine: the integration tests compare the engine's answers with the model's.
//!
//! - [`samples`]: generated samples, and batches of them.
//! - [`world`]: an engine, its log, and the list of samples that it must hold.
//! - [`answers`]: generated queries, and answers of the engine and of the model in one form.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, and its helpers with it")]

pub mod answers;
pub mod samples;
pub mod world;
