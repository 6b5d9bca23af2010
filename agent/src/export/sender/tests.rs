//! The sender without a spool: retries, refusals, overflow, and shutdown.

mod spool;

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use prost::Message as _;
use proto::otlp::collector::profiles::v1development::{ExportProfilesPartialSuccess, ExportProfilesServiceRequest};
use proto::otlp::profiles::v1development::ProfilesDictionary;
use testkit::sink::{ANY_PORT, Sink, with_retry_delay};
use tokio::net::TcpListener;
use tonic::Code;

use super::*;
use crate::config::{Compression, Config, SpoolConfig, Token};
use crate::export::queue::QUEUE_BYTES_MAX;

/// Returns a request with `text` in its dictionary, by which a test recognizes the request.
pub(super) fn request(text: &str, samples: u64) -> EncodedRequest {
    let dictionary = ProfilesDictionary { string_table: vec![text.to_owned()], ..ProfilesDictionary::default() };
    let request =
        ExportProfilesServiceRequest { dictionary: Some(dictionary), ..ExportProfilesServiceRequest::default() };
    EncodedRequest { bytes: request.encode_to_vec().into(), profile_samples: [samples].into() }
}

pub(super) struct Exporter {
    pub(super) queue: Arc<ExportQueue>,
    pub(super) status: Status,
    pub(super) shutdown: CancellationToken,
    pub(super) running: tokio::task::JoinHandle<()>,
    registry: Registry,
}

impl Exporter {
    fn start(address: SocketAddr, compression: Compression, token: Option<Token>) -> Self {
        Self::with_spool(address, compression, token, None)
    }

    /// Starts a sender with a spool.
    pub(super) fn with_spool(
        address: SocketAddr,
        compression: Compression,
        token: Option<Token>,
        spool: Option<SpoolConfig>,
    ) -> Self {
        let mut registry = Registry::default();
        let status = Status::new(&mut registry);
        let queue = Arc::new(ExportQueue::new(QUEUE_BYTES_MAX, status.clone()));
        let shutdown = CancellationToken::new();
        let endpoint = format!("http://{address}");
        let config = Config {
            endpoint,
            frequency_hz: 20,
            off_cpu: false,
            java_parameters: false,
            environment_variables: Vec::new(),
            token,
            compression,
            spool: None,
        };
        let spool = spool.map(|config| Spool::open(&config, status.clone()).unwrap());
        let sender = Sender::new(&config.check().unwrap(), spool, status.clone());
        let running = tokio::spawn({
            let queue = Arc::clone(&queue);
            let shutdown = shutdown.clone();
            async move { sender.run(&queue, &shutdown).await }
        });
        Self { queue, status, shutdown, running, registry }
    }

    pub(super) async fn finish(self) -> (Status, String) {
        self.queue.close();
        self.running.await.unwrap();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        (self.status, text)
    }
}

#[tokio::test]
async fn a_request_is_retried_with_the_same_key_until_acknowledged() {
    let slower = with_retry_delay(Code::ResourceExhausted, "slower", Duration::from_millis(1));
    let refusals = vec![Err(GrpcStatus::unavailable("not yet")), Err(slower)];
    let server = Sink::responding(refusals);
    let exporter = Exporter::start(server.listen(ANY_PORT).await, Compression::Gzip, None);
    exporter.queue.push(request("first", 3));
    exporter.queue.push(request("second", 4));
    let (status, metrics) = exporter.finish().await;
    let arrivals = server.arrivals();
    assert_eq!(server.texts(), ["first", "first", "first", "second"]);
    let keys: Vec<_> = arrivals.iter().map(|it| it.metadata.get("idempotency-key").unwrap().clone()).collect();
    assert!(keys[0] == keys[1] && keys[1] == keys[2] && keys[2] != keys[3], "{keys:?}");
    let snapshot = status.snapshot();
    assert_eq!((snapshot.dropped, &*snapshot.reason), (0, ""));
    for line in ["exports_total{outcome=\"ok\"} 2", "exports_total{outcome=\"retried\"} 2"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn requests_are_compressed_as_configured_and_carry_the_token() {
    for (compression, encoding) in [(Compression::Gzip, "gzip"), (Compression::Zstd, "zstd")] {
        let server = Sink::default();
        let address = server.listen(ANY_PORT).await;
        let exporter = Exporter::start(address, compression, Some(Token::new("s3cret")));
        exporter.queue.push(request(&"long ".repeat(10_000), 1));
        exporter.finish().await;
        let arrivals = server.arrivals();
        assert_eq!(arrivals[0].text(), "long ".repeat(10_000));
        assert_eq!(arrivals[0].metadata.get("grpc-encoding").unwrap(), encoding);
        assert_eq!(arrivals[0].metadata.get("authorization").unwrap(), "Bearer s3cret");
    }
}

#[tokio::test]
async fn refused_requests_are_dropped_and_counted() {
    let server = Sink::responding(vec![
        Err(GrpcStatus::invalid_argument("no")),
        Err(GrpcStatus::resource_exhausted("too large")),
    ]);
    let exporter = Exporter::start(server.listen(ANY_PORT).await, Compression::Gzip, None);
    for samples in [3, 4, 5] {
        exporter.queue.push(request("x", samples));
    }
    let (status, metrics) = exporter.finish().await;
    assert_eq!(server.arrivals().len(), 3);
    assert_eq!(status.snapshot().dropped, 3 + 4);
    for line in ["samples_dropped_total{reason=\"refused\"} 7", "exports_total{outcome=\"failed\"} 2"] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn a_partial_refusal_is_shown_and_its_samples_are_counted() {
    let partial = ExportProfilesPartialSuccess { rejected_profiles: 2, error_message: "too old".to_owned() };
    let server = Sink::responding(vec![Ok(ExportProfilesServiceResponse { partial_success: Some(partial) })]);
    let exporter = Exporter::start(server.listen(ANY_PORT).await, Compression::Gzip, None);
    exporter.queue.push(EncodedRequest { profile_samples: [3, 4, 50].into(), ..request("x", 0) });
    let (status, metrics) = exporter.finish().await;
    assert_eq!(status.snapshot().reason, "the endpoint refused 2 profiles: too old");
    assert!(metrics.contains("samples_dropped_total{reason=\"refused\"} 7"), "{metrics}");
}

#[tokio::test]
async fn an_endpoint_that_starts_late_gets_what_fits_the_queue() {
    // A port that was free a moment ago, on which nothing listens.
    let address = TcpListener::bind(ANY_PORT).await.unwrap().local_addr().unwrap();
    let exporter = Exporter::start(address, Compression::Gzip, None);
    let large = "x".repeat(QUEUE_BYTES_MAX / 4);
    exporter.queue.push(request("first", 1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    for samples in 2..=6 {
        exporter.queue.push(request(&format!("{samples}{large}"), samples));
    }
    assert!(exporter.status.snapshot().reason.contains("refused"), "{:?}", exporter.status.snapshot());
    // The first request is being tried, and is not in the queue any more. The oldest requests in the queue were
    // dropped.
    let dropped = exporter.status.snapshot().dropped;
    assert_eq!(dropped, 2 + 3);
    let server = Sink::default();
    server.listen(address).await;
    let (status, metrics) = exporter.finish().await;
    let arrivals = server.arrivals();
    let texts: Vec<_> = arrivals.iter().map(|arrival| &arrival.text()[..1]).collect();
    assert_eq!(texts, ["f", "4", "5", "6"]);
    assert_eq!((status.snapshot().dropped, &*status.snapshot().reason), (dropped, ""));
    assert!(metrics.contains("samples_dropped_total{reason=\"queue_full\"} 5"), "{metrics}");
}

#[tokio::test]
async fn a_request_that_is_never_accepted_is_dropped_for_newer_ones() {
    let server = Sink::responding(vec![Err(GrpcStatus::out_of_range("too large")); 2]);
    let exporter = Exporter::start(server.listen(ANY_PORT).await, Compression::Gzip, None);
    exporter.queue.push(request("poison", 1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let large = "x".repeat(QUEUE_BYTES_MAX / 4);
    for samples in 2..=5 {
        exporter.queue.push(request(&format!("{samples}{large}"), samples));
    }
    let (status, metrics) = exporter.finish().await;
    let arrivals = server.arrivals();
    let texts: Vec<_> = arrivals.iter().map(|arrival| &arrival.text()[..1]).collect();
    assert_eq!(texts, ["p", "p", "3", "4", "5"]);
    assert_eq!(status.snapshot().dropped, 1 + 2);
    assert!(metrics.contains("samples_dropped_total{reason=\"queue_full\"} 3"), "{metrics}");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_an_unreachable_endpoint() {
    let address = TcpListener::bind(ANY_PORT).await.unwrap().local_addr().unwrap();
    let exporter = Exporter::start(address, Compression::Gzip, None);
    exporter.queue.push(request("tried", 3));
    tokio::time::sleep(Duration::from_secs(1)).await;
    exporter.queue.push(request("never tried", 4));
    let started = std::time::Instant::now();
    exporter.shutdown.cancel();
    let (status, metrics) = exporter.finish().await;
    assert!(started.elapsed() < SHUTDOWN_TIMEOUT + Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(status.snapshot().dropped, 3 + 4);
    assert!(metrics.contains("samples_dropped_total{reason=\"shutdown\"} 7"), "{metrics}");
}

#[tokio::test]
async fn a_connection_that_breaks_loses_nothing() {
    // The first connection is accepted and dropped.
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let address = listener.local_addr().unwrap();
    let exporter = Exporter::start(address, Compression::Gzip, None);
    exporter.queue.push(request("x", 3));
    let (connection, _) = listener.accept().await.unwrap();
    connection.readable().await.unwrap();
    drop((connection, listener));
    let server = Sink::default();
    server.listen(address).await;
    let (status, _) = exporter.finish().await;
    assert_eq!(server.arrivals().len(), 1);
    assert_eq!(status.snapshot().dropped, 0);
}
