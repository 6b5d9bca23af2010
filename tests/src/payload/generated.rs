//! Generated profiles, and their encoding as pprof and as OTLP.
//!
//! This module does not define the expected result of a push. [`crate::payload::pprof`] and
//! [`crate::payload::otlp_decoded`] derive it from the bytes.

use std::collections::HashMap;

use crate::payload::otlp::{Frame, Tables, key_value};
use crate::payload::profilers::{Profiler, ValueType};
use crate::payload::wire::{Message, Value, encode, packed, packed_fixed64s};

/// A defect that gets a profile rejected. In a pprof, it gets all sample types rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// No defect: the profile is valid if its values are valid.
    None,
    /// The profile's time is in 1999.
    TooOld,
    /// The profile's time is an hour ahead.
    Ahead,
    /// A sample has two values and three timestamps; in pprof, it has more values than there are sample types.
    Shape,
}

/// Relation of the values of an OTLP profile to their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A sample has one value, at the profile's time.
    Value,
    /// A sample has only timestamps, each with the value 1.
    Timestamps,
    /// A sample has as many values as timestamps.
    Both,
}

/// Versions of OTLP whose field numbers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// OTLP 1.8: `profile_id` is field 8.
    V1_8,
    /// OTLP 1.9: `profile_id` is field 7.
    V1_9,
    /// OTLP 1.10 and 1.11.
    Newest,
}

impl Layout {
    /// Returns the field numbers of `values`, `attribute_indices` and `link_index` inside `Sample`.
    fn of_sample(self) -> [u32; 3] {
        if self == Self::Newest { [4, 2, 3] } else { [2, 3, 4] }
    }

    /// Returns the field numbers of `profile_id` and `attribute_indices` inside `Profile`.
    fn of_profile(self) -> [u32; 2] {
        if self == Self::V1_8 { [8, 12] } else { [7, 11] }
    }
}

/// Number of different frames that [`frame`] returns.
pub const FRAMES: u8 = 24;

/// Number of different labels. The last one stands for two labels with the same key.
pub const LABELS: u8 = 6;

/// One sample of a generated profile.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Numbers of the frames of the stack ([`frame`]), leaf first; empty for the empty stack.
    pub stack: Vec<u8>,
    /// One value per sample type of the profiler.
    pub values: Vec<i64>,
    /// Number of the sample's label, less than [`LABELS`]; 0 if the sample has no label.
    pub label: u8,
    /// Times of the sample, in seconds before the profile's time. In a pprof, samples have no times of their own.
    pub seconds_before: Vec<u32>,
}

/// One profile. In OTLP it is written as one profile per sample type.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Profiler that made the profile. It determines the sample types.
    pub profiler: &'static Profiler,
    /// Defect that gets the profile rejected, if any.
    pub defect: Defect,
    /// Shape of the values in OTLP.
    pub shape: Shape,
    /// Samples of the profile.
    pub samples: Vec<Seen>,
}

/// Returns the frame with this number. Some frames have an inlined call, some are in the kernel, and some have no name.
/// `names` is the prefix of all names.
#[must_use]
pub fn frame(names: &str, number: u8) -> Frame {
    let name = format!("{names}f{number}");
    match number % 7 {
        3 => Frame::Named(vec![format!("{names}inlined{number}"), name]),
        5 => Frame::Native {
            build_id: if number == 12 { String::new() } else { format!("0a0b0c0d0e0f{number:02x}") },
            file: if number == 19 { String::new() } else { format!("/no/such/{names}lib{number}.so") },
            address: 0x40_0000 + u64::from(number) * 16,
        },
        6 => Frame::Kernel(name),
        _ => Frame::Named(vec![name]),
    }
}

impl Profile {
    fn time(&self, now_ns: u64) -> u64 {
        match self.defect {
            Defect::TooOld => 946_684_799_999_999_999,
            Defect::Ahead => now_ns + 3_600_000_000_000,
            Defect::None | Defect::Shape => now_ns,
        }
    }

    /// Encodes the profile as pprof.
    #[must_use]
    pub fn pprof(&self, names: &str, now_ns: u64) -> Vec<u8> {
        let mut tables = PprofTables::default();
        let Profiler { sample_types, period_type, period, has_duration, .. } = *self.profiler;
        let mut message = Message::new();
        for &kind in sample_types {
            message.push((1, tables.value_type(kind)));
        }
        for sample in &self.samples {
            let locations: Vec<u64> = sample.stack.iter().map(|&number| tables.location(names, number)).collect();
            let more = (self.defect == Defect::Shape).then_some(1);
            let values = sample.values.iter().copied().chain(more).map(i64::cast_unsigned);
            let mut fields: Message = vec![(1, packed(locations)), (2, packed(values))];
            fields.extend(labels(sample.label).map(|label| (3, tables.label(label))));
            message.push((2, (&fields).into()));
        }
        message.extend([(9, self.time(now_ns).into()), (10, u64::from(has_duration).into())]);
        message.extend([(11, tables.value_type(period_type)), (12, period.into())]);
        message.extend(tables.definitions);
        message.push((6, "".into()));
        message.extend(tables.strings.iter().map(|text| (6, Value::from(text.as_str()))));
        encode(&message)
    }
}

/// Tables to which the samples of a pprof refer.
#[derive(Default)]
struct PprofTables {
    /// String table without its first entry, which is the empty string.
    strings: Vec<String>,
    ids: HashMap<String, u64>,
    locations: HashMap<u8, u64>,
    functions: u64,
    mappings: u64,
    definitions: Message,
}

impl PprofTables {
    fn string(&mut self, text: &str) -> u64 {
        if text.is_empty() {
            return 0;
        }
        let next = self.strings.len() as u64 + 1;
        let id = *self.ids.entry(text.to_owned()).or_insert(next);
        if id == next {
            self.strings.push(text.to_owned());
        }
        id
    }

    fn value_type(&mut self, (kind, unit): ValueType) -> Value {
        (&vec![(1, Value::from(self.string(kind))), (2, self.string(unit).into())]).into()
    }

    /// Returns the label with this number. Some labels are text, others are numbers with a unit.
    fn label(&mut self, label: u8) -> Value {
        if label.is_multiple_of(2) {
            let key = self.string("handler");
            let value = self.string(&format!("/path/{label}"));
            return (&vec![(1, Value::from(key)), (2, value.into())]).into();
        }
        let key = self.string("size");
        let unit = self.string("bytes");
        (&vec![(1, Value::from(key)), (3, u64::from(label).into()), (4, unit.into())]).into()
    }

    fn location(&mut self, names: &str, number: u8) -> u64 {
        if let Some(&id) = self.locations.get(&number) {
            return id;
        }
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(number, id);
        let frame = frame(names, number);
        let no_functions: &[String] = &[];
        let (functions, mapping, address) = match &frame {
            Frame::Named(functions) => (functions.as_slice(), PROGRAM, id * 16),
            Frame::Kernel(function) => (std::slice::from_ref(function), KERNEL, id * 16),
            // A binary without a name has no mapping in the pprof.
            Frame::Native { file, address, .. } if file.is_empty() => (no_functions, NO_MAPPING, *address),
            Frame::Native { build_id, file, address } => (no_functions, self.mapping(build_id, file), *address),
            Frame::Abort(_) => panic!("no generated frame is a marker"),
        };
        let mut location: Message = vec![(1, id.into()), (2, mapping.into()), (3, address.into())];
        for name in functions {
            self.functions += 1;
            let function: Message = vec![(1, self.functions.into()), (2, self.string(name).into())];
            let line: Message = vec![(1, self.functions.into()), (2, 7.into())];
            location.push((4, (&line).into()));
            self.definitions.push((5, (&function).into()));
        }
        self.definitions.push((4, (&location).into()));
        if id == 1 {
            for (id, file) in [(PROGRAM, "/bin/program"), (KERNEL, "[kernel.kallsyms]")] {
                let mapping: Message = vec![(1, id.into()), (5, self.string(file).into())];
                self.definitions.push((3, (&mapping).into()));
            }
        }
        id
    }

    /// Adds a mapping, and returns its ID. Addresses of a binary with a build ID are inside its mapping. Addresses of
    /// other binaries are outside of theirs.
    fn mapping(&mut self, build_id: &str, file: &str) -> u64 {
        self.mappings += 1;
        let id = NO_MAPPING + self.mappings;
        let limit: u64 = if build_id.is_empty() { 0x30_0000 } else { 0x50_0000 };
        let mut mapping: Message = vec![(1, id.into()), (2, 0x20_0000.into()), (3, limit.into()), (4, 0x1000.into())];
        mapping.extend([(5, self.string(file).into()), (6, self.string(build_id).into())]);
        self.definitions.push((3, (&mapping).into()));
        id
    }
}

/// ID of the program's mapping in a pprof.
const PROGRAM: u64 = 1;
/// ID of the kernel's mapping in a pprof.
const KERNEL: u64 = 2;
/// An ID that no mapping has.
const NO_MAPPING: u64 = 3;

/// Returns the numbers of a sample's labels. The last of [`LABELS`] stands for two labels with the same key.
fn labels(label: u8) -> impl Iterator<Item = u8> {
    let of_key = (label == LABELS - 1).then_some([2, 4]);
    let only = (label > 0 && of_key.is_none()).then_some(label);
    only.into_iter().chain(of_key.into_iter().flatten())
}

/// Encodes profiles as an OTLP export request. Each element of `resources` has the profiles of a resource, in one
/// scope. Resources differ in the label `resource`, so that equal profiles of two resources are two series.
#[must_use]
pub fn otlp(layout: Layout, service: &str, names: &str, resources: &[Vec<Profile>], now_ns: u64) -> Message {
    let mut writer = OtlpWriter { layout, now_ns, tables: Tables::default(), stacks: HashMap::new() };
    let mut request = Message::new();
    for (number, profiles) in resources.iter().enumerate() {
        let mut scope = Message::new();
        for profile in profiles {
            writer.add_stacks(names, profile);
            let columns = 0..profile.profiler.sample_types.len();
            scope.extend(columns.map(|column| (2, writer.profile(profile, column))));
        }
        let resource = [("service.name", service), ("resource", &number.to_string())];
        let resource: Message =
            resource.iter().map(|(name, value)| (1, Value::from(&key_value(name, value)))).collect();
        request.push((1, (&vec![(1, Value::from(&resource)), (2, (&scope).into())]).into()));
    }
    request.push((2, (&writer.tables.finish()).into()));
    request
}

/// Writes the profiles of an OTLP request.
struct OtlpWriter<'p> {
    layout: Layout,
    now_ns: u64,
    tables: Tables,
    /// Maps the frames of each stack written so far to its index.
    stacks: HashMap<&'p [u8], u64>,
}

impl<'p> OtlpWriter<'p> {
    fn add_stacks(&mut self, names: &str, profile: &'p Profile) {
        for sample in &profile.samples {
            self.stacks.entry(&sample.stack).or_insert_with(|| {
                let frames: Vec<Frame> = sample.stack.iter().map(|&number| frame(names, number)).collect();
                if frames.is_empty() { 0 } else { self.tables.stack(&frames) }
            });
        }
    }

    fn value_type(&mut self, (kind, unit): ValueType) -> Value {
        (&vec![(1, Value::from(self.tables.string(kind))), (2, self.tables.string(unit).into())]).into()
    }

    fn profile(&mut self, profile: &Profile, column: usize) -> Value {
        let Profiler { name, sample_types, period_type, period, .. } = *profile.profiler;
        let [id, attributes] = self.layout.of_profile();
        let mut message: Message = vec![(1, self.value_type(sample_types[column]))];
        let samples = profile.samples.iter().map(|sample| (2, self.sample(profile, sample, column)));
        message.extend(samples.collect::<Vec<_>>());
        message.extend([(3, Value::Fixed64(profile.time(self.now_ns))), (4, 1_000_000_000.into())]);
        message.extend([(5, self.value_type(period_type)), (6, period.into())]);
        // The numbers of the next two fields distinguish the layout 1.8 from the layout 1.9 of OTLP.
        message.push((id, vec![7; 16].into()));
        message.push((attributes, packed([self.tables.attribute("profiler.name", name)])));
        (&message).into()
    }

    fn sample(&mut self, profile: &Profile, sample: &Seen, column: usize) -> Value {
        let [values_field, attributes_field, link_field] = self.layout.of_sample();
        let mut fields: Message = vec![(1, self.stacks[sample.stack.as_slice()].into())];
        let attributes: Vec<u64> =
            labels(sample.label).map(|label| self.tables.attribute("handler", &format!("/path/{label}"))).collect();
        if !attributes.is_empty() {
            fields.push((attributes_field, packed(attributes)));
        }
        let time = profile.time(self.now_ns);
        let value = sample.values[column].cast_unsigned();
        let times = || sample.seconds_before.iter().map(|&before| time - u64::from(before) * 1_000_000_000);
        let (values, times): (Vec<u64>, Vec<u64>) = match (profile.defect, profile.shape) {
            (Defect::Shape, _) => (vec![value; 2], vec![time; 3]),
            (_, Shape::Value) => (vec![value], Vec::new()),
            (_, Shape::Timestamps) => (Vec::new(), times().collect()),
            (_, Shape::Both) => (vec![value; sample.seconds_before.len()], times().collect()),
        };
        // The number of this field distinguishes the layouts up to 1.9 from later layouts. Its value 0 means that the
        // sample has no link.
        fields.push((link_field, 0.into()));
        if !values.is_empty() {
            fields.push((values_field, packed(values)));
        }
        if !times.is_empty() {
            fields.push((5, packed_fixed64s(&times)));
        }
        (&fields).into()
    }
}
