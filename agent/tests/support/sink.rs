//! A real OTLP profiles server in this process, and an agent that sends to it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent::{Compression, Config, State, Status, StatusSnapshot};
use prometheus_client::registry::Registry;
use proto::otlp::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use proto::otlp::collector::profiles::v1development::{ExportProfilesServiceRequest, ExportProfilesServiceResponse};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response};

use super::view::{Sample, samples};
use super::{conformance, report};

/// Only one test samples at a time: busy programs would take each other's CPU.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<ExportProfilesServiceRequest>>>);

#[tonic::async_trait]
impl ProfilesService for Sink {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportProfilesServiceResponse::default()))
    }
}

/// An agent that samples this host and sends to a server in this process.
pub(crate) struct RunningAgent {
    runtime: Runtime,
    sink: Sink,
    status: Status,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<Result<(), agent::AgentError>>,
    _turn: MutexGuard<'static, ()>,
}

impl RunningAgent {
    /// Starts sampling; `None`, said aloud, on a machine where that is not possible.
    pub(crate) fn start(test: &str, frequency_hz: u32) -> Option<Self> {
        Self::start_with(test, frequency_hz, false)
    }

    /// The same, and it may record waits, too.
    pub(crate) fn start_with(test: &str, frequency_hz: u32, off_cpu: bool) -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(missing) = agent::probe().into_iter().find(|missing| missing.is_required) {
            report::skipped(test, &missing);
            return None;
        }
        let runtime = Runtime::new().unwrap();
        let (sink, status, shutdown) =
            (Sink::default(), Status::new(&mut Registry::default()), CancellationToken::new());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let service = ProfilesServiceServer::new(sink.clone()).accept_compressed(CompressionEncoding::Gzip);
        let server = tonic::transport::Server::builder().add_service(service);
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let config = Config {
            endpoint,
            frequency_hz,
            off_cpu,
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
        Some(Self { runtime, sink, status, shutdown, running, _turn: turn })
    }

    /// Ends it, and returns every sample of it; each request was checked for conformance, and nothing was lost.
    pub(crate) fn stop(self, test: &str) -> (Vec<Sample>, StatusSnapshot) {
        self.shutdown.cancel();
        self.runtime.block_on(self.running).unwrap().unwrap();
        let requests = std::mem::take(&mut *self.sink.0.lock().unwrap());
        let mut all = Vec::new();
        for request in &requests {
            assert_eq!(conformance::violations(request), [""; 0]);
            all.extend(samples(request));
        }
        let status = self.status.snapshot();
        assert_eq!(status.dropped, 0);
        assert_eq!(all.iter().map(|sample| sample.times.len() as u64).sum::<u64>(), status.samples);
        report::bpf_test_ran(test);
        (all, status)
    }
}
