//! Profiles with all indices resolved.

use std::collections::BTreeMap;

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::{AnyValue, any_value::Value};
use proto::otlp::profiles::v1development::ProfilesDictionary;

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Frame {
    /// Value of `profile.frame.type`.
    pub(crate) kind: String,
    /// Name of the function; empty if the frame is an address.
    pub(crate) name: String,
    /// Source file of the function; empty if it is not known.
    pub(crate) source: String,
    /// Line in the function; 0 if it is not known.
    pub(crate) line: i64,
    /// File name of the mapping.
    pub(crate) file: String,
    pub(crate) address: u64,
}

/// One sample identity and its times.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Ids of the trace and the span for which the thread worked.
    pub(crate) link: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) times: Vec<u64>,
    /// Values of the sample, one per time; empty if the profile has only times.
    pub(crate) values: Vec<i64>,
    /// Sample type and unit of the profile.
    pub(crate) kind: (String, String),
    pub(crate) period_ns: i64,
    /// Frames of the stack, leaf first.
    pub(crate) frames: Vec<Frame>,
}

impl Sample {
    pub(crate) fn is_of(&self, pid: u32) -> bool {
        self.resource.get("process.pid") == Some(&pid.to_string())
    }
}

/// True if at most 1 % of `all` samples are not whole, or one: a program may be sampled once more after its work.
pub(crate) fn are_nearly_all(whole: u64, all: u64) -> bool {
    0 < whole && all - whole <= (all / 100).max(1)
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attributes(dictionary: &ProfilesDictionary, indices: &[i32]) -> BTreeMap<String, String> {
    let resolve = |index: &i32| {
        let attribute = &dictionary.attribute_table[*index as usize];
        (dictionary.string_table[attribute.key_strindex as usize].clone(), text(attribute.value.as_ref()))
    };
    indices.iter().map(resolve).collect()
}

/// Returns the frames of a location: one for each line, innermost first, or one without a name.
fn frames(dictionary: &ProfilesDictionary, index: i32) -> Vec<Frame> {
    let location = &dictionary.location_table[index as usize];
    let string = |index: i32| dictionary.string_table[index as usize].clone();
    let without_name = Frame {
        kind: attributes(dictionary, &location.attribute_indices).remove("profile.frame.type").unwrap(),
        name: String::new(),
        source: String::new(),
        line: 0,
        file: string(dictionary.mapping_table[location.mapping_index as usize].filename_strindex),
        address: location.address,
    };
    if location.lines.is_empty() {
        return vec![without_name];
    }
    let named = location.lines.iter().map(|line| {
        let function = &dictionary.function_table[line.function_index as usize];
        let (name, source) = (string(function.name_strindex), string(function.filename_strindex));
        Frame { name, source, line: line.line, ..without_name.clone() }
    });
    named.collect()
}

/// Returns the ids of a link; `None` for the zero value.
fn link(dictionary: &ProfilesDictionary, index: i32) -> Option<(Vec<u8>, Vec<u8>)> {
    let link = &dictionary.link_table[index as usize];
    (index != 0).then(|| (link.trace_id.clone(), link.span_id.clone()))
}

/// Returns every sample of a request.
pub(crate) fn samples(request: &ExportProfilesServiceRequest) -> Vec<Sample> {
    let dictionary = request.dictionary.as_ref().unwrap();
    let mut samples = Vec::new();
    for resource_profiles in &request.resource_profiles {
        let resource = &resource_profiles.resource.as_ref().unwrap().attributes;
        let resource: BTreeMap<_, _> = resource.iter().map(|it| (it.key.clone(), text(it.value.as_ref()))).collect();
        for profile in resource_profiles.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
            let string = |index: i32| dictionary.string_table[index as usize].clone();
            let kind = profile.sample_type.as_ref().unwrap();
            let kind = (string(kind.type_strindex), string(kind.unit_strindex));
            samples.extend(profile.samples.iter().map(|sample| {
                Sample {
                    resource: resource.clone(),
                    attributes: attributes(dictionary, &sample.attribute_indices),
                    link: link(dictionary, sample.link_index),
                    times: sample.timestamps_unix_nano.clone(),
                    values: sample.values.clone(),
                    kind: kind.clone(),
                    period_ns: profile.period,
                    frames: dictionary.stack_table[sample.stack_index as usize]
                        .location_indices
                        .iter()
                        .flat_map(|index| frames(dictionary, *index))
                        .collect(),
                }
            }));
        }
    }
    samples
}
