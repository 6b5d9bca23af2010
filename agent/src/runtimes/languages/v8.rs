//! V8 in Node.js 12 to 25: the versions in [`layout`].
//!
//! [`recognise`] describes V8 in a file to BPF, which finds the functions of JavaScript frames
//! (`ebpf/bpf/runtimes/v8.h`). [`function`] names them.

pub(crate) mod function;
pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;
pub(crate) mod source;

mod bytecodes;
mod code;
mod heap;
mod positions;
mod scope;

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
