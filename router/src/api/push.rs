//! Receivers of pushes: OTLP and pprof over HTTP, OTLP over gRPC, and the responses that their senders get.

pub(crate) mod http;
pub mod otlp_grpc;
mod otlp_response;
pub(crate) mod rejection;
pub(crate) mod rpc_status;
