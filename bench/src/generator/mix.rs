//! The mixes: their sizes, and the shape of hosts, pods and requests.

/// CPUs of a pod.
pub(crate) const POD_CPUS: usize = 2;
/// Number of services of a mix; a pod belongs to one.
pub(crate) const SERVICES: usize = 5;
/// Pods of one host, and of one request.
pub(crate) const HOST_PODS: usize = 8;
/// Ticks of a CPU's timer in one request: 5 s at 19 Hz.
pub(crate) const INTERVAL_TICKS: u64 = 95;
/// Samples of one pod in one request.
pub(crate) const POD_SAMPLES: usize = INTERVAL_TICKS as usize * POD_CPUS;
/// Samples of one request.
pub(crate) const REQUEST_SAMPLES: usize = HOST_PODS * POD_SAMPLES;
/// Period of the timer, and weight of a sample, nanoseconds: 1 / 19 Hz.
pub(crate) const PERIOD_NS: u64 = 1_000_000_000 / 19;
/// Part of a period at both ends for the timer's jitter, nanoseconds, so that few samples lie outside their interval.
pub(crate) const TIMER_SLACK_NS: u64 = 1_000_000;
/// Time of one request, nanoseconds.
pub(crate) const INTERVAL_NS: u64 = 5_000_000_000;
/// Time of a mix and of a workload of any size, nanoseconds: more samples come from more hosts.
pub(crate) const WORKLOAD_NS: u64 = 900 * 1_000_000_000;
/// Requests of one host.
pub(crate) const HOST_REQUESTS: usize = (WORKLOAD_NS / INTERVAL_NS) as usize;

/// One of the two mixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum Mix {
    /// High: 40 pods of builds, benchmarks and compilers; 42,000 unique stacks in 15 minutes.
    H,
    /// Low: 24 pods of small services; 1,150 unique stacks in 15 minutes.
    L,
}

impl Mix {
    /// Number of pods in 15 minutes.
    pub(crate) fn pods(self) -> usize {
        match self {
            Self::H => 40,
            Self::L => 24,
        }
    }

    /// Number of samples in 15 minutes.
    pub(crate) fn samples(self) -> u64 {
        (self.pods() / HOST_PODS * HOST_REQUESTS * REQUEST_SAMPLES) as u64
    }

    /// Number of unique stacks of each service in 15 minutes.
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
