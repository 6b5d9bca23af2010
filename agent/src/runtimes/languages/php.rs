//! PHP 7.3 to 8.5.
//!
//! [`recognise`] describes the interpreter in a file to BPF, which walks the frames of PHP functions
//! (`ebpf/bpf/runtimes/php.h`). [`function`] names them.

pub(crate) mod function;
pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;

/// Name of the function that runs PHP functions in a loop.
pub(crate) const LOOP: &str = "execute_ex";

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
