//! CPython 3.6 to 3.15.
//!
//! [`recognise`] describes the interpreter in a file to BPF, which walks the frames of Python functions
//! (`ebpf/bpf/runtimes/python.h`). [`code`] names them.

pub(crate) mod layout;
#[cfg(target_arch = "x86_64")]
pub(crate) mod recognise;

pub(crate) mod code;
mod debug_offsets;
mod lines;

/// Description of an interpreter for BPF, and the layout of its structures.
#[cfg(target_arch = "x86_64")]
pub(crate) type RuntimeAndLayout = (ebpf::Runtime, layout::Layout);

/// Name of the function that runs Python functions in a loop.
pub(crate) const LOOP: &str = "_PyEval_EvalFrameDefault";

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
