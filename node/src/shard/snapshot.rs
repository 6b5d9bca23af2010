//! Snapshots: the state of a shard, as it is sent to a member of the group for which the log is not kept long enough.
//!
//! The sender leases a checkpoint (`lease`), describes it (`manifest`) and serves its files (`sender`) at a limited
//! rate (`rate`). The receiver pulls the files into a staging folder and checks them (`receiver`). Then it makes them
//! the state of the shard (`install`).
//!
//! Invariant: the receiver's present state is untouched until all of a snapshot is checked and on disk.

pub(crate) mod error;
pub(crate) mod install;
pub(crate) mod lease;
pub(crate) mod manifest;
mod rate;
pub(crate) mod receiver;
pub(crate) mod sender;

#[cfg(test)]
mod tests;
