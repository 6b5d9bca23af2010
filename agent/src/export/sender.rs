//! Sends requests one by one, each until it is acknowledged, given up, or too late.
//!
//! An export carries one `idempotency-key` through all its tries, so that a try whose answer was lost counts once. What the
//! OTLP specification calls retryable is tried again with growing pauses, as long as the queue behind it has room; anything else
//! will not get better and is given up. Either way it is counted. Pauses begin small again only after a success: a request that
//! takes the place of one that was given up finds the same endpoint.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use proto::bytes_codec::BytesCodec;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceResponse;
use proto::retry_info::retry_delay;
use tokio_util::sync::CancellationToken;
use tonic::codec::CompressionEncoding;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status as GrpcStatus};

use crate::config::{CheckedConfig, Compression};
use crate::export::queue::ExportQueue;
use crate::export::request::EncodedRequest;
use crate::status::{DropReason, Outcome, Status};

/// How long one try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause between tries, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long what is left may take once the agent shall end.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
const PATH: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Sends what comes out of a queue.
#[derive(Debug)]
pub(crate) struct Sender {
    grpc: tonic::client::Grpc<Channel>,
    authorization: Option<MetadataValue<Ascii>>,
    /// Tells this run of the agent from all others.
    run_id: u128,
    exports: u64,
    /// Before the next try that follows a failed one.
    pause: Duration,
    samples_on_the_way: u64,
    status: Status,
}

/// What became of a request.
enum Sent {
    Acknowledged,
    Refused,
    /// Newer ones needed its place.
    Overtaken,
}

impl Sender {
    pub(crate) fn new(config: &CheckedConfig, status: Status) -> Self {
        let endpoint = config.endpoint.clone().connect_timeout(TRY_TIMEOUT).timeout(TRY_TIMEOUT);
        let encoding = match config.compression {
            Compression::Gzip => CompressionEncoding::Gzip,
            Compression::Zstd => CompressionEncoding::Zstd,
        };
        // Connects on the first request, and again when the connection breaks.
        let grpc = tonic::client::Grpc::new(endpoint.connect_lazy()).send_compressed(encoding);
        // The standard library seeds its hashers from the kernel's random numbers.
        let random = || u128::from(RandomState::new().hash_one(std::process::id()));
        Self {
            grpc,
            authorization: config.authorization.clone(),
            run_id: random() << 64 | random(),
            exports: 0,
            pause: PAUSE_MIN,
            samples_on_the_way: 0,
            status,
        }
    }

    /// Sends until `queue` is closed and empty; once `shutdown` is cancelled, no longer than [`SHUTDOWN_TIMEOUT`].
    pub(crate) async fn run(mut self, queue: &ExportQueue, shutdown: &CancellationToken) {
        let deadline = async {
            shutdown.cancelled().await;
            tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send_all(queue, shutdown) => {}
            () = deadline => self.give_up(DropReason::Shutdown),
        }
        queue.drop_all(DropReason::Shutdown);
    }

    async fn send_all(&mut self, queue: &ExportQueue, shutdown: &CancellationToken) {
        while let Some(request) = queue.pop().await {
            self.samples_on_the_way = request.samples();
            match self.send(&request, queue, shutdown).await {
                Sent::Acknowledged => self.samples_on_the_way = 0,
                Sent::Refused => self.give_up(DropReason::Refused),
                Sent::Overtaken => self.give_up(DropReason::QueueFull),
            }
        }
    }

    /// Counts the request that is on its way, if there is one, as lost.
    fn give_up(&mut self, reason: DropReason) {
        let samples = std::mem::take(&mut self.samples_on_the_way);
        if samples != 0 {
            self.status.count_export(Outcome::Failed);
            self.status.count_dropped(reason, samples);
        }
    }

    /// Tries until the request is acknowledged, refused for good, or in the way of newer ones.
    async fn send(&mut self, request: &EncodedRequest, queue: &ExportQueue, shutdown: &CancellationToken) -> Sent {
        self.exports += 1;
        let key = format!("{:032x}-{}", self.run_id, self.exports);
        let overflows = queue.overflows();
        loop {
            let error = match self.try_once(request.bytes.clone(), &key).await {
                Ok(response) => {
                    self.pause = PAUSE_MIN;
                    self.acknowledged(request, &response);
                    return Sent::Acknowledged;
                }
                Err(error) => error,
            };
            let (reason, samples) = (self.explain(&error), request.samples());
            if !is_retryable(&error) {
                tracing::error!(samples, "the endpoint refused an export: {reason}");
                return Sent::Refused;
            }
            if queue.overflows() != overflows {
                tracing::error!(samples, "an export is given up for newer ones: {reason}");
                return Sent::Overtaken;
            }
            let pause = self.pause.max(retry_delay(&error).unwrap_or_default()).min(PAUSE_MAX);
            tracing::warn!(pause_ms = pause.as_millis(), "an export did not arrive and will be tried again: {reason}");
            self.status.count_export(Outcome::Retried);
            if shutdown.is_cancelled() {
                tokio::time::sleep(PAUSE_MIN).await;
            } else {
                tokio::select! {
                    () = tokio::time::sleep(jittered(pause)) => {}
                    () = shutdown.cancelled() => {}
                }
            }
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_once(&mut self, bytes: Bytes, key: &str) -> Result<ExportProfilesServiceResponse, GrpcStatus> {
        // The channel's error says what happened; ready() only fails for good.
        self.grpc.ready().await.map_err(|error| GrpcStatus::from_error(error.into()))?;
        let mut request = Request::new(bytes);
        if let Ok(key) = MetadataValue::try_from(key) {
            request.metadata_mut().insert("idempotency-key", key);
        }
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(PATH);
        // Requests are encoded when they are made: one that waits takes as little memory as it can.
        let response = self.grpc.unary(request, path, BytesCodec).await?.into_inner();
        ExportProfilesServiceResponse::decode(response)
            .map_err(|error| GrpcStatus::internal(format!("the endpoint's answer is malformed: {error}")))
    }

    fn acknowledged(&self, request: &EncodedRequest, response: &ExportProfilesServiceResponse) {
        self.status.count_export(Outcome::Ok);
        self.status.count_export_bytes(request.bytes.len());
        let partial = response.partial_success.as_ref();
        let rejected_profiles = partial.map_or(0, |partial| partial.rejected_profiles);
        if rejected_profiles != 0 {
            // Which ones is not said: they had these samples, or more.
            let samples = request.samples_of(u64::try_from(rejected_profiles).unwrap_or(0));
            self.status.count_dropped(DropReason::Refused, samples);
            let message = partial.map_or("", |partial| &partial.error_message);
            tracing::error!(rejected_profiles, samples, "the endpoint refused a part of an export: {message}");
            self.status.set_reason(&format!("the endpoint refused {rejected_profiles} profiles: {message}"));
        } else {
            self.status.set_reason("");
        }
    }

    /// Says in the status, and returns, what went wrong.
    fn explain(&self, error: &GrpcStatus) -> String {
        let mut text = format!("{:?}: {}", error.code(), error.message());
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        self.status.set_reason(&text);
        text
    }
}

/// Whether the same request may be accepted later: the OTLP specification's list, and errors of this side of the connection,
/// which have a source. A receiver with too much to do says when to come again; without that, RESOURCE_EXHAUSTED is about the
/// request itself.
fn is_retryable(error: &GrpcStatus) -> bool {
    if error.code() == Code::ResourceExhausted {
        return retry_delay(error).is_some();
    }
    matches!(
        error.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    ) || std::error::Error::source(error).is_some()
}

/// Between half of `pause` and all of it, so that agents which lost one server do not come back all at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 54;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests;
