//! Reading of ELF files, their debug files, and `/proc/<pid>/maps`, with limits on memory and time. Any process of this
//! host can choose the content of these files, so none is trusted.
//!
//! # Promise
//! No number in a file is trusted: each is checked against [`limits`] before anything is allocated or read. Opening a
//! file has no effect on the file, does not wait, and never leads out of the root directory that the caller names.
//! # Limits
//! This crate has no state and starts no thread.
//! # Read in this order
//! [`open`] → [`maps`] → [`elf`] (headers, build IDs, call frame information) → [`debug_file`] → [`limits`].

pub mod debug_file;
pub mod elf;
pub mod limits;
pub mod maps;
pub mod open;
pub mod vdso;
