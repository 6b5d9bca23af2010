//! A gRPC server for OTLP profiles that stores every request it receives in memory.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proto::otlp::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use proto::otlp::collector::profiles::v1development::{ExportProfilesServiceRequest, ExportProfilesServiceResponse};
use proto::rpc_status::rpc_status;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

/// Address that makes a server bind any free port of the loopback interface.
pub const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Returns a gRPC status that asks the client to retry after `delay`.
#[must_use]
pub fn with_retry_delay(code: Code, message: &str, delay: Duration) -> Status {
    Status::with_details(code, message, rpc_status(code.into(), message, Some(delay)).into())
}

/// Largest size of a request that the server accepts, in bytes. It is larger than any request of an agent.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Serves an OTLP profiles service at `address` for as long as the runtime runs. Returns the bound address.
///
/// # Panics
/// The address cannot be bound.
pub async fn serve(address: SocketAddr, service: impl ProfilesService) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ProfilesServiceServer::new(service)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd)
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// A request that arrived, with its metadata.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The decoded request.
    pub request: ExportProfilesServiceRequest,
    /// The gRPC metadata of the request, such as its encoding, idempotency key and token.
    pub metadata: MetadataMap,
    /// Time of the arrival.
    pub at: Instant,
}

impl Arrival {
    /// Returns the first string of the request's dictionary. Tests identify their requests by this string.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.request.dictionary.as_ref().unwrap().string_table[0]
    }
}

/// A server that returns given responses to its first requests, and then success. Clones share the responses and the
/// received requests.
#[derive(Clone, Debug, Default)]
pub struct Sink(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    responses: Mutex<VecDeque<Result<ExportProfilesServiceResponse, Status>>>,
    arrivals: Mutex<Vec<Arrival>>,
    never_accepts: Option<String>,
}

impl Sink {
    /// Returns a server that responds to its first requests with these responses, in this order.
    #[must_use]
    pub fn responding(responses: Vec<Result<ExportProfilesServiceResponse, Status>>) -> Self {
        Self(Arc::new(Shared { responses: Mutex::new(responses.into()), ..Shared::default() }))
    }

    /// Returns a server that responds with UNAVAILABLE to every request whose [`Arrival::text`] is `text`.
    #[must_use]
    pub fn never_accepting(text: &str) -> Self {
        Self(Arc::new(Shared { never_accepts: Some(text.to_owned()), ..Shared::default() }))
    }

    /// Serves at `address` for as long as the runtime runs. Returns the bound address.
    pub async fn listen(&self, address: SocketAddr) -> SocketAddr {
        serve(address, self.clone()).await
    }

    /// Returns the time of the first request; `None` if there was none.
    #[must_use]
    pub fn first_arrival(&self) -> Option<Instant> {
        self.0.arrivals.lock().first().map(|arrival| arrival.at)
    }

    /// Returns every request that has arrived, in the order of arrival.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.0.arrivals.lock().clone()
    }

    /// Returns the [`Arrival::text`] of every request that has arrived, in the order of arrival.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        self.0.arrivals.lock().iter().map(|arrival| arrival.text().to_owned()).collect()
    }

    /// Returns every request that has arrived, in the order of arrival, and forgets them all.
    #[must_use]
    pub fn take_requests(&self) -> Vec<ExportProfilesServiceRequest> {
        std::mem::take(&mut *self.0.arrivals.lock()).into_iter().map(|arrival| arrival.request).collect()
    }
}

#[tonic::async_trait]
impl ProfilesService for Sink {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        let metadata = request.metadata().clone();
        let arrival = Arrival { request: request.into_inner(), metadata, at: Instant::now() };
        let is_accepted = self.0.never_accepts.as_deref().is_none_or(|text| text != arrival.text());
        self.0.arrivals.lock().push(arrival);
        if !is_accepted {
            return Err(Status::unavailable("never accepted"));
        }
        let response = self.0.responses.lock().pop_front();
        response.unwrap_or_else(|| Ok(ExportProfilesServiceResponse::default())).map(Response::new)
    }
}
