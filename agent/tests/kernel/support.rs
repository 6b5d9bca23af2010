//! Shared parts of the tests: a running agent with a server, programs to be sampled, and a readable view of profiles.

pub(crate) mod agent;
pub(crate) mod program;
pub(crate) mod scripts;
pub(crate) mod view;
