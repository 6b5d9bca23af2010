//! Decoders of wire formats: protobuf fields, the layouts of OTLP, and formats that are recognized only to be refused.

pub(crate) mod foreign;
pub(crate) mod otlp;
pub(crate) mod protobuf;
