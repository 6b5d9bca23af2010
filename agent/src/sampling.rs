//! Samples of this host: BPF takes them, and one thread collects them and adds them up over five seconds.

pub(crate) mod aggregate;
pub(crate) mod capability;
pub(crate) mod clock;
pub(crate) mod collector;
mod eager;
pub(crate) mod error;
pub(crate) mod interval;
pub(crate) mod label;
pub(crate) mod off_cpu;
pub(crate) mod sampler;
pub(crate) mod thread;
pub(crate) mod trim;
