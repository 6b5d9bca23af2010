//! The head of a push request: format and compression of the body, and the idempotency key.

use axum::http::HeaderMap;
use bytes::Bytes;
use proto::{Label, limits};

use crate::ingest::error::{IngestError, PushError};

/// The head of a push request.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) format: Format,
    pub(crate) encoding: Encoding,
    /// Idempotency key that the client sent.
    pub(crate) key: Option<Bytes>,
}

/// Format of the body of a push.
#[derive(Debug)]
pub(crate) enum Format {
    OtlpProtobuf,
    OtlpJson,
    /// A pprof file. `name` is the name of the profile types, if the request has one. `labels` are the labels of the
    /// series, including `service_name`.
    Pprof {
        name: Option<String>,
        labels: Vec<Label>,
    },
}

impl Format {
    /// Name of the format in metrics and in the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::OtlpProtobuf => "otlp",
            Self::OtlpJson => "otlp_json",
            Self::Pprof { .. } => "pprof",
        }
    }
}

/// First bytes of a gzip member.
pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// First bytes of a zstd frame.
pub(crate) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Compression of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// Parses the value of a `Content-Encoding` header.
    pub(crate) fn parse(name: &str) -> Result<Self, IngestError> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "zstd" => Ok(Self::Zstd),
            _ => Err(IngestError::Encoding { name: name.chars().take(40).collect() }),
        }
    }
}

/// Returns the idempotency key of a request, from an HTTP header or gRPC metadata.
///
/// # Errors
/// Returns [`PushError::Key`] if the key is too long or empty. Otherwise all pushes with an empty key would count as
/// retries of one push.
pub(crate) fn client_key(headers: &HeaderMap) -> Result<Option<Bytes>, PushError> {
    let key = headers.get("idempotency-key").map(|key| Bytes::copy_from_slice(key.as_bytes()));
    match &key {
        Some(key) if key.is_empty() || key.len() > limits::IDEMPOTENCY_KEY_BYTES_MAX => Err(PushError::Key),
        _ => Ok(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_keys_must_not_be_empty_or_too_long() {
        let key =
            |key: &str| client_key(&HeaderMap::from_iter([("idempotency-key".parse().unwrap(), key.parse().unwrap())]));
        assert_eq!(key("a").unwrap().unwrap(), "a");
        assert_eq!(client_key(&HeaderMap::new()).unwrap(), None);
        assert!(matches!(key(""), Err(PushError::Key)));
        assert!(matches!(key(&"x".repeat(limits::IDEMPOTENCY_KEY_BYTES_MAX + 1)), Err(PushError::Key)));
    }

    #[test]
    fn unknown_content_encodings_are_refused() {
        assert!(Encoding::parse("br").is_err());
        assert_eq!(Encoding::parse(" GZIP ").unwrap(), Encoding::Gzip);
    }
}
