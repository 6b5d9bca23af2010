//! OTLP export requests in layout 1.11, built and edited for a test.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::payload::wire::{Message, Value, decode, edit, encode, fixed64s, number, packed, packed_fixed64s};

/// Path and name of the gRPC method.
pub const EXPORT: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Sampling period of built profiles, in nanoseconds: 1 / 20 Hz.
pub const PERIOD_NS: u64 = 50_000_000;

/// A frame of a built stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Function names of a location, innermost first. All functions but the last are inlined.
    Named(Vec<String>),
    /// A function of the kernel.
    Kernel(String),
    /// An address in a binary, which the receiver has to symbolize.
    Native {
        /// Hexadecimal GNU build ID; if it is empty, no build ID is sent.
        build_id: String,
        /// Path of the binary.
        file: String,
        /// ELF virtual address.
        address: u64,
    },
    /// Marker frame at which the sender's unwinder stopped, with the unwinder's error code.
    Abort(u64),
}

impl From<&str> for Frame {
    fn from(name: &str) -> Self {
        Self::Named(vec![name.to_owned()])
    }
}

/// Returns a stack of these functions, leaf first.
#[must_use]
pub fn stack(names: &[&str]) -> Vec<Frame> {
    names.iter().map(|&name| name.into()).collect()
}

/// A request with one profile of CPU samples.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Attributes of the resource.
    pub attributes: Vec<(String, String)>,
    /// Stacks. The leaf of each stack comes first.
    pub stacks: Vec<Vec<Frame>>,
    /// Samples, grouped by stack.
    pub samples: Vec<Seen>,
}

/// Samples of one stack in a request, one for each time.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Index into [`Request::stacks`].
    pub stack: usize,
    /// Times of the samples, in nanoseconds since 1970.
    pub times: Vec<u64>,
    /// Counts of the samples, one for each time; if empty, each sample counts once.
    pub values: Vec<u64>,
    /// Attributes of the samples: keys and values.
    pub attributes: Vec<(String, String)>,
}

/// Returns the time now, in nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

impl Request {
    /// Returns a request of a service, without samples.
    #[must_use]
    pub fn new(service: &str) -> Self {
        Self { attributes: vec![("service.name".to_owned(), service.to_owned())], ..Self::default() }
    }

    /// Returns the request with one more resource attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.attributes.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the request with one more stack, and with one sample of that stack at each of these times.
    #[must_use]
    pub fn seen(mut self, stack: Vec<Frame>, times: Vec<u64>) -> Self {
        self.stacks.push(stack);
        self.samples.push(Seen { stack: self.stacks.len() - 1, times, ..Seen::default() });
        self
    }

    /// Encodes the request as protobuf.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut tables = Tables::default();
        let value_type = |tables: &mut Tables, kind: &str, unit: &str| -> Message {
            vec![(1, tables.string(kind).into()), (2, tables.string(unit).into())]
        };
        let times = self.samples.iter().flat_map(|seen| &seen.times);
        let first = times.clone().min().copied().unwrap_or_else(now_ns);
        let duration = times.max().map_or(0, |last| last - first) + 1;
        for stack in &self.stacks {
            tables.stack(stack);
        }
        let mut profile: Message = vec![(1, (&value_type(&mut tables, "samples", "count")).into())];
        for Seen { stack, times, values, attributes } in &self.samples {
            let mut sample: Message = vec![(1, (*stack as u64 + 1).into())];
            if !attributes.is_empty() {
                let indices: Vec<u64> = attributes.iter().map(|(key, value)| tables.attribute(key, value)).collect();
                sample.push((2, packed(indices)));
            }
            if !values.is_empty() {
                sample.push((4, packed(values.iter().copied())));
            }
            sample.push((5, packed_fixed64s(times)));
            profile.push((2, (&sample).into()));
        }
        profile.extend([(3, Value::Fixed64(first)), (4, duration.into())]);
        profile.extend([(5, (&value_type(&mut tables, "cpu", "nanoseconds")).into()), (6, PERIOD_NS.into())]);
        let attributes = self.attributes.iter();
        let resource: Message = attributes.map(|(name, value)| (1, Value::from(&key_value(name, value)))).collect();
        let scope: Message = vec![(2, (&profile).into())];
        let resource_profiles: Message = vec![(1, (&resource).into()), (2, (&scope).into())];
        encode(&vec![(1, (&resource_profiles).into()), (2, (&tables.finish()).into())])
    }
}

pub(crate) fn key_value(name: &str, value: &str) -> Message {
    vec![(1, name.into()), (2, (&vec![(1, Value::from(value))]).into())]
}

/// Dictionary that is being built. Index 0 of each table is the zero entry.
#[derive(Default)]
pub(crate) struct Tables {
    strings: Vec<String>,
    string_ids: HashMap<String, u64>,
    functions: Vec<Message>,
    mappings: Vec<Message>,
    mapping_ids: HashMap<(String, String), u64>,
    attributes: Vec<Message>,
    attribute_ids: HashMap<(String, String), u64>,
    locations: Vec<Message>,
    location_ids: HashMap<Frame, u64>,
    stacks: Vec<Message>,
}

impl Tables {
    pub(crate) fn string(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let next = self.strings.len() as u64 + 1;
        let id = *self.string_ids.entry(text.to_owned()).or_insert(next);
        if id == next {
            self.strings.push(text.to_owned());
        }
        id
    }

    pub(crate) fn attribute(&mut self, key: &str, value: &str) -> u64 {
        if let Some(&id) = self.attribute_ids.get(&(key.to_owned(), value.to_owned())) {
            return id;
        }
        let message = vec![(1, self.string(key).into()), (2, (&vec![(1, Value::from(value))]).into())];
        self.attributes.push(message);
        let id = self.attributes.len() as u64;
        self.attribute_ids.insert((key.to_owned(), value.to_owned()), id);
        id
    }

    fn mapping(&mut self, build_id: &str, file: &str) -> u64 {
        if let Some(&id) = self.mapping_ids.get(&(build_id.to_owned(), file.to_owned())) {
            return id;
        }
        let mut message: Message = vec![(4, self.string(file).into())];
        if !build_id.is_empty() {
            let attribute = self.attribute("process.executable.build_id.gnu", build_id);
            message.push((5, packed([attribute])));
        }
        self.mappings.push(message);
        let id = self.mappings.len() as u64;
        self.mapping_ids.insert((build_id.to_owned(), file.to_owned()), id);
        id
    }

    fn lines(&mut self, names: &[String]) -> Message {
        let mut lines = Message::new();
        for name in names {
            let function = vec![(1, self.string(name).into())];
            self.functions.push(function);
            let line: Message = vec![(1, (self.functions.len() as u64).into()), (2, 1.into())];
            lines.push((3, (&line).into()));
        }
        lines
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        if let Some(&id) = self.location_ids.get(frame) {
            return id;
        }
        let message = match frame {
            Frame::Named(names) => self.lines(names),
            Frame::Kernel(name) => {
                let kernel = self.attribute("profile.frame.type", "kernel");
                let mut lines = self.lines(std::slice::from_ref(name));
                lines.push((4, packed([kernel])));
                lines
            }
            Frame::Native { build_id, file, address } => {
                let native = self.attribute("profile.frame.type", "native");
                vec![(1, self.mapping(build_id, file).into()), (2, (*address).into()), (4, packed([native]))]
            }
            Frame::Abort(code) => {
                let marker = self.attribute("profile.frame.type", "abort-marker");
                vec![(2, (*code).into()), (4, packed([marker]))]
            }
        };
        self.locations.push(message);
        let id = self.locations.len() as u64;
        self.location_ids.insert(frame.clone(), id);
        id
    }

    /// Adds a stack, and returns its index.
    pub(crate) fn stack(&mut self, frames: &[Frame]) -> u64 {
        let locations: Vec<u64> = frames.iter().map(|frame| self.location(frame)).collect();
        self.stacks.push(vec![(1, packed(locations))]);
        self.stacks.len() as u64
    }

    pub(crate) fn finish(self) -> Message {
        let mut dictionary = Message::new();
        let tables = [
            (1, self.mappings),
            (2, self.locations),
            (3, self.functions),
            (4, Vec::new()),
            (6, self.attributes),
            (7, self.stacks),
        ];
        for (field, entries) in tables {
            dictionary.push((field, "".into()));
            dictionary.extend(entries.iter().map(|entry| (field, Value::from(entry))));
        }
        dictionary.push((5, "".into()));
        dictionary.extend(self.strings.iter().map(|text| (5, Value::from(text.as_str()))));
        dictionary
    }
}

/// Reads the export requests of a file: one bare message, or several with a 4-byte big-endian length before each.
#[must_use]
pub fn requests_in(path: &std::path::Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    if !path.to_string_lossy().contains("length_prefixed") {
        return vec![bytes];
    }
    let mut requests = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (request, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        requests.push(request.to_vec());
        rest = after;
    }
    requests
}

/// Returns the request with one more attribute on every resource, and with all times shifted so that the newest is
/// `newest_ns`.
#[must_use]
pub fn moved(request: &[u8], label: (&str, &str), newest_ns: u64) -> Vec<u8> {
    let mut newest = 0;
    let mut look = |profile: Message| {
        let samples = profile.iter().filter(|(field, _)| *field == 2);
        let times = samples.flat_map(|(_, sample)| match sample {
            Value::Bytes(sample) => fixed64s(&decode(sample), 5),
            _ => Vec::new(),
        });
        newest = times.chain([number(&profile, 3), newest]).max().unwrap_or(0);
        profile
    };
    let _unchanged = edit(request, &[1, 2, 2], &mut look);
    let move_times = |times: Vec<u64>| times.into_iter().map(|time| time + newest_ns - newest).collect::<Vec<_>>();
    let moved = edit(request, &[1, 2, 2], &mut |profile| {
        let move_field = |(field, value)| match (field, value) {
            (3, Value::Fixed64(time)) => (3, Value::Fixed64(time + newest_ns - newest)),
            (2, Value::Bytes(sample)) => {
                let mut sample = decode(&sample);
                let times = move_times(fixed64s(&sample, 5));
                sample.retain(|(field, _)| *field != 5);
                if !times.is_empty() {
                    sample.push((5, packed_fixed64s(&times)));
                }
                (2, (&sample).into())
            }
            other => other,
        };
        profile.into_iter().map(move_field).collect()
    });
    edit(&moved, &[1], &mut |mut resource_profiles| {
        if !resource_profiles.iter().any(|(field, _)| *field == 1) {
            resource_profiles.insert(0, (1, "".into()));
        }
        for (field, value) in &mut resource_profiles {
            if let (1, Value::Bytes(resource)) = (*field, &mut *value) {
                let mut message = decode(resource);
                message.push((1, (&key_value(label.0, label.1)).into()));
                *value = (&message).into();
            }
        }
        resource_profiles
    })
}
