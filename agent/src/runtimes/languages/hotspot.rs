//! HotSpot, the virtual machine of Java.
//!
//! HotSpot's own code is in `libjvm.so`. The code that it makes lies in *code heaps*, without a file: the interpreter,
//! compiled methods, and stubs. Each heap consists of *blobs*, whose headers have the sizes of the frames. So BPF walks
//! these frames by the code heaps of the process, which user space reads once for each process ([`process`]).
//!
//! The layout of HotSpot's structures is in tables in its memory ([`vm_structs`]).

pub(crate) mod function;
pub(crate) mod layout;
pub(crate) mod process;

mod blob;
mod fields;
mod method;
mod scopes;
mod unsigned5;
mod vm_structs;

#[cfg(test)]
mod tests;
