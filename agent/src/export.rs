//! Export of samples: encoded as OTLP requests, queued, sent until they are acknowledged, and spooled on disk while the
//! receiver is unreachable.

pub(crate) mod client;
pub(crate) mod dictionary;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod sender;
pub(crate) mod spool;
pub(crate) mod writer;
