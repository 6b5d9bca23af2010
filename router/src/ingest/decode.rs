//! Decode: the third step of a push. Finds the fields of a message; entries that nothing refers to are never read.

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

/// A message of either format.
pub(crate) enum Decoded<'m> {
    Otlp(RawRequest<'m>),
    /// `name` and `labels`: as in [`Format::Pprof`].
    Pprof {
        file: RawPprof<'m>,
        name: Option<&'m str>,
        labels: &'m [Label],
    },
}

/// Finds the fields of a message. A format that is recognized but cannot be pushed is named in the error.
pub(crate) fn decode<'m>(message: &'m [u8], format: &'m Format) -> Result<Decoded<'m>, IngestError> {
    match format {
        Format::OtlpProtobuf => RawRequest::read(message, None).map(Decoded::Otlp).map_err(|error| match error {
            IngestError::Malformed { .. } => error.or_foreign(OTLP_FORMAT, message),
            error => error,
        }),
        // JSON has names in place of field numbers, so its layout is always the newest.
        Format::OtlpJson => RawRequest::read(message, Some(Layout::New)).map(Decoded::Otlp),
        Format::Pprof { name, labels } => {
            let file = RawPprof::read(message).map_err(|error| error.or_foreign(PPROF_FORMAT, message))?;
            Ok(Decoded::Pprof { file, name: name.as_deref(), labels })
        }
    }
}
