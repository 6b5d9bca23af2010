//! Converts a batch to an OTLP 1.11 export request. The request's dictionary has only the entries that its samples use.

use std::collections::{BTreeMap, HashMap};

use proto::dictionary::AttributeValue;
use proto::label::PROFILE_TYPE_LABEL;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::v1::Resource;
use proto::{Address, Batch, Dictionary, Location as OurLocation, SeriesSamples, build_id};

use super::fleet::HostSamples;
use super::mix::PERIOD_NS;

const SCOPE_LABEL: &str = "otel_scope_name";

/// Returns the request of a host's batch.
pub(crate) fn build(batch: &Batch, host: &HostSamples) -> ExportProfilesServiceRequest {
    let mut tables = Tables::new(&batch.dictionary);
    let resource_profiles = batch.series.iter().map(|series| tables.resource_profiles(host, series)).collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(tables.dictionary) }
}

/// The request's dictionary. Entry 0 of each table is the empty entry. A stack of the request is a pair of user and
/// kernel stack in the batch. Strings and stacks have the IDs that strings and pairs have in the batch, because entry 0
/// is empty there, too. IDs of functions, mappings and locations are larger by one than in the batch.
struct Tables<'a> {
    from: &'a Dictionary,
    dictionary: ProfilesDictionary,
    strings: HashMap<String, i32>,
    attributes: HashMap<(i32, Text), i32>,
    /// Mappings of locations that have lines, by the string ID of the file name. Such a mapping has no build ID.
    mappings_of_files: HashMap<u32, i32>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Text {
    Text(String),
    Integer(i64),
}

impl<'a> Tables<'a> {
    fn new(from: &'a Dictionary) -> Self {
        let string_table = (0..from.strings.len()).map(|id| from.strings.get(id).to_owned()).collect::<Vec<_>>();
        let strings = (0..).zip(&string_table).map(|(id, text)| (text.clone(), id)).collect();
        let dictionary = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table,
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: Vec::new(),
        };
        let mut tables =
            Self { from, dictionary, strings, attributes: HashMap::new(), mappings_of_files: HashMap::new() };
        tables.define();
        tables
    }

    fn define(&mut self) {
        let from = self.from;
        for function in &from.functions {
            self.dictionary.function_table.push(Function {
                name_strindex: function.name as i32,
                system_name_strindex: function.system_name as i32,
                filename_strindex: function.file as i32,
                start_line: function.start_line,
            });
        }
        for proto::Mapping { build_id, file } in &from.mappings {
            let build_id = match build_id {
                Some(proto::BuildId::Gnu(bytes)) => Some(build_id::to_hex(bytes)),
                Some(_) | None => None,
            };
            let build_id = build_id.map(|id| self.attribute("process.executable.build_id.gnu", Text::Text(id)));
            self.push_mapping(*file, build_id.into_iter().collect());
        }
        for location in &from.locations {
            let location = self.location(location);
            self.dictionary.location_table.push(location);
        }
        for pair in from.pairs.iter() {
            let leaf_first = from.stack(pair.kernel).iter().chain(from.stack(pair.user));
            let location_indices = leaf_first.map(|&location| location as i32 + 1).collect();
            self.dictionary.stack_table.push(Stack { location_indices });
        }
    }

    fn push_mapping(&mut self, file: u32, attribute_indices: Vec<i32>) -> i32 {
        let entry = Mapping { filename_strindex: file as i32, attribute_indices, ..Mapping::default() };
        self.dictionary.mapping_table.push(entry);
        self.dictionary.mapping_table.len() as i32 - 1
    }

    fn location(&mut self, from: &OurLocation) -> Location {
        let (OurLocation::Address { frame_type, .. } | OurLocation::Lines { frame_type, .. }) = from;
        let frame_type = Text::Text(self.from.strings.get(*frame_type).to_owned());
        let attribute_indices = vec![self.attribute("profile.frame.type", frame_type)];
        match from {
            OurLocation::Address { mapping, address, .. } => {
                let (Address::Virtual(address) | Address::FileOffset(address)) = *address;
                Location { mapping_index: *mapping as i32 + 1, address, lines: Vec::new(), attribute_indices }
            }
            OurLocation::Lines { mapping_file, lines, .. } => {
                let mapping_index = match self.mappings_of_files.get(mapping_file) {
                    Some(&index) => index,
                    None => self.push_mapping(*mapping_file, Vec::new()),
                };
                self.mappings_of_files.insert(*mapping_file, mapping_index);
                let line = |line: &proto::Line| Line {
                    function_index: line.function as i32 + 1,
                    line: line.line,
                    column: line.column,
                };
                Location { mapping_index, address: 0, lines: lines.iter().map(line).collect(), attribute_indices }
            }
        }
    }

    fn resource_profiles(&mut self, host: &HostSamples, series: &SeriesSamples) -> ResourceProfiles {
        let labels = series.labels.iter().flat_map(|labels| labels.iter());
        let (scope, labels): (Vec<_>, Vec<_>) =
            labels.filter(|label| label.name != PROFILE_TYPE_LABEL).partition(|label| label.name == SCOPE_LABEL);
        let attributes = labels.into_iter().map(|label| KeyValue {
            key: label.original_name.as_ref().unwrap_or(&label.name).to_string(),
            value: Some(AnyValue { value: Some(Value::StringValue(label.value.to_string())) }),
            key_strindex: 0,
        });
        let resource = Some(Resource { attributes: attributes.collect(), ..Resource::default() });
        let profile = Profile {
            sample_type: Some(self.value_type("samples", "count")),
            samples: self.samples(series),
            time_unix_nano: host.start_ns,
            duration_nano: host.duration_ns,
            period_type: Some(self.value_type("cpu", "nanoseconds")),
            period: PERIOD_NS.cast_signed(),
            profile_id: (series.fingerprint.0 ^ u128::from(host.start_ns)).to_be_bytes().to_vec(),
            ..Profile::default()
        };
        let scope = scope
            .first()
            .map(|label| InstrumentationScope { name: label.value.to_string(), ..InstrumentationScope::default() });
        let scope_profiles = vec![ScopeProfiles { scope, profiles: vec![profile], ..ScopeProfiles::default() }];
        ResourceProfiles { resource, scope_profiles, ..ResourceProfiles::default() }
    }

    /// Converts samples to messages. All samples of one stack and thread become one message with several times, as in
    /// requests of agents.
    fn samples(&mut self, series: &SeriesSamples) -> Vec<Sample> {
        let mut times: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        let samples = &series.samples;
        for ((&time_ns, &pair), &set) in samples.times_ns.iter().zip(&samples.pairs).zip(&samples.attribute_sets) {
            times.entry((pair, set)).or_default().push(time_ns.cast_unsigned());
        }
        let sample = |((pair, set), timestamps_unix_nano): ((u32, u32), Vec<u64>)| Sample {
            stack_index: pair as i32,
            attribute_indices: self.attribute_set(set),
            link_index: 0,
            values: Vec::new(),
            timestamps_unix_nano,
        };
        times.into_iter().map(sample).collect()
    }

    fn attribute_set(&mut self, set: u32) -> Vec<i32> {
        let strings = &self.from.strings;
        let attributes = self.from.attribute_sets.get(set).map(|attribute| {
            let value = match attribute.value {
                AttributeValue::Integer(number) => Text::Integer(number),
                value => Text::Text(value.render(strings)),
            };
            self.attribute(strings.get(attribute.key), value)
        });
        attributes.collect()
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.dictionary.string_table.len() as i32;
        self.dictionary.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn attribute(&mut self, key: &str, value: Text) -> i32 {
        let key = (self.string(key), value);
        if let Some(&index) = self.attributes.get(&key) {
            return index;
        }
        let value = match &key.1 {
            Text::Text(text) => Value::StringValue(text.clone()),
            Text::Integer(number) => Value::IntValue(*number),
        };
        let value = Some(AnyValue { value: Some(value) });
        self.dictionary.attribute_table.push(KeyValueAndUnit { key_strindex: key.0, value, unit_strindex: 0 });
        let index = self.dictionary.attribute_table.len() as i32 - 1;
        self.attributes.insert(key, index);
        index
    }
}
