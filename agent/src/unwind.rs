//! Unwind tables: the rules by which BPF unwinds the stacks of a file's code.
//!
//! # Read in this order
//! - `rule`: how one frame leads to its caller.
//! - `table`: the rule of each address, as BPF reads it.
//! - `call_frames`: rules from `.eh_frame` and `.debug_frame`.
//! - `go_frames`: rules from Go's own table.
//! - `instructions`: rules for code without unwind information, from its instructions.
//! - `v8_builtins`: rules for the builtin functions of V8, from their instructions.
//! - `file_table`: the table of one file, with the rules from all these sources.
//! - `bpf_tables`: the tables that are loaded into BPF maps.

pub(crate) mod bpf_tables;
pub(crate) mod call_frames;
mod file_table;
pub(crate) mod go_frames;
#[cfg(target_arch = "x86_64")]
mod instructions;
pub(crate) mod rule;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(target_arch = "x86_64")]
mod v8_builtins;
