//! A synthetic fleet that plays recorded programs. Equal seeds give equal fleets.
//!
//! A host has 8 pods of 2 CPUs, sampled at 19 Hz. Every 5 s it sends 8 x 190 = 1,520 samples, each with its own time in
//! nanoseconds and its thread. A pod belongs to a service, and a service is a recorded program. Pods play the
//! recording sample by sample, with its threads, stacks and jitter. Each begins at another position, and starts again
//! at the end.
//!
//! Three things differ from the recording. Both CPUs are always busy, so gaps of the recording are skipped. Stacks that
//! could not be unwound get callers ([`donor`]). New stacks appear as fast as recorded ones did ([`growth`], [`tree`]).
//!
//! # Modules, in the order of data
//! - [`Mix`]: the sizes. [`lanes`]: a recording, ready to be played. [`service`] and [`corpus`]: one and all services.
//! - [`pod`] and [`fleet`]: an iterator over samples. [`batch`] and [`request`]: the samples for a shard and for a
//!   push.
//! - [`workload`]: 15 minutes of requests. [`statistics`]: properties of a mix.

mod batch;
mod corpus;
mod definitions;
mod donor;
mod fleet;
mod growth;
mod lanes;
mod payload;
mod pod;
mod random;
mod request;
mod service;
pub(crate) mod statistics;
mod tree;
mod workload;

pub(crate) use batch::{BatchBuilder, PROFILE_TYPE};
pub(crate) use corpus::Corpus;
pub(crate) use fleet::{Days, Drawn, Fleet, HostSamples, Plan};
pub(crate) use request::build as build_request;
pub(crate) use workload::{Workload, last_full_hour_ns};

/// Services of either mix; a pod belongs to one.
pub(crate) const SERVICES: usize = 5;
/// Pods of one host: of one request.
pub(crate) const HOST_PODS: usize = 8;
/// Ticks of a CPU's timer in one request: 5 s at 19 Hz.
pub(crate) const INTERVAL_TICKS: u64 = 95;
/// Samples of one pod in one request.
pub(crate) const POD_SAMPLES: usize = INTERVAL_TICKS as usize * lanes::POD_CPUS;
/// Samples of one request.
pub(crate) const REQUEST_SAMPLES: usize = HOST_PODS * POD_SAMPLES;
/// One over 19 Hz: what a sample stands for.
pub(crate) const PERIOD_NS: u64 = 1_000_000_000 / 19;
/// Of a period, this much is left at both ends for the timer's jitter, so that few samples lie outside their interval.
pub(crate) const TIMER_SLACK_NS: u64 = 1_000_000;
/// Of one request.
pub(crate) const INTERVAL_NS: u64 = 5_000_000_000;
/// Of a mix, and so of a whole workload, however many samples it has: more samples are more hosts.
pub(crate) const WORKLOAD_NS: u64 = 900 * 1_000_000_000;
/// Requests of one host.
pub(crate) const HOST_REQUESTS: usize = (WORKLOAD_NS / INTERVAL_NS) as usize;

/// Which of the two mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum Mix {
    /// High: 40 pods of builds, benchmarks and compilers; 42,000 unique stacks in 15 minutes.
    H,
    /// Low: 24 pods of small services; 1,150 unique stacks in 15 minutes.
    L,
}

impl Mix {
    /// Pods in 15 minutes of it.
    pub(crate) fn pods(self) -> usize {
        match self {
            Self::H => 40,
            Self::L => 24,
        }
    }

    /// Samples in 15 minutes of it.
    pub(crate) fn samples(self) -> u64 {
        (self.pods() / HOST_PODS * HOST_REQUESTS * REQUEST_SAMPLES) as u64
    }

    /// Unique stacks that each service has in 15 minutes.
    pub(crate) fn service_stacks(self) -> usize {
        match self {
            Self::H => 8_400,
            Self::L => 230,
        }
    }

    /// The recording of each service.
    pub(crate) fn programs(self) -> [&'static str; SERVICES] {
        match self {
            Self::H => ["java-compile", "go-bench", "node-parse", "cxx-build", "rust-build"],
            Self::L => ["java-service", "go-service", "node-service", "python-service", "perl-service"],
        }
    }
}
