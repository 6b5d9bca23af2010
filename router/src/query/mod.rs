//! The read path: PromQL over profiles, flame graphs, and what series there are.
//!
//! # Read in this order
//! `expr` (what a query is) → `parse`, `plan` → `selector`, `resolve` (what is asked of shards) → `window` (time) →
//! `frame`, `naming` (`abort_marker`), `namer`, `names`, `shelf` (what locations are called), `stack_label`, `stack_values` → `asking` (of shards) → `fold` (answers to series) → `aggregate`, `binary`,
//! `vector_matching`, `evaluate` → `missing`, `reader`; `deletion`. Flame graphs: `stack_tree` (`weights`) → `prune` → `sample_labels`, `flamegraph` and its formats.

mod abort_marker;
pub(crate) mod aggregate;
mod asking;
mod binary;
pub(crate) mod catalog;
mod deletion;
mod error;
pub(crate) mod evaluate;
mod expr;
pub(crate) mod flamegraph;
mod flamegraph_json;
mod fold;
mod folded;
mod frame;
pub(crate) mod labels;
mod limits;
pub(crate) mod missing;
mod namer;
mod names;
mod naming;
mod parse;
mod plan;
mod pprof;
mod prune;
pub(crate) mod reader;
mod resolve;
mod room;
pub(crate) mod run;
mod sample_labels;
mod selector;
mod shelf;
mod stack_label;
mod stack_tree;
mod stack_values;
mod symbolization;
mod vector_matching;
mod weights;
pub(crate) mod window;

pub(crate) use error::{ErrorKind, QueryError};
pub use reader::Reader;

#[cfg(test)]
mod tests;
