//! Decoding of pprof files: `profile.proto` after decompression.

use proto::limits;

use crate::ingest::decode::protobuf::{Fields, WireError};
use crate::ingest::error::{IngestError, PPROF_FORMAT};

/// Maximum number of sample types of one profile. Go's heap profiles have four.
const SAMPLE_TYPES_MAX: usize = 64;

/// The fields of a pprof file. The messages in these fields are not read yet.
pub(crate) struct RawPprof<'a> {
    pub(crate) sample_types: Vec<&'a [u8]>,
    pub(crate) samples: Vec<&'a [u8]>,
    pub(crate) tables: RawTables<'a>,
    pub(crate) time_nanos: i64,
    pub(crate) duration_nanos: i64,
    pub(crate) period_type: &'a [u8],
    pub(crate) period: i64,
}

/// The tables of a profile: mappings, locations, functions and strings.
#[derive(Default)]
pub(crate) struct RawTables<'a> {
    pub(crate) mappings: Vec<&'a [u8]>,
    pub(crate) locations: Vec<&'a [u8]>,
    pub(crate) functions: Vec<&'a [u8]>,
    pub(crate) strings: Vec<&'a [u8]>,
}

impl<'a> RawPprof<'a> {
    /// Finds the fields of a pprof file.
    ///
    /// # Errors
    /// Returns [`IngestError::Malformed`], or [`IngestError::TooMany`] if there are too many sample types or samples.
    pub(crate) fn read(message: &'a [u8]) -> Result<Self, IngestError> {
        let mut raw = Self {
            sample_types: Vec::new(),
            samples: Vec::new(),
            tables: RawTables::default(),
            time_nanos: 0,
            duration_nanos: 0,
            period_type: &[],
            period: 0,
        };
        raw.read_fields(message).map_err(|error| IngestError::wire(PPROF_FORMAT, error))?;
        let malformed = |detail: &str| Err(IngestError::Malformed { format: PPROF_FORMAT, detail: detail.to_owned() });
        if raw.sample_types.is_empty() {
            return malformed("it has no sample type: is this a pprof profile?");
        }
        if raw.sample_types.len() > SAMPLE_TYPES_MAX {
            return Err(IngestError::TooMany { what: "sample types", count_max: SAMPLE_TYPES_MAX });
        }
        if raw.samples.len().saturating_mul(raw.sample_types.len()) > limits::PUSH_SAMPLES_MAX {
            return Err(IngestError::TooMany { what: "samples", count_max: limits::PUSH_SAMPLES_MAX });
        }
        Ok(raw)
    }

    /// Returns whether a message of unknown format is a pprof file. The first string of a pprof file, in field 6, is
    /// empty. Such a field is missing in an OTLP request.
    pub(super) fn is_one(message: &'a [u8]) -> bool {
        let first = |raw: &Self| raw.tables.strings.first().copied();
        Self::read(message).is_ok_and(|raw| first(&raw) == Some(&[]))
    }

    fn read_fields(&mut self, message: &'a [u8]) -> Result<(), WireError> {
        for field in Fields::new(message) {
            match field? {
                (1, value) => self.sample_types.push(value.bytes(1)?),
                (2, value) => self.samples.push(value.bytes(2)?),
                (3, value) => self.tables.mappings.push(value.bytes(3)?),
                (4, value) => self.tables.locations.push(value.bytes(4)?),
                (5, value) => self.tables.functions.push(value.bytes(5)?),
                (6, value) => self.tables.strings.push(value.bytes(6)?),
                (9, value) => self.time_nanos = value.int64(9)?,
                (10, value) => self.duration_nanos = value.int64(10)?,
                (11, value) => self.period_type = value.bytes(11)?,
                (12, value) => self.period = value.int64(12)?,
                _ => {}
            }
        }
        Ok(())
    }
}
