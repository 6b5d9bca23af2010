//! Receivers of pushes: OTLP and pprof over HTTP, and OTLP over gRPC. Also the responses to the senders.

pub(crate) mod http;
pub mod otlp_grpc;
mod otlp_response;
pub(crate) mod rejection;
pub(crate) mod rpc_status;
