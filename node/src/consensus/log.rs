//! The Raft logs of all shards on disk: writing, group commit, purging, and opening after a shutdown or a crash.

mod database;
mod families;
mod purged_ranges;
mod recovery;
mod store;
mod sync_thread;
mod synced_mark;
#[cfg(test)]
mod tests;
mod unapplied;

pub(crate) use database::LogDatabase;
pub(crate) use store::LogStore;
