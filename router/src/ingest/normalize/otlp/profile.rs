//! One profile of an export request. Converts its samples, in either layout and in each of three shapes.
//!
//! A sample has one of these shapes: only timestamps (each counts 1), only one value (at the profile's time), or as
//! many values as timestamps.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use proto::dictionary::Attribute;
use proto::profile_type::Siblings;
use proto::{ProfileType, Samples, ValueType, limits};

use super::dictionary::RequestDictionary;
use super::resource::ScopeContext;
use crate::ingest::decode::otlp::layout::Layout;
use crate::ingest::decode::protobuf::{Fields, Value, WireError};
use crate::ingest::error::ProfileError;
use crate::ingest::known_stacks::DefinitionPlan;
use crate::ingest::normalize::advice::Subject;
use crate::ingest::normalize::builder::{Builder, check_label_value};

/// The fields of a profile that varve uses. The samples are not read yet.
#[derive(Debug)]
pub(crate) struct RawProfile<'a> {
    sample_type: &'a [u8],
    period_type: &'a [u8],
    period: i64,
    time_unix_nano: u64,
    duration_nano: u64,
    samples: Vec<&'a [u8]>,
    attribute_indices: Vec<u64>,
    layout: Layout,
}

impl<'a> RawProfile<'a> {
    pub(crate) fn read(message: &'a [u8], layout: Layout) -> Result<Self, WireError> {
        let mut profile = Self {
            sample_type: &[],
            period_type: &[],
            period: 0,
            time_unix_nano: 0,
            duration_nano: 0,
            samples: Vec::new(),
            attribute_indices: Vec::new(),
            layout,
        };
        let attributes = if layout == Layout::Old && is_layout_1_8(message) { 12 } else { 11 };
        for field in Fields::new(message) {
            match field? {
                (1, value) => profile.sample_type = value.bytes(1)?,
                (2, value) => profile.samples.push(value.bytes(2)?),
                (3, value) => profile.time_unix_nano = value.fixed64(3)?,
                (4, value) => profile.duration_nano = value.varint(4)?,
                (5, value) => profile.period_type = value.bytes(5)?,
                (6, value) => profile.period = value.int64(6)?,
                (number, value) if number == attributes => value.varints(number, &mut profile.attribute_indices)?,
                _ => {}
            }
        }
        Ok(profile)
    }

    /// Returns the IDs of the texts of the sample type: its kind and its unit.
    pub(crate) fn sample_type(
        &self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'a>,
    ) -> Result<[u32; 2], ProfileError> {
        value_type(builder, dictionary, self.sample_type)
    }

    fn profile_type(
        &self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'a>,
        siblings: Siblings,
    ) -> Result<(ProfileType, i64), ProfileError> {
        let sample = self.sample_type(builder, dictionary)?;
        let period = value_type(builder, dictionary, self.period_type)?;
        let strings = &builder.dictionary().strings;
        let owned = |[kind, unit]: [u32; 2]| {
            let kind = strings.get(kind);
            let unit = strings.get(unit);
            check_label_value(kind.len() + unit.len())?;
            Ok::<_, ProfileError>(ValueType::new(kind, unit))
        };
        Ok(ProfileType::of_push(None, &owned(sample)?, siblings, &owned(period)?, self.period))
    }

    /// Adds the profile to the push. `is_last` is true if no profile of the same scope follows.
    pub(crate) fn add(
        &self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'a>,
        context: &mut ScopeContext<'_>,
        is_last: bool,
        siblings: Siblings,
        plan: &mut DefinitionPlan<'_>,
    ) -> Result<(), ProfileError> {
        let (profile_type, scale) = self.profile_type(builder, dictionary, siblings)?;
        let attributes = common_attributes(builder, dictionary, context, self)?;
        let mut common = Common { attributes, sets: HashMap::default(), time_unix_nano: self.time_unix_nano, scale };
        // A timestamp takes eight bytes of a message.
        let samples_max = self.samples.iter().map(|sample| (sample.len() / 8).max(1)).sum();
        let mut samples = Samples::with_capacity(samples_max);
        let mut raw = RawSample::default();
        for sample in &self.samples {
            raw.read(sample, self.layout)?;
            raw.add(builder, dictionary, &mut common, &mut samples)?;
        }
        if samples.values.iter().any(|&value| value != 0) {
            let kinds = vec![profile_type.sample().kind.as_str()];
            let naming = (!context.is_named_contention()).then_some("name their scopes mutex and block");
            Subject { kinds, duration: self.duration_nano, naming }.warn(builder);
        }
        let (labels, more_labels) = context.labels(is_last);
        builder.profile(&profile_type, labels, more_labels, samples, plan, |builder, stack, count, locations| {
            dictionary.stack_locations(builder, stack, count, locations)
        })
    }
}

/// Reads a `ValueType`. Returns the IDs of the texts of its kind and its unit.
fn value_type<'a>(
    builder: &mut Builder,
    dictionary: &mut RequestDictionary<'a>,
    message: &'a [u8],
) -> Result<[u32; 2], ProfileError> {
    let mut read = [0; 2];
    for field in Fields::new(message) {
        if let (number @ 1..=2, value) = field? {
            read[usize::from(number == 2)] = dictionary.string(builder, value.int64(number)?)?;
        }
    }
    Ok(read)
}

/// Returns whether a profile has layout 1.8. In 1.8, `profile_id` is field 8 and `dropped_attributes_count` is field 9.
/// In later versions, fields 7 and 8 hold them.
fn is_layout_1_8(profile: &[u8]) -> bool {
    Fields::new(profile)
        .map_while(Result::ok)
        .any(|field| matches!(field, (8, Value::Bytes(_)) | (9, Value::Varint(_))))
}

/// Data that all samples of a profile share.
struct Common {
    /// Attributes of the resource and of the profile, sorted by key.
    attributes: Vec<Attribute>,
    /// IDs of attribute sets, by the sample's attribute indices followed by its link index.
    sets: HashMap<Box<[u64]>, u32, RandomState>,
    time_unix_nano: u64,
    scale: i64,
}

fn common_attributes<'a>(
    builder: &mut Builder,
    dictionary: &mut RequestDictionary<'a>,
    context: &ScopeContext<'_>,
    profile: &RawProfile<'a>,
) -> Result<Vec<Attribute>, ProfileError> {
    let mut attributes = context.resource.sample_attributes.clone();
    let count_max = limits::SAMPLE_ATTRIBUTES_MAX;
    if attributes.len() + profile.attribute_indices.len() > count_max {
        return Err(ProfileError::TooMany { what: "attributes of one sample", count_max });
    }
    for &index in &profile.attribute_indices {
        attributes.push(dictionary.attribute(builder, index.cast_signed())?);
    }
    // In the set of each sample, a few attributes come before these. If these are sorted, the set is sorted in one
    // pass.
    let strings = &builder.dictionary().strings;
    attributes.sort_by(|a, b| strings.get(a.key).cmp(strings.get(b.key)));
    Ok(attributes)
}

/// Fields of one sample. The memory of the lists is reused for all samples.
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

    fn add(
        &mut self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'_>,
        common: &mut Common,
        samples: &mut Samples,
    ) -> Result<(), ProfileError> {
        let scale = common.scale;
        let scaled =
            |value: i64| value.checked_mul(scale).ok_or(ProfileError::Overflow { count: value, period: scale });
        let pair = dictionary.pair(builder, self.stack_index)?;
        let attribute_set = self.attribute_set(builder, dictionary, common)?;
        match (self.values.as_slice(), self.timestamps.as_slice()) {
            (values, times) if values.is_empty() || values.len() == times.len() => {
                for (i, &time) in times.iter().enumerate() {
                    let value = values.get(i).map_or(1, |value| value.cast_signed());
                    samples.push(builder.time(time)?, pair, scaled(value)?, attribute_set);
                }
            }
            (&[value], []) => {
                let time = match common.time_unix_nano {
                    0 => {
                        builder.times_are_of_receipt();
                        builder.now_ns()
                    }
                    time => builder.time(time)?,
                };
                samples.push(time, pair, scaled(value.cast_signed())?, attribute_set);
            }
            (values, times) => return Err(ProfileError::Shape { values: values.len(), timestamps: times.len() }),
        }
        Ok(())
    }

    fn attribute_set(
        &mut self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'_>,
        common: &mut Common,
    ) -> Result<u32, ProfileError> {
        let own = self.attribute_indices.len();
        if own > limits::SAMPLE_ATTRIBUTES_MAX {
            let count_max = limits::SAMPLE_ATTRIBUTES_MAX;
            return Err(ProfileError::TooMany { what: "attributes of one sample", count_max });
        }
        self.attribute_indices.push(self.link_index.cast_unsigned());
        if let Some(&known) = common.sets.get(self.attribute_indices.as_slice()) {
            return Ok(known);
        }
        // A sample's own attributes come first, because the first of several attributes with equal keys is kept.
        let mut attributes = Vec::with_capacity(own + common.attributes.len() + 2);
        for &index in &self.attribute_indices[..own] {
            attributes.push(dictionary.attribute(builder, index.cast_signed())?);
        }
        if self.link_index != 0 {
            attributes.extend(dictionary.link(builder, self.link_index)?.into_iter().flatten());
        }
        attributes.extend_from_slice(&common.attributes);
        let set = builder.attribute_set(attributes)?;
        common.sets.insert(self.attribute_indices.as_slice().into(), set);
        Ok(set)
    }
}
