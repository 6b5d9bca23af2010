//! Unwind tables of real and of damaged files, and the stacks that they lead to.

pub(crate) mod damage;
mod debug_frame;
#[cfg(target_arch = "x86_64")]
pub(crate) mod native;
