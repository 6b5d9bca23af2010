//! One export request: the samples of one host in 5 s, with a dictionary of just what they refer to.

use std::collections::{BTreeMap, HashMap};

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::v1::Resource;

use super::corpus::Corpus;
use super::{INTERVAL_NS, PERIOD_NS};

/// Threads of one pod.
pub(crate) const POD_THREADS: u32 = 16;

/// One sample, as the generator draws it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    /// Into [`Corpus::stacks`].
    pub(crate) stack: usize,
    /// Below [`POD_THREADS`].
    pub(crate) thread: u32,
    pub(crate) time_ns: u64,
}

/// One pod's part of a request.
#[derive(Debug)]
pub(crate) struct PodSamples {
    pub(crate) pod: usize,
    pub(crate) service: usize,
    pub(crate) samples: Vec<Drawn>,
}

/// The request of a host for the interval that starts at `time_ns`.
pub(crate) fn build(corpus: &Corpus, host: usize, time_ns: u64, pods: &[PodSamples]) -> ExportProfilesServiceRequest {
    let mut tables = Tables::new(corpus);
    let resource_profiles = pods.iter().map(|pod| tables.resource_profiles(host, time_ns, pod)).collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(tables.dictionary) }
}

/// The dictionary as it grows; entry 0 of each table is the empty one.
struct Tables<'a> {
    corpus: &'a Corpus,
    dictionary: ProfilesDictionary,
    strings: HashMap<String, i32>,
    attributes: HashMap<(&'static str, String), i32>,
    mappings: HashMap<u32, i32>,
    functions: HashMap<u32, i32>,
    /// By id in the corpus; 0: not there yet.
    locations: Vec<i32>,
    stacks: HashMap<usize, i32>,
}

impl<'a> Tables<'a> {
    fn new(corpus: &'a Corpus) -> Self {
        let dictionary = ProfilesDictionary {
            mapping_table: vec![Mapping::default()],
            location_table: vec![Location::default()],
            function_table: vec![Function::default()],
            link_table: vec![Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![KeyValueAndUnit::default()],
            stack_table: vec![Stack::default()],
        };
        Self {
            corpus,
            dictionary,
            strings: HashMap::from([(String::new(), 0)]),
            attributes: HashMap::new(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: vec![0; corpus.locations.len()],
            stacks: HashMap::new(),
        }
    }

    fn resource_profiles(&mut self, host: usize, time_ns: u64, pod: &PodSamples) -> ResourceProfiles {
        let service = self.corpus.services[pod.service].name;
        let attributes = vec![
            label("service.name", service.to_owned()),
            label("k8s.namespace.name", "shop".to_owned()),
            label("k8s.pod.name", format!("{service}-7d9f8b6c5-{:05}", pod.pod)),
            label("host.name", format!("node-{host:04}")),
            label("container.id", format!("{:064x}", pod.pod as u128 * 0x9E37_79B9_7F4A_7C15)),
        ];
        let profile = Profile {
            sample_type: Some(self.value_type("samples", "count")),
            samples: self.samples(pod),
            time_unix_nano: time_ns,
            duration_nano: INTERVAL_NS,
            period_type: Some(self.value_type("cpu", "nanoseconds")),
            period: PERIOD_NS as i64,
            profile_id: ((pod.pod as u128) << 64 | u128::from(time_ns)).to_be_bytes().to_vec(),
            ..Profile::default()
        };
        let scope = InstrumentationScope { name: "bench".to_owned(), ..InstrumentationScope::default() };
        ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles {
                scope: Some(scope),
                profiles: vec![profile],
                ..ScopeProfiles::default()
            }],
            ..ResourceProfiles::default()
        }
    }

    /// Samples of one stack and thread are one message with several times, as agents send them.
    fn samples(&mut self, pod: &PodSamples) -> Vec<Sample> {
        let mut times: BTreeMap<(usize, u32), Vec<u64>> = BTreeMap::new();
        for drawn in &pod.samples {
            times.entry((drawn.stack, drawn.thread)).or_default().push(drawn.time_ns);
        }
        let sample = |((stack, thread), timestamps_unix_nano): ((usize, u32), Vec<u64>)| Sample {
            stack_index: self.stack(stack),
            attribute_indices: vec![
                self.attribute("thread.name", format!("worker-{thread}")),
                self.attribute("thread.id", (pod.pod as u32 * 100 + thread).to_string()),
            ],
            link_index: 0,
            values: Vec::new(),
            timestamps_unix_nano,
        };
        times.into_iter().map(sample).collect()
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = push(&mut self.dictionary.string_table, text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// `thread.id` is a number, everything else text.
    fn attribute(&mut self, key: &'static str, text: String) -> i32 {
        if let Some(&index) = self.attributes.get(&(key, text.clone())) {
            return index;
        }
        let value = match text.parse() {
            Ok(number) if key == "thread.id" => Value::IntValue(number),
            _ => Value::StringValue(text.clone()),
        };
        let key_strindex = self.string(key);
        let entry = KeyValueAndUnit { key_strindex, value: Some(AnyValue { value: Some(value) }), unit_strindex: 0 };
        let index = push(&mut self.dictionary.attribute_table, entry);
        self.attributes.insert((key, text), index);
        index
    }

    fn stack(&mut self, id: usize) -> i32 {
        if let Some(&index) = self.stacks.get(&id) {
            return index;
        }
        let corpus = self.corpus;
        let location_indices = corpus.stacks[id].iter().map(|&location| self.location(location)).collect();
        let index = push(&mut self.dictionary.stack_table, Stack { location_indices });
        self.stacks.insert(id, index);
        index
    }

    fn location(&mut self, id: u32) -> i32 {
        let known = self.locations[id as usize];
        if known != 0 {
            return known;
        }
        let corpus = self.corpus;
        let location = &corpus.locations[id as usize];
        let lines =
            location.line.map(|(function, line)| Line { function_index: self.function(function), line, column: 0 });
        let entry = Location {
            mapping_index: self.mapping(location.mapping),
            address: location.address,
            lines: lines.into_iter().collect(),
            attribute_indices: vec![self.attribute("profile.frame.type", location.frame_type.to_owned())],
        };
        let index = push(&mut self.dictionary.location_table, entry);
        self.locations[id as usize] = index;
        index
    }

    fn mapping(&mut self, id: u32) -> i32 {
        if let Some(&index) = self.mappings.get(&id) {
            return index;
        }
        let corpus = self.corpus;
        let mapping = &corpus.mappings[id as usize];
        let build_id = mapping.build_id.clone().map(|id| self.attribute("process.executable.build_id.gnu", id));
        let entry = Mapping {
            filename_strindex: self.string(&mapping.file),
            attribute_indices: build_id.into_iter().collect(),
            ..Mapping::default()
        };
        let index = push(&mut self.dictionary.mapping_table, entry);
        self.mappings.insert(id, index);
        index
    }

    fn function(&mut self, id: u32) -> i32 {
        if let Some(&index) = self.functions.get(&id) {
            return index;
        }
        let corpus = self.corpus;
        let function = &corpus.functions[id as usize];
        let entry = Function {
            name_strindex: self.string(&function.name),
            system_name_strindex: 0,
            filename_strindex: self.string(&function.file),
            start_line: function.start_line,
        };
        let index = push(&mut self.dictionary.function_table, entry);
        self.functions.insert(id, index);
        index
    }
}

fn push<T>(table: &mut Vec<T>, entry: T) -> i32 {
    table.push(entry);
    (table.len() - 1) as i32
}

fn label(key: &str, value: String) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::StringValue(value)) }), key_strindex: 0 }
}
