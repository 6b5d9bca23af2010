//! Selections: the series, times and stacks of a query, and the responses of the shards that hold them.

mod deletion;
pub(crate) mod fetch;
pub(crate) mod labels;
pub(crate) mod missing;
pub(crate) mod resolve;
pub(crate) mod selector;
