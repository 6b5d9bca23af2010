//! pprof: a profile.proto, gzipped or not. Every column of values becomes a profile of its own type.

mod advice;
mod tables;

use std::borrow::Cow;

use proto::attribute::{Attribute, AttributeValue};
use proto::profile_type::Siblings;
use proto::{Label, ProfileType, Push, Samples, ValueType, limits};

#[cfg(test)]
mod tests;

use self::tables::{Located, Tables};
use crate::ingest::decode::protobuf::{Fields, Value, WireError};
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::Knowledge;
use crate::ingest::normalize::builder::{Builder, Rejection};
use crate::ingest::normalize::stacks::{Frame, Frames};
use crate::ingest::unpack::{Encoding, unpack};

const FORMAT: &str = "pprof";

/// Columns of values; Go's heap profiles have 4.
const SAMPLE_TYPES_MAX: usize = 64;

/// The message of a pprof: unpacked, where it is packed, as pprofs nearly always are.
pub(crate) fn message(body: &[u8]) -> Result<Cow<'_, [u8]>, IngestError> {
    let encoding = match body {
        [0x1f, 0x8b, ..] => Encoding::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Encoding::Zstd,
        _ => Encoding::Identity,
    };
    unpack(body, encoding, limits::PUSH_UNPACKED_BYTES_MAX)
}

/// Decodes the [`message`] of a pprof. `name`: of the profile types, if the push says so; `labels`: of the series, `service_name` among them;
/// `now_ns`: the receiver's clock, for checks and for profiles without a time.
///
/// # Errors
/// [`IngestError`]: one pprof is one profile, so what is wrong in it refuses all of it, but for columns that overflow.
pub(crate) fn decode(
    message: &[u8],
    name: Option<&str>,
    labels: &[Label],
    now_ns: i64,
    knowledge: &mut Knowledge<'_>,
) -> Result<Push, IngestError> {
    let refused = |rejection: Rejection| IngestError::Malformed { format: FORMAT, detail: rejection.to_string() };
    let raw = RawProfile::read(message).map_err(|error| error.or_foreign(FORMAT, message))?;
    let mut tables = Tables::read(&raw.tables).map_err(refused)?;
    let mut builder = Builder::new(now_ns);
    let columns = raw.columns(&tables, &mut builder, name).map_err(refused)?;
    let columns = raw.fill(columns, &mut tables, &mut builder).map_err(refused)?;
    advice::warn(&columns, raw.duration_nanos, name, &mut builder);
    for column in columns {
        let added = match column.overflow {
            Some(rejection) => Err(rejection),
            None => {
                let locations_of = |builder: &mut Builder, sample: u32, count: usize, locations: &mut Vec<u32>| {
                    raw.locations(sample, &mut tables, builder, |_builder, located| {
                        if locations.len() < count {
                            locations.push(located.id);
                        }
                    })
                };
                builder.profile(&column.profile_type, &[labels], column.samples, knowledge, locations_of)
            }
        };
        if let Err(rejection) = added {
            builder.reject(&rejection);
        }
    }
    builder.finish()
}

/// The profile's fields, unread inside.
struct RawProfile<'a> {
    sample_types: Vec<&'a [u8]>,
    samples: Vec<&'a [u8]>,
    tables: tables::RawTables<'a>,
    time_nanos: i64,
    duration_nanos: i64,
    period_type: &'a [u8],
    period: i64,
}

/// The samples of one type.
struct Column {
    profile_type: ProfileType,
    scale: i64,
    samples: Samples,
    overflow: Option<Rejection>,
}

impl<'a> RawProfile<'a> {
    fn read(message: &'a [u8]) -> Result<Self, IngestError> {
        let mut raw = Self {
            sample_types: Vec::new(),
            samples: Vec::new(),
            tables: tables::RawTables::default(),
            time_nanos: 0,
            duration_nanos: 0,
            period_type: &[],
            period: 0,
        };
        raw.read_fields(message).map_err(|error| IngestError::wire(FORMAT, error))?;
        let malformed = |detail: &str| Err(IngestError::Malformed { format: FORMAT, detail: detail.to_owned() });
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

    fn columns(
        &self,
        tables: &Tables<'a>,
        builder: &mut Builder,
        name: Option<&str>,
    ) -> Result<Vec<Column>, Rejection> {
        let period_type = tables.value_type(self.period_type)?;
        let types = self.sample_types.iter().map(|message| tables.value_type(message));
        let types: Vec<ValueType> = types.collect::<Result<_, _>>()?;
        if self.time_nanos == 0 {
            builder.times_are_of_receipt();
        }
        let mut siblings = Siblings::default();
        types.iter().for_each(|sibling| siblings.add(&sibling.kind, &sibling.unit));
        let column = |sample_type: &ValueType| {
            let (profile_type, scale) = ProfileType::of_push(name, sample_type, siblings, &period_type, self.period);
            Column { profile_type, scale, samples: Samples::default(), overflow: None }
        };
        Ok(types.iter().map(column).collect())
    }

    fn fill(
        &self,
        mut columns: Vec<Column>,
        tables: &mut Tables<'a>,
        builder: &mut Builder,
    ) -> Result<Vec<Column>, Rejection> {
        let time_ns = match self.time_nanos {
            0 => builder.now_ns(),
            time if time < limits::TIME_MIN_NS => return Err(Rejection::TooOld { time_ns: time }),
            time => builder.time(time.cast_unsigned())?,
        };
        let (mut frames, mut values) = (Frames::default(), Vec::new());
        for (at, sample) in self.samples.iter().enumerate() {
            values.clear();
            let mut attributes = Vec::new();
            for field in Fields::new(sample) {
                match field? {
                    (2, value) => value.varints(2, &mut values)?,
                    (3, value) => attributes.push(attribute(value, tables, builder)?),
                    _ => {}
                }
            }
            if values.len() != columns.len() {
                return Err(Rejection::Columns { values: values.len(), types: columns.len() });
            }
            // Samples are bounded (`PUSH_SAMPLES_MAX`).
            let at = at as u32;
            frames.clear();
            self.locations(at, tables, builder, |builder, Located { id, is_kernel }| {
                frames.push(Frame { hash: builder.dictionary().location_hash(id), is_kernel });
            })?;
            let pair = builder.pair(&frames, at);
            let attribute_set = builder.attribute_set(attributes)?;
            for (column, value) in columns.iter_mut().zip(&values) {
                let count = value.cast_signed();
                match count.checked_mul(column.scale) {
                    Some(value) => column.samples.push(time_ns, pair, value, attribute_set),
                    None => column.overflow = Some(Rejection::Overflow { count, period: column.scale }),
                }
            }
        }
        Ok(columns)
    }

    /// Calls back with each location of a sample, leaf first.
    fn locations(
        &self,
        sample: u32,
        tables: &mut Tables<'a>,
        builder: &mut Builder,
        mut visit: impl FnMut(&mut Builder, Located),
    ) -> Result<(), Rejection> {
        for field in Fields::new(self.samples[sample as usize]) {
            if let (1, value) = field? {
                value.each_varint(1, |id| {
                    let located = tables.location(builder, id)?;
                    visit(builder, located);
                    Ok::<_, Rejection>(())
                })?;
            }
        }
        Ok(())
    }
}

/// A pprof label.
fn attribute(message: Value<'_>, tables: &mut Tables<'_>, builder: &mut Builder) -> Result<Attribute, Rejection> {
    let (mut key, mut text, mut number, mut unit) = (0, 0, 0, 0);
    for field in Fields::new(message.bytes(3)?) {
        match field? {
            (1, value) => key = value.int64(1)?,
            (2, value) => text = value.int64(2)?,
            (3, value) => number = value.int64(3)?,
            (4, value) => unit = value.int64(4)?,
            _ => {}
        }
    }
    let value = if text != 0 {
        AttributeValue::Text(tables.string_id(builder, text)?)
    } else {
        AttributeValue::Integer(number)
    };
    Ok(Attribute { key: tables.string_id(builder, key)?, unit: tables.string_id(builder, unit)?, value })
}
