//! Export of samples. They are encoded as OTLP requests, which are queued. A request is sent until it is acknowledged.
//! While the receiver is unreachable, requests are spooled on disk.

pub(crate) mod client;
pub(crate) mod dictionary;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod request;
pub(crate) mod sender;
pub(crate) mod spool;
pub(crate) mod writer;
