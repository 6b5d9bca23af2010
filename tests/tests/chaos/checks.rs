//! The checks of a row: during the faults by readers and comparisons of members, and after them by the oracle.

pub(crate) mod oracle;
pub(crate) mod readers;
pub(crate) mod replicas;
pub(crate) mod visible;
