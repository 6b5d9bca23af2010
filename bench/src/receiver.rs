//! An OTLP server in this process, for varve's agent to send to.

use proto::otlp::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;

/// Larger than what the agent sends at once.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Serves on a free port until the runtime ends; returns the endpoint for the agent.
pub(crate) fn serve(runtime: &Runtime, service: impl ProfilesService) -> anyhow::Result<String> {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let service = ProfilesServiceServer::new(service)
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder().add_service(service);
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok(endpoint)
}
