//! The process: privileges, allocator, logs, and its end.

pub(crate) mod allocator;
pub(crate) mod error_chain;
pub(crate) mod exit;
pub(crate) mod log;
pub(crate) mod open_files;
pub(crate) mod privileges;
mod random;

pub(crate) use self::random::{random_bytes, random_token};
