//! A gRPC service that returns the role of its caller, and servers and clients of this service.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use transport::{Credentials, Dialer, incoming, peer_role, require_node};

/// Codec of messages that are text.
#[derive(Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(to, item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = bytes::Buf::copy_to_bytes(from, bytes::Buf::remaining(from));
        Ok(Some(String::from_utf8(bytes.to_vec()).unwrap()))
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The service. The method `Role` is for all peers, and `Node` only for nodes.
#[derive(Clone)]
struct Peers;

impl NamedService for Peers {
    const NAME: &'static str = "test.Peers";
}

impl UnaryService<String> for Peers {
    type Response = String;
    type Future = Answer<Response<String>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let text = match request.get_ref().as_str() {
            "node" => require_node(&request).map(|node| format!("{node:?}")),
            _ => peer_role(&request).map(|role| role.map_or("nobody".to_owned(), |role| role.to_string())),
        };
        Box::pin(async move { text.map(Response::new) })
    }
}

impl Service<HttpRequest<Body>> for Peers {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(Text).unary(Self, request).await) })
    }
}

/// Starts a server, and returns its address.
pub(crate) async fn serve(credentials: Option<Arc<Credentials>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(Server::builder().add_service(Peers).serve_with_incoming(incoming(listener, credentials)));
    address
}

/// Returns a new channel, whose connection is made on the first call.
pub(crate) fn channel(dialer: &Dialer, address: &str) -> Channel {
    let endpoint: Endpoint = dialer.endpoint(address).unwrap().connect_timeout(Duration::from_secs(10));
    dialer.connect_lazy(&endpoint)
}

/// Calls a method on a channel.
pub(crate) async fn call(channel: &Channel, method: &str) -> Result<String, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let path = PathAndQuery::from_static("/test.Peers/Call");
    client.unary(Request::new(method.to_owned()), path, Text).await.map(Response::into_inner)
}

/// Makes one call over a new connection.
pub(crate) async fn call_once(dialer: &Dialer, address: &str, method: &str) -> Result<String, Status> {
    call(&channel(dialer, address), method).await
}

/// Accepts connections with a TLS configuration that no varve would have, and answers nothing.
pub(crate) async fn serve_badly(config: rustls::ServerConfig) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (stream, _) = listener.accept().await?;
            open.push(acceptor.accept(stream).await);
        }
        #[allow(unreachable_code, reason = "it gives the loop its type")]
        io::Result::Ok(())
    });
    address
}
