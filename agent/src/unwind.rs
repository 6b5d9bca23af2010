//! Unwind tables: what the BPF unwinder needs to know of an executable file, made from the file's call frame information.
//!
//! Read in this order: `rule` (how one frame leads to its caller's) → `table` (which rule holds where, as BPF reads it) → `call_frames`
//! (from `.eh_frame` and `.debug_frame`) → `go_frames` (from Go's own table) → `instructions` (of code that nothing describes) → `resident` (where a file's are found, and which tables BPF has).

pub(crate) mod call_frames;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod elsewhere_tests;
pub(crate) mod go_frames;
#[cfg(target_arch = "x86_64")]
mod instructions;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod native_tests;
pub(crate) mod resident;
pub(crate) mod rule;
pub(crate) mod table;
