//! What the tests with BPF share: an OTLP server that keeps what it gets, programs to be sampled, and a readable view of profiles.

pub(crate) mod conformance;
pub(crate) mod program;
pub(crate) mod report;
pub(crate) mod sink;
pub(crate) mod view;
