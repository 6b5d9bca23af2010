//! Tests of the responses to OTLP senders, for every error of a node and of a request.

use std::num::NonZeroU16;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request as HttpRequest;
use http_body_util::BodyExt as _;
use prometheus_client::registry::Registry;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::profiles::v1development::{Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles};
use proto::placement::Placement;
use proto::rpc_status::retry_delay;
use proto::wire;
use proto::wire::node_server::{Node, NodeServer};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response};
use tower::{Service as _, ServiceExt as _};

use super::*;
use crate::api;
use crate::api::push::otlp_grpc::OtlpGrpc;
use crate::auth::Auth;
use crate::ingest::push::Pusher;
use crate::nodes::Nodes;
use crate::nodes::tests::fake_cluster::OneNode;

/// A node that returns the same status for every append.
struct Failing(Status);

#[tonic::async_trait]
impl Node for Failing {
    async fn placement(&self, _: Request<wire::PlacementRequest>) -> Result<Response<wire::PlacementResponse>, Status> {
        Ok(Response::new(Placement::uniform(NonZeroU16::MIN).to_wire()))
    }

    async fn append(&self, _: Request<wire::AppendRequest>) -> Result<Response<wire::AppendResponse>, Status> {
        Err(self.0.clone())
    }

    async fn holds_batch(
        &self,
        _: Request<wire::HoldsBatchRequest>,
    ) -> Result<Response<wire::HoldsBatchResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn read_point(
        &self,
        _: Request<wire::ReadPointRequest>,
    ) -> Result<Response<wire::ReadPointResponse>, Status> {
        Err(self.0.clone())
    }

    async fn select(&self, _: Request<wire::SelectRequest>) -> Result<Response<wire::SelectResponse>, Status> {
        Err(self.0.clone())
    }

    async fn locations(&self, _: Request<wire::LocationsRequest>) -> Result<Response<wire::LocationsResponse>, Status> {
        Err(self.0.clone())
    }

    async fn series(&self, _: Request<wire::SeriesRequest>) -> Result<Response<wire::SeriesResponse>, Status> {
        Err(self.0.clone())
    }

    async fn delete(&self, _: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        Err(self.0.clone())
    }

    async fn administer(
        &self,
        _: Request<wire::AdministerRequest>,
    ) -> Result<Response<wire::AdministerResponse>, Status> {
        Err(self.0.clone())
    }
}

/// Returns a router whose remote node returns this status.
fn router_of_failing_node(status: Status) -> Pusher {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let server = Server::builder().add_service(NodeServer::new(Failing(status)));
    let server = server.add_service(OneNode::service(address, 1));
    tokio::spawn(server.serve_with_incoming(incoming));
    Pusher::new(Nodes::remote(&transport::Dialer::plaintext(), vec![endpoint], None), &mut Registry::default())
}

/// Returns an export request with one sample.
fn export_request() -> Vec<u8> {
    let sample = Sample { values: vec![1], ..Sample::default() };
    let profiles = vec![Profile { samples: vec![sample], ..Profile::default() }];
    let scope_profiles = vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }];
    let request = ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles { scope_profiles, ..ResourceProfiles::default() }],
        dictionary: Some(ProfilesDictionary::default()),
    };
    prost::Message::encode_to_vec(&request)
}

/// Returns the status of an export over gRPC, as a gRPC client reads it.
async fn over_grpc(pusher: &Pusher) -> Status {
    let message = export_request();
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let request = HttpRequest::post("/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export");
    let request = request.body(tonic::body::Body::new(Body::from(framed))).unwrap();
    let response = OtlpGrpc::new(pusher.clone(), Auth::open()).call(request).await.unwrap();
    Status::from_header_map(response.headers()).unwrap()
}

/// Returns the status, `Retry-After` and body of the response to an export over HTTP.
async fn over_http(pusher: &Pusher) -> (u16, Option<String>, Vec<u8>) {
    let request = HttpRequest::post("/v1development/profiles").header("content-type", "application/x-protobuf");
    let routes = api::otlp_routes(pusher.clone(), Auth::open());
    let response = routes.oneshot(request.body(Body::from(export_request())).unwrap()).await.unwrap();
    let retry_after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    (status, retry_after, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

/// Returns whether OTLP senders retry after this status. They retry RESOURCE_EXHAUSTED only with `RetryInfo`.
fn is_retried(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DataLoss, DeadlineExceeded, OutOfRange, ResourceExhausted, Unavailable};
    match status.code() {
        Cancelled | DeadlineExceeded | Aborted | OutOfRange | Unavailable | DataLoss => true,
        ResourceExhausted => retry_delay(status.details()).is_some(),
        _ => false,
    }
}

#[tokio::test]
async fn senders_retry_after_every_code_of_a_node_but_two() {
    for number in 1..17 {
        let code = Code::from(number);
        let pusher = router_of_failing_node(Status::new(code, "injected"));
        let status = over_grpc(&pusher).await;
        let (http, retry_after, _) = over_http(&pusher).await;
        let (wanted, wanted_http) = match code {
            Code::InvalidArgument => (Code::InvalidArgument, 400),
            // The shard is missing definitions, although the router sent the batch again with all of them.
            Code::Aborted => (Code::Internal, 500),
            Code::ResourceExhausted => (Code::ResourceExhausted, 429),
            _ => (Code::Unavailable, 503),
        };
        let is_final = matches!(code, Code::InvalidArgument | Code::Aborted);
        assert_eq!((status.code(), is_retried(&status)), (wanted, !is_final), "{code:?} over gRPC: {status:?}");
        assert_eq!((http, retry_after.is_some()), (wanted_http, !is_final), "{code:?} over HTTP");
        let reason = if code == Code::Aborted { "fault of varve" } else { "injected" };
        assert!(status.message().contains(reason), "{code:?}: {status:?}");
    }
}

#[tokio::test]
async fn senders_retry_after_a_response_of_the_node_without_a_status() {
    // The node closes each connection at once, so tonic itself chooses the status code of the call.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let pusher =
        Pusher::new(Nodes::remote(&transport::Dialer::plaintext(), vec![endpoint], None), &mut Registry::default());
    let status = over_grpc(&pusher).await;
    assert_eq!((status.code(), is_retried(&status)), (Code::Unavailable, true), "{status:?}");
    assert_eq!(over_http(&pusher).await.0, 503);
}

#[tokio::test]
async fn senders_retry_after_a_panic_of_the_decoder() {
    let panic = tokio::spawn(async { panic!("a bug") }).await.unwrap_err();
    let error = PushError::Stopped(panic);
    assert!(is_retried(&Status::from(&error)), "{error}");
    assert_eq!(ApiError::from(error).status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn only_faults_of_the_request_are_final() {
    let is_final = |error: PushError| !is_retried(&Status::from(&error));
    let malformed = || IngestError::Malformed { format: "OTLP", detail: "cut off".to_owned() };
    assert!(is_final(PushError::Ingest(malformed())));
    assert!(is_final(PushError::Ingest(IngestError::TooLarge { bytes_max: 1 })));
    assert!(is_final(PushError::Ingest(IngestError::Encoding { name: "br".to_owned() })));
    assert!(is_final(PushError::Body(BodyError::TooLarge { bytes_max: 1 })));
    assert!(is_final(PushError::Key));
    assert!(is_final(PushError::Inconsistent));
    assert!(is_final(PushError::TooOld { samples: 1, retention: Duration::from_secs(1) }));
    assert!(!is_final(PushError::Body(BodyError::Stalled(Duration::ZERO))));
    assert!(!is_final(PushError::Body(BodyError::Slow(Duration::ZERO))));
    assert!(!is_final(PushError::Body(BodyError::Unreadable(axum::Error::new("connection reset")))));
    assert!(!is_final(PushError::Overloaded(crate::ingest::admission::Overloaded)));
}
