//! Selections: the series, times and stacks of a query. Sends them to the shards and receives the responses.

pub(in crate::query) mod asked;
pub(crate) mod coverage;
mod deletion;
pub(crate) mod fetch;
pub(crate) mod labels;
pub(crate) mod missing;
mod newest;
pub(crate) mod pruning;
pub(crate) mod resolve;
pub(crate) mod selector;
