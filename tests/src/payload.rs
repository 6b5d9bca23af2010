//! Payloads that tests push, and decoders of OTLP and pprof that share no code with varve.

pub mod damaged;
pub mod generated;
pub mod otlp;
pub mod otlp_decoded;
pub mod otlp_json;
pub mod pprof;
pub mod profilers;
pub mod sample;
pub mod wire;
