//! Ruby (MRI) 2.5 to 3.4.
//!
//! [`recognise`] describes the interpreter in a file to BPF, which walks control frames (`ebpf/bpf/runtimes/ruby.h`).
//! [`function`] names their functions: those that are written in Ruby ([`iseq`]), and those in C ([`method`]).

pub(crate) mod function;
pub(crate) mod iseq;
pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;

mod method;
mod objects;

/// Name of the function that runs Ruby functions in a loop.
pub(crate) const LOOP: &str = "rb_vm_exec";

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
