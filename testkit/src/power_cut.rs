//! Power cuts: what a disk may hold after one, computed from the recorded file operations of a real program.
//!
//! [`recorder`] records every operation on files, and [`disk`] computes the files that a power cut may leave.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking, and its helpers with it")]

mod calls;
pub mod disk;
pub mod recorder;
