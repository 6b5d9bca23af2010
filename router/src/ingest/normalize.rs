//! Normal form: builds [`proto::Push`] from the messages of any format, within limits.

pub(crate) mod builder;
pub(crate) mod otlp;
pub(crate) mod pprof;
pub(crate) mod stacks;
