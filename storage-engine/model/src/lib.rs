//! A plain model of the storage engine: the integration tests compare the engine's answers with the model's.
//!
//! - [`samples`]: generated samples, and batches of them.
//! - [`steps`]: generated steps, such as appends, flushes, crashes and deletions.
//! - [`rows`]: the samples that an engine must hold, as a plain list.
//! - [`world`]: an engine, its log and its rows, which take steps together.
//! - [`answers`]: generated queries, and answers of the engine and of the model in one form.
//! - [`alike`]: two stacks that a reference in the log cannot tell apart.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, and its helpers with it")]

pub mod alike;
pub mod answers;
pub mod rows;
pub mod samples;
pub mod steps;
pub mod world;
