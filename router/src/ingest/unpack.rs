//! Decompression, bounded while it streams: a bomb costs no more than the limit.

use std::borrow::Cow;
use std::io::{ErrorKind, Read};

use crate::ingest::error::IngestError;

/// How a body was compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

/// First bytes of a gzip member.
pub(super) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// First bytes of a zstd frame.
pub(super) const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// What a frame may ask of a decoder's memory: 2^27 bytes, what `zstd` itself accepts by default.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

impl Encoding {
    /// From a `Content-Encoding` header.
    pub(crate) fn parse(name: &str) -> Result<Self, IngestError> {
        match name.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip),
            "zstd" => Ok(Self::Zstd),
            _ => Err(IngestError::Encoding { name: name.chars().take(40).collect() }),
        }
    }
}

/// The body as it was before compression, at most `bytes_max` of it.
pub(crate) fn unpack(body: &[u8], encoding: Encoding, bytes_max: usize) -> Result<Cow<'_, [u8]>, IngestError> {
    let too_large = || IngestError::TooLarge { bytes_max };
    match encoding {
        Encoding::Identity if body.len() > bytes_max => Err(too_large()),
        Encoding::Identity => Ok(Cow::Borrowed(body)),
        Encoding::Gzip => {
            let decoder = flate2::bufread::MultiGzDecoder::new(body);
            let read = read_bounded(decoder, "gzip", bytes_max);
            read.map_err(|error| named_truncated(error, body, &GZIP_MAGIC)).map(Cow::Owned)
        }
        Encoding::Zstd => {
            let undecodable = |source| IngestError::Compression { format: "zstd", source };
            let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(undecodable)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(undecodable)?;
            let read = read_bounded(decoder, "zstd", bytes_max);
            read.map_err(|error| named_truncated(error, body, &ZSTD_MAGIC)).map(Cow::Owned)
        }
    }
}

fn read_bounded(decoder: impl Read, format: &'static str, bytes_max: usize) -> Result<Vec<u8>, IngestError> {
    let mut out = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut out).map_err(|source| IngestError::Compression { format, source })?;
    if out.len() > bytes_max { Err(IngestError::TooLarge { bytes_max }) } else { Ok(out) }
}

/// The error, or [`IngestError::Truncated`] where the body begins as its format does and ends too early.
fn named_truncated(error: IngestError, body: &[u8], magic: &[u8]) -> IngestError {
    match error {
        IngestError::Compression { format, source }
            if source.kind() == ErrorKind::UnexpectedEof && body.starts_with(magic) =>
        {
            IngestError::Truncated { format }
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_was_packed_comes_back_up_to_the_limit_and_not_a_byte_more() {
        let bytes = vec![7; 10_000];
        for (packed, encoding) in [
            (bytes.clone(), Encoding::Identity),
            (gzip(&bytes), Encoding::Gzip),
            (zstd::encode_all(bytes.as_slice(), 3).unwrap(), Encoding::Zstd),
        ] {
            assert_eq!(unpack(&packed, encoding, 10_000).unwrap(), bytes);
            assert!(matches!(unpack(&packed, encoding, 9_999), Err(IngestError::TooLarge { .. })), "{encoding:?}");
        }
    }

    #[test]
    fn a_truncated_body_is_called_truncated() {
        let bytes: Vec<u8> = (0_u32..1000).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
        for (packed, encoding) in
            [(gzip(&bytes), Encoding::Gzip), (zstd::encode_all(bytes.as_slice(), 3).unwrap(), Encoding::Zstd)]
        {
            for length in [packed.len() / 2, packed.len() - 1] {
                let error = unpack(&packed[..length], encoding, 10_000).unwrap_err();
                assert!(matches!(error, IngestError::Truncated { .. }), "{encoding:?} {length}: {error}");
            }
        }
    }

    #[test]
    fn what_is_not_compressed_as_it_says_is_refused() {
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            assert!(matches!(unpack(b"neither", encoding, 100), Err(IngestError::Compression { .. })));
        }
        assert!(Encoding::parse("br").is_err());
        assert_eq!(Encoding::parse(" GZIP ").unwrap(), Encoding::Gzip);
    }
}
