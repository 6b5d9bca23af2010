//! Unwind tables: the rules by which BPF unwinds the stacks of a file's code.
//!
//! Read in this order: `rule` (how one frame leads to its caller), `table` (which rule holds at which address, as BPF
//! reads it), `call_frames` (rules from `.eh_frame` and `.debug_frame`), `go_frames` (from Go's own table),
//! `instructions` (from code that nothing describes), `file_table` (all of these for one file), `bpf_tables` (the
//! tables that BPF has).

pub(crate) mod bpf_tables;
pub(crate) mod call_frames;
mod file_table;
pub(crate) mod go_frames;
#[cfg(target_arch = "x86_64")]
mod instructions;
pub(crate) mod rule;
pub(crate) mod table;
#[cfg(test)]
mod tests;
