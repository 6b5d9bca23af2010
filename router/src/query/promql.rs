//! PromQL over profiles. Parses a query, plans it, loads the samples of its selectors, and evaluates its operators.

pub(crate) mod aggregate;
mod binary;
mod budget;
pub(crate) mod evaluate;
pub(crate) mod expr;
pub(crate) mod fold;
pub(crate) mod parse;
mod plan;
pub(crate) mod query;
mod range_function;
pub(crate) mod value;
mod vector_matching;
