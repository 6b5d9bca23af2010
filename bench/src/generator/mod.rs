//! What is sent: OTLP 1.11 export requests shaped like those that the peers were measured with, the same for the same seed.
//!
//! A request is what a collector on one host sends every 5 s: 8 pods, each 2 CPUs sampled at 19 Hz, so 8 x 190 = 1,520 samples,
//! each with its own time in nanoseconds and its thread.
//!
//! # Read in this order
//! [`Mix`] (the sizes) → [`corpus`] (stacks) → [`request`] (samples of them) → [`Workload`] (all requests) → [`random`].

mod corpus;
mod names;
mod random;
mod request;
mod workload;

pub(crate) use workload::{Workload, last_full_hour_ns};

/// Services of either mix; a pod belongs to one.
pub(crate) const SERVICES: usize = 5;
/// Pods of one host: of one request.
pub(crate) const HOST_PODS: usize = 8;
/// Samples of one pod in one request: 5 s of 2 CPUs at 19 Hz.
pub(crate) const POD_SAMPLES: usize = 190;
/// Samples of one request.
pub(crate) const REQUEST_SAMPLES: usize = HOST_PODS * POD_SAMPLES;
/// One over 19 Hz.
pub(crate) const PERIOD_NS: u64 = 1_000_000_000 / 19;
/// Of one request.
pub(crate) const INTERVAL_NS: u64 = 5_000_000_000;
/// Of the whole workload, however many samples it has: more samples are more hosts.
pub(crate) const WORKLOAD_NS: u64 = 900 * 1_000_000_000;
/// Requests of one host.
pub(crate) const HOST_REQUESTS: usize = (WORKLOAD_NS / INTERVAL_NS) as usize;

/// Which of the two workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum Mix {
    /// High: 40 pods, 42,000 unique stacks.
    H,
    /// Low: 24 pods, 1,150 unique stacks.
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

    /// Unique stacks of each service.
    pub(crate) fn service_stacks(self) -> usize {
        match self {
            Self::H => 8_400,
            Self::L => 230,
        }
    }

    /// Functions of each service's own code: most of a request's bytes are locations and names, and with these it has 134 and
    /// 118 bytes a sample, where the real ones had 134 and 116.
    pub(crate) fn service_functions(self) -> usize {
        match self {
            Self::H => 170,
            Self::L => 200,
        }
    }

    /// How uneven stacks are: the n-th has weight n^-exponent. Chosen so that a pod has as many different stacks in 10 s as
    /// the real workloads had: 750,815 and 262,725 rows in 15 minutes.
    pub(crate) fn zipf_exponent(self) -> f64 {
        match self {
            Self::H => 1.06,
            Self::L => 0.99,
        }
    }
}
