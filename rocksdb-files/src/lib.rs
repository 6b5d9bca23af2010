//! Checks and repairs of RocksDB's own files, before RocksDB opens them.
//!
//! # Promise
//! Only the torn end of a list of files is truncated. Any other damage is reported, and the file is not changed.
//! # Limits
//! This crate opens no database, and knows nothing about its content.

pub mod manifest;
pub mod record_file;
