//! Conversion of pprof files to the normal form. Each column of values becomes a profile of its own type.

mod tables;

#[cfg(test)]
mod tests;

use proto::dictionary::{Attribute, AttributeValue};
use proto::profile_type::Siblings;
use proto::{Label, ProfileType, Samples, ValueType, limits};

use self::tables::{Located, ProfileTables};
use crate::ingest::decode::pprof::RawPprof;
use crate::ingest::decode::protobuf::{Fields, Value};
use crate::ingest::error::ProfileError;
use crate::ingest::known_stacks::DefinitionPlan;
use crate::ingest::normalize::advice::Subject;
use crate::ingest::normalize::builder::Builder;
use crate::ingest::normalize::frames::{Frame, Frames};

/// Adds all profiles of a file to a push. `name` is the name of the profile types, if the push has one. `labels` are
/// the labels of the series, including `service_name`.
///
/// # Errors
/// Returns the first fault in the file, which refuses the whole file. A fault in one column, such as an overflow,
/// refuses only that column and is no error here.
pub(super) fn add(
    raw: &RawPprof<'_>,
    name: Option<&str>,
    labels: &[Label],
    builder: &mut Builder,
    plan: &mut DefinitionPlan<'_>,
) -> Result<(), ProfileError> {
    let mut tables = ProfileTables::read(&raw.tables)?;
    let columns = columns(raw, &tables, builder, name)?;
    let columns = fill(raw, columns, &mut tables, builder)?;
    let has_values = |column: &&Column| column.samples.values.iter().any(|&value| value != 0);
    let kinds = columns.iter().filter(has_values).map(|column| column.profile_type.sample().kind.as_str());
    let naming = name.is_none_or(str::is_empty).then_some("send name=mutex or name=block");
    Subject { kinds: kinds.collect(), duration: raw.duration_nanos.cast_unsigned(), naming }.warn(builder);
    for column in columns {
        let added = match column.overflow {
            Some(error) => Err(error),
            None => {
                let locations_of = |builder: &mut Builder, sample: u32, count: usize, to: &mut Vec<u32>| {
                    locations(raw, sample, &mut tables, builder, |_builder, located| {
                        if to.len() < count {
                            to.push(located.id);
                        }
                    })
                };
                builder.profile(&column.profile_type, labels.into(), &[], column.samples, plan, locations_of)
            }
        };
        if let Err(error) = added {
            builder.reject(&error);
        }
    }
    Ok(())
}

/// The samples of one sample type.
struct Column {
    profile_type: ProfileType,
    scale: i64,
    samples: Samples,
    overflow: Option<ProfileError>,
}

fn columns<'a>(
    raw: &RawPprof<'a>,
    tables: &ProfileTables<'a>,
    builder: &mut Builder,
    name: Option<&str>,
) -> Result<Vec<Column>, ProfileError> {
    let period_type = tables.value_type(raw.period_type)?;
    let types = raw.sample_types.iter().map(|message| tables.value_type(message));
    let types: Vec<ValueType> = types.collect::<Result<_, _>>()?;
    if raw.time_nanos == 0 {
        builder.times_are_of_receipt();
    }
    let mut siblings = Siblings::default();
    types.iter().for_each(|sibling| siblings.add(&sibling.kind, &sibling.unit));
    let column = |sample_type: &ValueType| {
        let (profile_type, scale) = ProfileType::of_push(name, sample_type, siblings, &period_type, raw.period);
        Column { profile_type, scale, samples: Samples::default(), overflow: None }
    };
    Ok(types.iter().map(column).collect())
}

fn fill<'a>(
    raw: &RawPprof<'a>,
    mut columns: Vec<Column>,
    tables: &mut ProfileTables<'a>,
    builder: &mut Builder,
) -> Result<Vec<Column>, ProfileError> {
    let time_ns = match raw.time_nanos {
        0 => builder.now_ns(),
        time if time < limits::TIME_MIN_NS => return Err(ProfileError::TooOld { time_ns: time }),
        time => builder.time(time.cast_unsigned())?,
    };
    let mut frames = Frames::default();
    let mut values = Vec::new();
    for (at, sample) in raw.samples.iter().enumerate() {
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
            return Err(ProfileError::Columns { values: values.len(), types: columns.len() });
        }
        // The index fits in u32, because `PUSH_SAMPLES_MAX` limits the number of samples.
        let at = at as u32;
        frames.clear();
        locations(raw, at, tables, builder, |builder, Located { id, is_kernel }| {
            frames.push(Frame { hash: builder.dictionary().location_hash(id), is_kernel });
        })?;
        let pair = builder.pair(&frames, at);
        let attribute_set = builder.attribute_set(attributes)?;
        for (column, value) in columns.iter_mut().zip(&values) {
            let count = value.cast_signed();
            match count.checked_mul(column.scale) {
                Some(value) => column.samples.push(time_ns, pair, value, attribute_set),
                None => column.overflow = Some(ProfileError::Overflow { count, period: column.scale }),
            }
        }
    }
    Ok(columns)
}

/// Calls `visit` with each location of a sample, leaf first.
fn locations<'a>(
    raw: &RawPprof<'a>,
    sample: u32,
    tables: &mut ProfileTables<'a>,
    builder: &mut Builder,
    mut visit: impl FnMut(&mut Builder, Located),
) -> Result<(), ProfileError> {
    for field in Fields::new(raw.samples[sample as usize]) {
        if let (1, value) = field? {
            value.each_varint(1, |id| {
                let located = tables.location(builder, id)?;
                visit(builder, located);
                Ok::<_, ProfileError>(())
            })?;
        }
    }
    Ok(())
}
/// Reads a pprof label as an attribute.
fn attribute(
    message: Value<'_>,
    tables: &mut ProfileTables<'_>,
    builder: &mut Builder,
) -> Result<Attribute, ProfileError> {
    let mut key = 0;
    let mut text = 0;
    let mut number = 0;
    let mut unit = 0;
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
