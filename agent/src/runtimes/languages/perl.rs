//! Perl 5.26 to 5.42, built with threads.
//!
//! [`recognise`] describes the interpreter in a file to BPF, which walks the contexts of subs and evals
//! (`ebpf/bpf/runtimes/perl.h`). [`functions`] names them.

pub(crate) mod functions;
pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;

mod scalars;

/// Name of the function that runs the operations of subs in a loop.
pub(crate) const LOOP: &str = "Perl_runops_standard";

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
