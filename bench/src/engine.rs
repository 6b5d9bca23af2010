//! Measurements in this process: the storage engine, and a node with its log.

pub(crate) mod node;
pub(crate) mod select;
pub(crate) mod storage;
