//! One profile of an export request: its samples, in either layout, in each of the three shapes.
//!
//! A sample has timestamps alone (each counts 1), one value alone (at the profile's time), or as many values as timestamps.

use proto::attribute::Attribute;
use proto::{ProfileType, Samples, ValueType, limits};

use super::Context;
use super::dictionary::{RawAttribute, RawValue, Tables};
use super::layout::Layout;
use crate::ingest::builder::{Builder, Rejection};
use crate::ingest::protobuf::{Fields, Value, WireError};

/// The fields of a profile that matter, its samples unread.
#[derive(Debug)]
pub(crate) struct RawProfile<'a> {
    pub(crate) sample_type: &'a [u8],
    period_type: &'a [u8],
    period: i64,
    time_unix_nano: u64,
    samples: Vec<&'a [u8]>,
    attribute_indices: Vec<u64>,
}

impl<'a> RawProfile<'a> {
    pub(crate) fn read(message: &'a [u8], layout: Layout) -> Result<Self, WireError> {
        let mut profile = Self {
            sample_type: &[],
            period_type: &[],
            period: 0,
            time_unix_nano: 0,
            samples: Vec::new(),
            attribute_indices: Vec::new(),
        };
        let attributes = if layout == Layout::Old && is_layout_1_8(message) { 12 } else { 11 };
        for field in Fields::new(message) {
            match field? {
                (1, value) => profile.sample_type = value.bytes(1)?,
                (2, value) => profile.samples.push(value.bytes(2)?),
                (3, value) => profile.time_unix_nano = value.fixed64(3)?,
                (5, value) => profile.period_type = value.bytes(5)?,
                (6, value) => profile.period = value.int64(6)?,
                (number, value) if number == attributes => value.varints(number, &mut profile.attribute_indices)?,
                _ => {}
            }
        }
        Ok(profile)
    }

    /// A ValueType message of this profile.
    pub(crate) fn value_type(&self, message: &'a [u8], tables: &Tables<'a>) -> Result<ValueType, Rejection> {
        let mut value_type = ValueType::default();
        for field in Fields::new(message) {
            match field? {
                (1, value) => value_type.kind = tables.string(value.int64(1)?)?.into_owned(),
                (2, value) => value_type.unit = tables.string(value.int64(2)?)?.into_owned(),
                _ => {}
            }
        }
        Ok(value_type)
    }
}

/// In 1.8 `profile_id` is field 8 and `dropped_attributes_count` field 9; later they are fields 7 and 8.
fn is_layout_1_8(profile: &[u8]) -> bool {
    Fields::new(profile)
        .map_while(Result::ok)
        .any(|field| matches!(field, (8, Value::Bytes(_)) | (9, Value::Varint(_))))
}

/// Adds a profile to the push.
pub(crate) fn add<'a>(
    builder: &mut Builder,
    tables: &mut Tables<'a>,
    layout: Layout,
    context: &Context<'a>,
    siblings: &[ValueType],
    profile: &RawProfile<'a>,
) -> Result<(), Rejection> {
    let sample_type = profile.value_type(profile.sample_type, tables)?;
    let period_type = profile.value_type(profile.period_type, tables)?;
    let (profile_type, scale) = ProfileType::of_push(None, &sample_type, siblings, &period_type, profile.period);
    let mut common: Vec<Attribute> =
        context.sample_attributes.iter().map(|attribute| attribute.intern(builder)).collect();
    for &index in &profile.attribute_indices {
        common.push(tables.attribute(index.cast_signed())?.intern(builder));
    }
    let mut samples = Samples::default();
    let mut raw = RawSample::default();
    for sample in &profile.samples {
        raw.read(sample, layout)?;
        raw.add(builder, tables, &common, profile, scale, &mut samples)?;
    }
    builder.profile(&profile_type, context.labels.clone(), samples)
}

/// One sample's fields; reused from sample to sample.
#[derive(Debug, Default)]
struct RawSample {
    stack_index: i64,
    attribute_indices: Vec<u64>,
    link_index: i64,
    values: Vec<u64>,
    timestamps: Vec<u64>,
}

impl RawSample {
    fn read(&mut self, message: &[u8], layout: Layout) -> Result<(), WireError> {
        (self.stack_index, self.link_index) = (0, 0);
        for column in [&mut self.attribute_indices, &mut self.values, &mut self.timestamps] {
            column.clear();
        }
        for field in Fields::new(message) {
            match field? {
                (1, value) => self.stack_index = value.int64(1)?,
                (5, value) => value.fixed64s(5, &mut self.timestamps)?,
                (number, value) if number == layout.values() => value.varints(number, &mut self.values)?,
                (number, value) if number == layout.attribute_indices() => {
                    value.varints(number, &mut self.attribute_indices)?;
                }
                (number, value) if number == layout.link_index() => self.link_index = value.int64(number)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add<'a>(
        &self,
        builder: &mut Builder,
        tables: &mut Tables<'a>,
        common: &[Attribute],
        profile: &RawProfile<'a>,
        scale: i64,
        samples: &mut Samples,
    ) -> Result<(), Rejection> {
        let scaled = |value: i64| value.checked_mul(scale).ok_or(Rejection::Overflow { count: value, period: scale });
        let pair = tables.pair(builder, self.stack_index)?;
        let attribute_set = self.attribute_set(builder, tables, common)?;
        match (self.values.as_slice(), self.timestamps.as_slice()) {
            (values, times) if values.is_empty() || values.len() == times.len() => {
                for (i, &time) in times.iter().enumerate() {
                    let value = values.get(i).map_or(1, |value| value.cast_signed());
                    samples.push(builder.time(time)?, pair, scaled(value)?, attribute_set);
                }
            }
            (&[value], []) => {
                let time = match profile.time_unix_nano {
                    0 => {
                        builder.times_are_of_receipt();
                        builder.now_ns()
                    }
                    time => builder.time(time)?,
                };
                samples.push(time, pair, scaled(value.cast_signed())?, attribute_set);
            }
            (values, times) => return Err(Rejection::Shape { values: values.len(), timestamps: times.len() }),
        }
        Ok(())
    }

    fn attribute_set<'a>(
        &self,
        builder: &mut Builder,
        tables: &Tables<'a>,
        common: &[Attribute],
    ) -> Result<u32, Rejection> {
        // A sample's own attributes come first: of equal keys the first stays.
        let mut attributes = Vec::with_capacity(self.attribute_indices.len() + common.len() + 2);
        if self.attribute_indices.len() > limits::SAMPLE_ATTRIBUTES_MAX {
            let count_max = limits::SAMPLE_ATTRIBUTES_MAX;
            return Err(Rejection::TooMany { what: "attributes of one sample", count_max });
        }
        for &index in &self.attribute_indices {
            attributes.push(tables.attribute(index.cast_signed())?.intern(builder));
        }
        if self.link_index != 0 {
            let ids = tables.link(self.link_index)?;
            for (key, id) in ["trace_id", "span_id"].into_iter().zip(ids) {
                let attribute =
                    id.map(|id| RawAttribute { key: key.into(), value: RawValue::Text(id.into()), unit: "".into() });
                attributes.extend(attribute.map(|attribute| attribute.intern(builder)));
            }
        }
        attributes.extend_from_slice(common);
        Ok(builder.dictionary().intern_attributes(attributes))
    }
}
