//! Measurements in this process: properties of a mix, the storage engine, and a node with its log.

pub(crate) mod node;
pub(crate) mod select;
pub(crate) mod statistics;
pub(crate) mod storage;
