//! The read path, from the text of a query to the response.
//!
//! # Read in this order
//! [`promql`] (parsing and evaluation) → [`selection`] (requests to shards) → [`naming`] (names of the frames in their
//! responses) → [`flamegraph`] (stacks as a tree). `catalog` lists series and labels.

pub(crate) mod catalog;
mod error;
pub(crate) mod flamegraph;
mod limits;
mod naming;
pub(crate) mod promql;
mod reader;
pub(crate) mod run;
pub(crate) mod selection;

pub(crate) use error::{ErrorKind, QueryError};
pub use reader::Reader;

#[cfg(test)]
mod tests;
