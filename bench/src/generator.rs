//! A synthetic fleet that plays recorded programs.
//!
//! Equal seeds give equal fleets.
//!
//! A host has 8 pods of 2 CPUs, sampled at 19 Hz. Every 5 s, a host sends 8 x 190 = 1,520 samples. Each sample has its
//! own time in nanoseconds, and a thread. A pod belongs to a service, and a service is a recorded program. A pod plays
//! the recording of its service sample by sample, with the recorded threads, stacks and jitter. Each pod begins at a
//! different position of the recording. At the end of the recording, the pod continues at its start.
//!
//! A pod differs from the recording in three ways. Gaps of the recording, in which a CPU was idle, are skipped. Stacks
//! that the agent could not unwind are completed ([`donor`]). New stacks appear at the recorded rate ([`growth`],
//! [`tree`]).
//!
//! # Modules, in the order in which data passes through them
//! - [`Mix`]: numbers of pods, samples and stacks. [`lanes`]: a recording, ready to be played. [`service`]: one
//!   service. [`corpus`]: all services.
//! - [`pod`] and [`fleet`]: an iterator over samples. [`batch`]: the samples as a batch for a shard. [`request`]: the
//!   samples as a push.
//! - [`workload`]: the pushes of 15 minutes. [`wide`]: a fleet of many pods with few samples each.

mod batch;
mod corpus;
mod donor;
mod fleet;
mod growth;
mod lanes;
mod mix;
mod payload;
mod pod;
mod random;
mod request;
mod service;
mod tree;
mod wide;
mod workload;

pub(crate) use batch::{BatchBuilder, PROFILE_TYPE};
pub(crate) use corpus::Corpus;
pub(crate) use fleet::{Days, Drawn, Fleet, HostSamples, Plan};
pub(crate) use mix::{HOST_PODS, HOST_REQUESTS, INTERVAL_NS, Mix, PERIOD_NS};
pub(crate) use request::build as build_request;
pub(crate) use wide::PODS_MAX as WIDE_PODS_MAX;
pub(crate) use workload::{Workload, last_full_hour_ns};
