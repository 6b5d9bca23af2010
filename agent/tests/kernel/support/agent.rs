//! An agent in this process that samples this host and sends to a server in this process.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use agent::{Compression, Config, State, Status, StatusSnapshot};
use prometheus_client::registry::Registry;
use testkit::sink::{ANY_PORT, Sink};
use testkit::{conformance, report};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::view::{Sample, samples};

/// Held by the test that samples: busy programs of several tests would compete for the CPU.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A running agent, and the server that receives its requests.
pub(crate) struct RunningAgent {
    runtime: Runtime,
    sink: Sink,
    status: Status,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<Result<(), agent::AgentError>>,
    /// Number of samples that were taken so far.
    taken: u64,
    _turn: MutexGuard<'static, ()>,
}

impl RunningAgent {
    /// Starts sampling. Returns `None`, and reports the reason, on a machine where that is not possible.
    pub(crate) fn start(test: &str, frequency_hz: u32) -> Option<Self> {
        Self::start_with(test, frequency_hz, false)
    }

    /// Starts sampling, with waits if `off_cpu` is true.
    pub(crate) fn start_with(test: &str, frequency_hz: u32, off_cpu: bool) -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(missing) = agent::probe().into_iter().find(|missing| missing.is_required) {
            report::skipped(test, missing);
            return None;
        }
        let runtime = Runtime::new().unwrap();
        let sink = Sink::default();
        let status = Status::new(&mut Registry::default());
        let shutdown = CancellationToken::new();
        let endpoint = format!("http://{}", runtime.block_on(sink.listen(ANY_PORT)));
        let config = Config {
            endpoint,
            frequency_hz,
            off_cpu,
            java_parameters: false,
            environment_variables: Vec::new(),
            token: None,
            compression: Compression::Gzip,
            spool: None,
        };
        let running = runtime.spawn(agent::run(config, shutdown.clone(), status.clone()));
        while status.snapshot().state == State::Off {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(status.snapshot().state, State::Running, "{:?}", status.snapshot());
        Some(Self { runtime, sink, status, shutdown, running, taken: 0, _turn: turn })
    }

    /// Returns the samples that have arrived, and forgets them. Checks that each request conforms to OTLP.
    pub(crate) fn take(&mut self) -> Vec<Sample> {
        let mut all = Vec::new();
        for request in &self.sink.take_requests() {
            assert_eq!(conformance::violations(request), [""; 0]);
            all.extend(samples(request));
        }
        self.taken += all.iter().map(|sample| sample.times.len() as u64).sum::<u64>();
        all
    }

    /// Stops the agent and returns every sample that is left. Checks that each request conforms to OTLP and that no
    /// sample was lost.
    pub(crate) fn stop(mut self, test: &str) -> (Vec<Sample>, StatusSnapshot) {
        self.shutdown.cancel();
        self.runtime.block_on(&mut self.running).unwrap().unwrap();
        let all = self.take();
        let status = self.status.snapshot();
        assert_eq!(status.dropped, 0);
        assert_eq!(self.taken, status.samples);
        report::bpf_test_ran(test);
        (all, status)
    }
}
