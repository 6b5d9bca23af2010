//! The mixes: their sizes, and the shape of hosts, pods and requests.

/// Number of CPUs of a pod.
pub(crate) const POD_CPUS: usize = 2;
/// Number of services of a mix. Each pod belongs to one service.
pub(crate) const SERVICES: usize = 5;
/// Number of pods of one host, and so of one request.
pub(crate) const HOST_PODS: usize = 8;
/// Number of ticks of a CPU's timer in one request: 5 s at 19 Hz.
pub(crate) const INTERVAL_TICKS: u64 = 95;
/// Number of samples of one pod in one request.
pub(crate) const POD_SAMPLES: usize = INTERVAL_TICKS as usize * POD_CPUS;
/// Number of samples in one request.
pub(crate) const REQUEST_SAMPLES: usize = HOST_PODS * POD_SAMPLES;
/// Period of the timer, which is also the value of a sample, in nanoseconds: 1 / 19 Hz.
pub(crate) const PERIOD_NS: u64 = 1_000_000_000 / 19;
/// Shortest time between a timer tick and either end of its period, in nanoseconds. It leaves room for the jitter, so
/// that few samples lie outside of their interval.
pub(crate) const TIMER_SLACK_NS: u64 = 1_000_000;
/// Length of the interval of one request, in nanoseconds.
pub(crate) const INTERVAL_NS: u64 = 5_000_000_000;
/// Time that a mix covers, in nanoseconds. A workload with more samples has more hosts, and does not cover a longer
/// time.
pub(crate) const WORKLOAD_NS: u64 = 900 * 1_000_000_000;
/// Number of requests of one host in a mix.
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
    /// Returns the number of pods.
    pub(crate) fn pods(self) -> usize {
        match self {
            Self::H => 40,
            Self::L => 24,
        }
    }

    /// Returns the number of samples in 15 minutes.
    pub(crate) fn samples(self) -> u64 {
        (self.pods() / HOST_PODS * HOST_REQUESTS * REQUEST_SAMPLES) as u64
    }

    /// Returns the number of unique stacks that each service has in 15 minutes.
    pub(crate) fn service_stacks(self) -> usize {
        match self {
            Self::H => 8_400,
            Self::L => 230,
        }
    }

    /// Returns the name of the recording of each service.
    pub(crate) fn programs(self) -> [&'static str; SERVICES] {
        match self {
            Self::H => ["java-compile", "go-bench", "node-parse", "cxx-build", "rust-build"],
            Self::L => ["java-service", "go-service", "node-service", "python-service", "perl-service"],
        }
    }
}
