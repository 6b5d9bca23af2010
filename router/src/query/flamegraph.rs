//! Flame graphs. Merges stacks into one tree, prunes the tree, and writes it as JSON, folded stacks or pprof.

mod folded;
mod json;
mod pprof;
mod prune;
pub(crate) mod request;
mod sample_labels;
mod stack_tree;
pub(crate) mod summary;
mod symbolization;
mod weights;
