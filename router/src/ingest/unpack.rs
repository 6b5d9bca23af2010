//! Unpack: the second step of a push.
//!
//! This step undoes compression and converts JSON to protobuf.
//!
//! The output size is limited during decompression, so a decompression bomb costs no more than the limit.

pub(crate) mod otlp_json;

use std::borrow::Cow;
use std::io::{ErrorKind, Read};

use proto::limits;

use crate::ingest::admission::InFlight;
use crate::ingest::error::{IngestError, PushError};
use crate::ingest::request::{Encoding, Format, GZIP_MAGIC, Head, ZSTD_MAGIC};

/// Base-2 logarithm of the largest window that a zstd frame may request from the decoder, in bytes. It is the default
/// limit of the tool `zstd`.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Number of bytes up to which the memory of a result grows in steps. A larger result gets the memory of the largest
/// one at once: pages that are not used cost nothing, and in each step, the old and the new memory would be in use.
const GROWN_BYTES_MAX: u64 = 1 << 20;

/// Returns the protobuf message in a body. The result of each conversion counts as bytes in flight before the next
/// conversion begins.
pub(crate) fn unpack<'b>(body: &'b [u8], head: &Head, in_flight: &mut InFlight) -> Result<Cow<'b, [u8]>, PushError> {
    let bytes_max = limits::PUSH_UNPACKED_BYTES_MAX;
    let content = decompress(body, head.encoding, bytes_max)?;
    let bytes = body.len() + content.len();
    in_flight.grow_to(bytes)?;
    let message = match &head.format {
        Format::OtlpProtobuf => return Ok(content),
        Format::OtlpJson => otlp_json::to_protobuf(&content)?,
        // A pprof file is nearly always compressed by itself, whatever the request declares.
        Format::Pprof { .. } => match encoding_of(&content) {
            Encoding::Identity => return Ok(content),
            encoding => decompress(&content, encoding, bytes_max)?.into_owned(),
        },
    };
    in_flight.grow_to(bytes + message.len())?;
    Ok(Cow::Owned(message))
}

/// Returns the compression of a file, judged by the first bytes.
fn encoding_of(file: &[u8]) -> Encoding {
    if file.starts_with(&GZIP_MAGIC[..]) {
        Encoding::Gzip
    } else if file.starts_with(&ZSTD_MAGIC[..]) {
        Encoding::Zstd
    } else {
        Encoding::Identity
    }
}

/// Decompresses a body. Refuses a result of more than `bytes_max` bytes.
fn decompress(body: &[u8], encoding: Encoding, bytes_max: usize) -> Result<Cow<'_, [u8]>, IngestError> {
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
    let undecodable = |source| IngestError::Compression { format, source };
    let mut out = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    let mut decoder = decoder.take(limit);
    decoder.by_ref().take(GROWN_BYTES_MAX).read_to_end(&mut out).map_err(undecodable)?;
    if out.len() as u64 == GROWN_BYTES_MAX {
        out.reserve_exact(usize::try_from(decoder.limit()).unwrap_or(usize::MAX).saturating_add(1));
        decoder.read_to_end(&mut out).map_err(undecodable)?;
    }
    if out.len() > bytes_max { Err(IngestError::TooLarge { bytes_max }) } else { Ok(out) }
}

/// Returns [`IngestError::Truncated`] if the body begins like its format but ends too early. Otherwise returns `error`.
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
    use crate::ingest::admission::Admission;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn bodies_are_decompressed_up_to_the_limit_and_no_further() {
        check_limit(10_000);
        // These results do not grow in steps only.
        for more in [0, 1, 10_000] {
            check_limit(GROWN_BYTES_MAX as usize + more);
        }
    }

    fn check_limit(length: usize) {
        let bytes = vec![7; length];
        for (packed, encoding) in [
            (bytes.clone(), Encoding::Identity),
            (gzip(&bytes), Encoding::Gzip),
            (zstd::encode_all(bytes.as_slice(), 3).unwrap(), Encoding::Zstd),
        ] {
            assert!(decompress(&packed, encoding, length).unwrap() == bytes, "{encoding:?} {length}");
            let refused = decompress(&packed, encoding, length - 1);
            assert!(matches!(refused, Err(IngestError::TooLarge { .. })), "{encoding:?} {length}");
        }
    }

    #[test]
    fn truncated_bodies_are_called_truncated() {
        let bytes: Vec<u8> = (0_u32..1000).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
        for (packed, encoding) in
            [(gzip(&bytes), Encoding::Gzip), (zstd::encode_all(bytes.as_slice(), 3).unwrap(), Encoding::Zstd)]
        {
            for length in [packed.len() / 2, packed.len() - 1] {
                let error = decompress(&packed[..length], encoding, 10_000).unwrap_err();
                assert!(matches!(error, IngestError::Truncated { .. }), "{encoding:?} {length}: {error}");
            }
        }
    }

    #[test]
    fn bodies_that_are_not_compressed_as_declared_are_refused() {
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            assert!(matches!(decompress(b"neither", encoding, 100), Err(IngestError::Compression { .. })));
        }
    }

    #[test]
    fn unpacked_bytes_are_counted_as_in_flight() {
        let bytes = vec![0; 10 << 20];
        let packed = gzip(&bytes);
        let admission = Admission::default();
        let mut in_flight = admission.enter(0).unwrap();
        let before = admission.free_bytes();
        let format = Format::Pprof { name: None, labels: Vec::new() };
        let head = Head { format, encoding: Encoding::Identity, key: None };
        assert_eq!(unpack(&packed, &head, &mut in_flight).unwrap(), bytes);
        assert!(before - admission.free_bytes() >= 10 << 20);
    }
}
