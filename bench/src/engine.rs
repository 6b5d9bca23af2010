//! Measurements within the process of the bench program: properties of a mix, the storage engine, a node with its log,
//! and a router's flame graph.

pub(crate) mod flamegraph;
pub(crate) mod node;
pub(crate) mod select;
pub(crate) mod statistics;
pub(crate) mod storage;
