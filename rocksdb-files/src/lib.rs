//! Checks and repairs of RocksDB's own files, before RocksDB opens them.
//!
//! # Promise
//! Only the torn end of RocksDB's list of files is truncated. A file with any other damage is reported and not changed.
//! # Limits
//! This crate opens no database and does not interpret the content of records.

pub mod manifest;
pub mod record_file;
