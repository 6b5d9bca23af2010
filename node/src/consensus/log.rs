//! The Raft logs of all shards on disk: writing, group commit, purging, and opening after a shutdown or a crash.

mod database;
mod families;
mod keys;
mod recovery;
#[cfg(test)]
pub(crate) mod simulated;
mod store;
mod synced_mark;
mod tables;
mod tail;
#[cfg(test)]
mod tests;
mod write_thread;

pub(crate) use database::{LogDatabase, random_identity};
pub(crate) use store::LogStore;
pub(crate) use tables::Terms;
