//! Checks and repairs of RocksDB's own files, before RocksDB opens them.
//!
//! # Promise
//! Nothing is truncated but the torn end of a list of files. Any other damage stays, and is reported.
//! # Does not
//! Open a database, or know what is stored in it.

pub mod manifest;
pub mod record_file;
