//! Measurements in this process: properties of a mix, the storage engine, a node with its log, and the router's part
//! of a flame graph.

pub(crate) mod flamegraph;
pub(crate) mod node;
pub(crate) mod select;
pub(crate) mod statistics;
pub(crate) mod storage;
