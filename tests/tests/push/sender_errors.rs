//! Tests of errors that OTLP senders get. A sender drops a request after a final error, so faults of the server must
//! never cause one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use prost::Message as _;
use proto::rpc_status::retry_delay;
use proto::wire;
use proto::wire::cluster_client::ClusterClient;
use proto::wire::cluster_server::{Cluster, ClusterServer};
use proto::wire::node_client::NodeClient;
use proto::wire::node_server::{Node, NodeServer};
use tests::grpc::{Sending, block_on, export};
use tests::http::{Reply, request};
use tests::payload::otlp::{PERIOD_NS, Request as Push, now_ns, stack};
use tests::program::Running;
use tests::server::{Processes, Setup, Varve, free_addresses};
use tests::shared::varve_binary;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER_TOKEN: &str = "another-token-of-enough-length";

fn push(service: &str) -> Vec<u8> {
    Push::new(service).seen(stack(&["f", "main"]), vec![now_ns()]).bytes()
}

/// Starts another router for a node. Returns the router's addresses for OTLP over gRPC and HTTP.
fn start_router(folder: &Path, node: &str, token_file: Option<&Path>) -> (Running, [String; 2]) {
    let [http, grpc, otlp] = free_addresses();
    let mut command = Command::new(varve_binary());
    command.args(["router", "--data-dir"]).arg(folder.join(&http)).args(["--http-listen", &http]);
    command.args(["--otlp-grpc-listen", &grpc, "--otlp-http-listen", &otlp]);
    command.args(["--node-endpoint", &format!("http://{node}")]);
    command.args(token_file.iter().flat_map(|file| [Path::new("--token-file"), file]));
    let router = Running(command.spawn().unwrap());
    // Some of these routers never reach a node, and are therefore never ready.
    let alive = format!("http://{http}/healthz");
    while !request("GET", &alive, &[], None).is_ok_and(|reply| reply.status == 200) {
        std::thread::sleep(Duration::from_millis(10));
    }
    (router, [grpc, otlp])
}

/// Pushes an OTLP request over HTTP, with this token if any.
fn push_over_http(otlp: &str, body: &[u8], token: Option<&str>) -> Reply {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("content-type", "application/x-protobuf")];
    headers.extend(authorization.as_deref().map(|value| ("authorization", value)));
    request("POST", &format!("http://{otlp}/v1development/profiles"), &headers, Some(body)).unwrap()
}

/// Pushes over gRPC and HTTP. Checks that both errors make a sender retry. Returns the error message, which must be the
/// same.
fn retried([grpc, otlp]: &[String; 2], token: Option<&str>) -> String {
    let status = export(grpc, &push("retried"), Sending { token, ..Sending::default() }).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(retry_delay(status.details()).is_some(), "{status:?}");
    let reply = push_over_http(otlp, &push("retried"), token).refused_by_otlp_with(&[503]);
    assert_eq!(reply.header("retry-after"), "1");
    let over_http = reply.rpc_status();
    assert_eq!((over_http.code, over_http.message.as_str()), (14, status.message()));
    assert_eq!(over_http.details, ["type.googleapis.com/google.rpc.RetryInfo"]);
    status.message().to_owned()
}

#[test]
fn a_sender_is_made_to_retry_while_the_routers_token_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, token: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, token).unwrap();
        path
    };
    let right = file("right", TOKEN);
    let wrong = file("wrong", OTHER_TOKEN);
    let setup = Setup { processes: Processes::Three, token: Some(TOKEN.to_owned()), ..Setup::default() };
    let varve = Varve::start(Setup { token_file: Some(right), ..setup });
    let (_router, addresses) = start_router(folder.path(), &varve.node, Some(&wrong));
    let reason = retried(&addresses, Some(OTHER_TOKEN));
    assert!(reason.contains("--token-file") && reason.contains(&varve.node), "{reason}");
    // This router cannot know whether the cluster has another token, so the sender must keep its data.
    retried(&addresses, Some(TOKEN));
    // A router that knows the cluster also knows that the token is wrong: the request is at fault, and the error is
    // final.
    let status = export(&varve.grpc, &push("final"), Sending { token: Some(OTHER_TOKEN), ..Sending::default() });
    assert_eq!(status.unwrap_err().code(), Code::Unauthenticated);
    let reply = push_over_http(&varve.otlp, &push("final"), Some(OTHER_TOKEN)).refused_by_otlp_with(&[401]);
    assert_eq!(reply.rpc_status().code, 16);
}

/// A node that changes the placement epoch of each append, and forwards the append to a real node.
struct OtherPlacement(NodeClient<Channel>);

#[tonic::async_trait]
impl Node for OtherPlacement {
    async fn placement(
        &self,
        request: Request<wire::PlacementRequest>,
    ) -> Result<Response<wire::PlacementResponse>, Status> {
        self.0.clone().placement(request).await
    }

    async fn append(&self, request: Request<wire::AppendRequest>) -> Result<Response<wire::AppendResponse>, Status> {
        let mut request = request.into_inner();
        request.placement_epoch += 1;
        self.0.clone().append(request).await
    }

    async fn holds_batch(
        &self,
        request: Request<wire::HoldsBatchRequest>,
    ) -> Result<Response<wire::HoldsBatchResponse>, Status> {
        self.0.clone().holds_batch(request).await
    }

    async fn read_point(
        &self,
        request: Request<wire::ReadPointRequest>,
    ) -> Result<Response<wire::ReadPointResponse>, Status> {
        self.0.clone().read_point(request).await
    }

    async fn select(&self, request: Request<wire::SelectRequest>) -> Result<Response<wire::SelectResponse>, Status> {
        self.0.clone().select(request).await
    }

    async fn locations(
        &self,
        request: Request<wire::LocationsRequest>,
    ) -> Result<Response<wire::LocationsResponse>, Status> {
        self.0.clone().locations(request).await
    }

    async fn series(&self, request: Request<wire::SeriesRequest>) -> Result<Response<wire::SeriesResponse>, Status> {
        self.0.clone().series(request).await
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        self.0.clone().delete(request).await
    }

    async fn administer(
        &self,
        request: Request<wire::AdministerRequest>,
    ) -> Result<Response<wire::AdministerResponse>, Status> {
        self.0.clone().administer(request).await
    }
}

/// The state of a real node's cluster, in which the address of the node is that of a proxy.
struct ProxiedCluster {
    cluster: ClusterClient<Channel>,
    proxy: String,
}

#[tonic::async_trait]
impl Cluster for ProxiedCluster {
    async fn identify(
        &self,
        request: Request<wire::IdentifyRequest>,
    ) -> Result<Response<wire::IdentifyResponse>, Status> {
        self.cluster.clone().identify(request).await
    }

    async fn propose(&self, request: Request<wire::ProposeRequest>) -> Result<Response<wire::ProposeResponse>, Status> {
        self.cluster.clone().propose(request).await
    }

    async fn status(&self, _: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<wire::WatchResponse>, Status> {
        let mut response = self.cluster.clone().watch(request).await?;
        if let Some(state) = &mut response.get_mut().state {
            state.nodes.iter_mut().for_each(|node| node.address.clone_from(&self.proxy));
        }
        Ok(response)
    }
}

#[test]
fn a_sender_is_made_to_retry_while_placements_differ() {
    let varve = Varve::up();
    let [proxy] = free_addresses();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = runtime.block_on(NodeClient::connect(format!("http://{}", varve.node))).unwrap();
    let cluster = runtime.block_on(ClusterClient::connect(format!("http://{}", varve.node))).unwrap();
    let services = Server::builder().add_service(NodeServer::new(OtherPlacement(node)));
    let services = services.add_service(ClusterServer::new(ProxiedCluster { cluster, proxy: proxy.clone() }));
    runtime.spawn(services.serve(proxy.parse().unwrap()));
    let (_router, addresses) = start_router(varve.folder(), &proxy, None);
    let reason = retried(&addresses, None);
    assert!(reason.contains("placement"), "{reason}");
    // The same real node accepts appends of a router that has the right placement.
    let (_router, [grpc, _]) = start_router(varve.folder(), &varve.node, None);
    export(&grpc, &push("placed"), Sending::default()).unwrap();
    let total = varve.total("sum_over_time(process_cpu[1h])", now_ns() as f64 / 1e9 + 1.0);
    assert_eq!(total, PERIOD_NS as f64);
}

#[test]
fn a_batch_that_the_node_cannot_read_is_not_blamed_on_the_sender() {
    let varve = Varve::up();
    let append = |batch| {
        let request = wire::AppendRequest { shard: 1, placement_epoch: 1, batch };
        block_on(async {
            NodeClient::connect(format!("http://{}", varve.node)).await.unwrap().append(request).await.unwrap_err()
        })
    };
    let of_no_tenant = wire::Batch { tenant: "\0".to_owned(), ..wire::Batch::default() };
    for batch in [None, Some(of_no_tenant.encode_to_vec().into())] {
        let status = append(batch);
        assert_eq!(status.code(), Code::Internal, "{status}");
    }
}

/// Method, path, content type, token and body of a request, and the status and gRPC code that the response must have.
type Call<'a> = (&'a str, &'a str, &'a str, &'a str, &'a [u8], u16, u64);

#[test]
fn errors_of_the_otlp_port_are_google_rpc_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, TOKEN).unwrap();
    let varve = Varve::start(Setup { token_file: Some(file), token: Some(TOKEN.to_owned()), ..Setup::default() });
    let url = |path: &str| format!("http://{}{path}", varve.otlp);
    let bearer = format!("Bearer {TOKEN}");
    let push = "/v1development/profiles";
    let calls: [Call<'_>; 8] = [
        ("POST", push, "application/x-protobuf", &bearer, b"\xff\xff", 400, 3),
        ("POST", push, "application/json", &bearer, b"{", 400, 3),
        ("POST", push, "application/x-protobuf", "Bearer x", b"", 401, 16),
        ("POST", push, "application/json; charset=utf-8", "", b"{}", 401, 16),
        ("POST", push, "text/plain", &bearer, b"x", 415, 12),
        ("PUT", push, "application/x-protobuf", &bearer, b"", 405, 12),
        ("POST", "/v1/traces", "application/x-protobuf", &bearer, b"", 404, 12),
        ("POST", "/v1/traces", "application/json", &bearer, b"{}", 404, 12),
    ];
    for (method, path, content_type, token, body, status, code) in calls {
        let headers = [("content-type", content_type), ("authorization", token)];
        let reply = request(method, &url(path), &headers, Some(body)).unwrap().refused_by_otlp_with(&[status]);
        let is_protobuf = content_type == "application/x-protobuf";
        let wanted = if is_protobuf { "application/x-protobuf" } else { "application/json" };
        assert_eq!(reply.header("content-type"), wanted, "{method} {path} {content_type}");
        assert_eq!(reply.rpc_status().code, code, "{method} {path} {content_type}: {:?}", reply.rpc_status());
    }
    // The body has 65 MiB, and is compressed to a few kB.
    let reply = varve.push_otlp(&vec![0; 65 << 20], None).refused_by_otlp_with(&[413]);
    assert_eq!((reply.header("content-type"), reply.rpc_status().code), ("application/x-protobuf", 8));
}
