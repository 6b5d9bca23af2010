//! A synthetic fleet that plays recorded programs.
//!
//! Equal seeds give equal fleets.
//!
//! A host has 8 pods of 2 CPUs, sampled at 19 Hz. Every 5 s it sends 8 x 190 = 1,520 samples, each with its own time in
//! nanoseconds and its thread. A pod belongs to a service, and a service is a recorded program. A pod plays the
//! recording of its service sample by sample, with the recorded threads, stacks and jitter. Each pod begins at another
//! position, and after the end of the recording continues at its start.
//!
//! A pod differs from the recording in three ways. Both CPUs are always busy, so gaps of the recording are skipped.
//! Stacks that the agent could not unwind are completed ([`donor`]). New stacks appear at the recorded rate
//! ([`growth`], [`tree`]).
//!
//! # Modules, in the order of data
//! - [`Mix`]: the sizes. [`lanes`]: a recording, ready to be played. [`service`]: one service. [`corpus`]: all
//!   services.
//! - [`pod`] and [`fleet`]: an iterator over samples. [`batch`] and [`request`]: the samples for a shard and for a
//!   push.
//! - [`workload`]: 15 minutes of requests.

mod batch;
mod corpus;
mod definitions;
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
mod workload;

pub(crate) use batch::{BatchBuilder, PROFILE_TYPE};
pub(crate) use corpus::Corpus;
pub(crate) use fleet::{Days, Drawn, Fleet, HostSamples, Plan};
pub(crate) use mix::{HOST_PODS, HOST_REQUESTS, INTERVAL_NS, Mix, PERIOD_NS};
pub(crate) use request::build as build_request;
pub(crate) use workload::{Workload, last_full_hour_ns};
