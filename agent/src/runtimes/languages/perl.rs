//! Perl 5.26 to 5.42, built with threads.
//!
//! [`recognise`] describes the interpreter in a file to BPF, which walks the contexts of subs and evals
//! (`ebpf/bpf/runtimes/perl.h`). [`functions`] names them.

pub(crate) mod functions;
pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;

mod scalars;

/// Names of the functions that run the operations of subs: the loop, and the function that runs the main program in it.
/// After an exception, the latter begins the loop again. For some instructions, the stack has no frame of the loop.
pub(crate) const LOOPS: [&str; 2] = ["Perl_runops_standard", "perl_run"];

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
