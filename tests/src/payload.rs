//! Payloads that tests push, and decoders that share no code with varve: OTLP, pprof, and what both say about samples.

pub mod generated;
pub mod otlp;
pub mod otlp_decoded;
pub mod otlp_json;
pub mod pprof;
pub mod profilers;
pub mod sample;
pub mod wire;
