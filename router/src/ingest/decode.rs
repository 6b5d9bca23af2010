//! Decode: the third step of a push.
//!
//! This step finds the fields of a message. The next step reads the entries of the message's tables, and only the ones
//! that are used.

pub(crate) mod foreign;
pub(crate) mod otlp;
pub(crate) mod pprof;
pub(crate) mod protobuf;

use proto::Label;

use self::otlp::RawRequest;
use self::otlp::layout::Layout;
use self::pprof::RawPprof;
use crate::ingest::error::{IngestError, OTLP_FORMAT, PPROF_FORMAT};
use crate::ingest::request::Format;

/// A decoded message of either format.
pub(crate) enum Decoded<'m> {
    Otlp(RawRequest<'m>),
    /// A pprof file. `name` and `labels` have the meaning of [`Format::Pprof`].
    Pprof {
        file: RawPprof<'m>,
        name: Option<&'m str>,
        labels: &'m [Label],
    },
}

/// Finds the fields of a message in this format.
pub(crate) fn decode<'m>(message: &'m [u8], format: &'m Format) -> Result<Decoded<'m>, IngestError> {
    match format {
        Format::OtlpProtobuf => RawRequest::read(message, None).map(Decoded::Otlp),
        // JSON has names in place of field numbers, so its layout is always the newest.
        Format::OtlpJson => RawRequest::read(message, Some(Layout::New)).map(Decoded::Otlp),
        Format::Pprof { name, labels } => {
            let file = RawPprof::read(message)?;
            Ok(Decoded::Pprof { file, name: name.as_deref(), labels })
        }
    }
}

/// Improves the error of a malformed message. If the message has a known format that cannot be pushed, or cannot be
/// pushed to this endpoint, returns an error that names the format. Otherwise returns `error`.
pub(crate) fn recognized(error: IngestError, message: &[u8], format: &Format) -> IngestError {
    let IngestError::Malformed { .. } = error else { return error };
    let other = || match format {
        Format::OtlpProtobuf => RawPprof::is_one(message).then_some(foreign::PPROF),
        Format::OtlpJson => None,
        Format::Pprof { .. } => RawRequest::is_one(message).then_some(foreign::OTLP),
    };
    let expected = if matches!(format, Format::Pprof { .. }) { PPROF_FORMAT } else { OTLP_FORMAT };
    match foreign::recognize(message).or_else(other) {
        Some(found) => IngestError::Foreign { expected, found },
        None => error,
    }
}
