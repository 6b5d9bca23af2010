//! Encoding and decoding of the messages between routers and nodes, and of the formats of other tools.

mod batch;
pub mod bytes_codec;
mod decoder;
pub(crate) mod definitions;
mod encoder;
pub mod folded;
mod needed;
mod numbers;
#[cfg(test)]
mod oracle;
pub mod otlp;
pub mod pprof;
pub mod rpc_status;
pub mod wire;

pub use batch::BatchError;
pub use definitions::DefinitionsError;
pub(crate) use encoder::{Encoder, References};
pub(crate) use numbers::{deltas, from_deltas};
