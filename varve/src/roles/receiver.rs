//! The part of a process that is a router: the HTTP, OTLP/gRPC and OTLP/HTTP ports, and the services on them.

use std::net::SocketAddr;

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use router::api::agent::AgentStatusSource;
use router::api::push::otlp_grpc::OtlpGrpc;
use router::api::{self, Parts};
use router::auth::Auth;
use router::auth::Tenants;
use router::ingest::Pusher;
use router::nodes::Nodes;
use router::query::Reader;
use symbol_store::SymbolStore;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::operations::Readiness;
use super::servers::Servers;
use super::{listen, operations};
use crate::command::RouterOptions;

/// Largest number of concurrent requests on one gRPC connection.
const GRPC_REQUESTS_PER_CONNECTION_MAX: usize = 32;

/// Listeners of the three ports. They are bound before any data is opened, so that a port in use is reported at once.
pub(super) struct Receiver {
    http: TcpListener,
    otlp_grpc: TcpListener,
    otlp_http: TcpListener,
}

/// Parts of the process that the services of the router use.
pub(super) struct Backing {
    pub(super) nodes: Nodes,
    pub(super) symbols: SymbolStore,
    pub(super) agent: AgentStatusSource,
    pub(super) auth: Auth,
    pub(super) tenants: Tenants,
}

impl Receiver {
    pub(super) async fn bind(options: &RouterOptions) -> anyhow::Result<Self> {
        Ok(Self {
            http: listen::bind(options.http_listen, "--http-listen").await?,
            otlp_grpc: listen::bind(options.otlp_grpc_listen, "--otlp-grpc-listen").await?,
            otlp_http: listen::bind(options.otlp_http_listen, "--otlp-http-listen").await?,
        })
    }

    pub(super) fn http_address(&self) -> anyhow::Result<SocketAddr> {
        self.http.local_addr().context("--http-listen")
    }

    pub(super) fn otlp_grpc_address(&self) -> anyhow::Result<SocketAddr> {
        self.otlp_grpc.local_addr().context("--otlp-grpc-listen")
    }

    /// Starts the services on the three ports.
    pub(super) fn serve(self, servers: &Servers, backing: Backing, mut registry: Registry, readiness: Readiness) {
        let Backing { nodes, symbols, agent, auth, tenants } = backing;
        let auth = auth.with_tenants(tenants.clone());
        let reader = Reader::new(nodes.clone(), symbols.clone(), &mut registry).with_tenants(tenants.clone());
        let pusher = Pusher::new(nodes.clone(), &mut registry).with_tenants(tenants);
        let grpc = OtlpGrpc::new(pusher.clone(), auth.clone());
        let otlp = api::otlp_routes(pusher.clone(), auth.clone());
        let operations = operations::routes(readiness, registry, auth.clone());
        let http = api::routes(Parts { nodes, pusher, reader, symbols, agent, auth });
        servers.http(self.http, operations.merge(http));
        servers.http(self.otlp_http, otlp);
        let stop = servers.stop.clone().cancelled_owned();
        servers.spawn(async move {
            Server::builder()
                .concurrency_limit_per_connection(GRPC_REQUESTS_PER_CONNECTION_MAX)
                .add_service(grpc)
                .serve_with_incoming_shutdown(TcpIncoming::from(self.otlp_grpc), stop)
                .await
                .context("OTLP gRPC")
        });
    }
}
