//! Measurements of parts of varve in this process: the storage engine, a node with its log, and a router's flame graph.
//! Also statistics of a mix, which is a synthetic fleet of recorded programs.

pub(crate) mod flamegraph;
pub(crate) mod node;
pub(crate) mod select;
pub(crate) mod statistics;
pub(crate) mod storage;
