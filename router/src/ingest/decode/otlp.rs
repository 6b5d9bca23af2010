//! OTLP requests: their layouts, and their form in JSON.

pub(crate) mod json;
pub(crate) mod layout;

/// The format, as errors name it.
pub(crate) const FORMAT: &str = "OTLP export request";
