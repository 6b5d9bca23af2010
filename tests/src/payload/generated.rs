//! Profiles that a property test makes up, and how they are written as pprof and as OTLP. Nothing is known here of
//! what a receiver makes of them: that is what [`crate::payload::pprof`] and [`crate::payload::otlp_decoded`] read
//! out of the bytes.

use std::collections::HashMap;

use crate::payload::otlp::{Frame, Tables, key_value};
use crate::payload::profilers::{Profiler, ValueType};
use crate::payload::sample::is_gauge;
use crate::payload::wire::{Message, Value, encode, packed, packed_fixed64s};

/// A defect for which a profile is refused. In pprof it refuses all sample types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// It is valid, as far as its values are.
    None,
    /// Its time is in 1999.
    TooOld,
    /// Its time is an hour ahead.
    Ahead,
    /// A sample has two values and three timestamps; in pprof, more values than there are sample types.
    Shape,
}

/// Relation of the values of an OTLP profile to their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One value, at the profile's time.
    Value,
    /// Timestamps alone, each of which counts 1.
    Timestamps,
    /// As many values as timestamps.
    Both,
}

/// One sample.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Leaf first: see [`frame`]. None is the empty stack.
    pub stack: Vec<u8>,
    /// As many as the profiler has sample types.
    pub values: Vec<i64>,
    /// 0: no label.
    pub label: u8,
    /// Seconds before the profile's time; as many as the sample was seen. Only OTLP has them.
    pub seconds_before: Vec<u32>,
}

/// One profile: in OTLP it becomes one for each sample type.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Whose sample types it has.
    pub profiler: &'static Profiler,
    /// Why it is refused.
    pub defect: Defect,
    /// Of OTLP.
    pub shape: Shape,
    /// Samples.
    pub samples: Vec<Seen>,
}

/// A frame by its number: some have an inlined call, some are the kernel's. `names`: what all names begin with.
#[must_use]
pub fn frame(names: &str, number: u8) -> Frame {
    let name = format!("{names}f{number}");
    match number % 7 {
        3 => Frame::Named(vec![format!("{names}inlined{number}"), name]),
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

    /// As a pprof.
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
            if sample.label > 0 {
                fields.push((3, tables.label(sample.label)));
            }
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
    /// Without the empty one.
    strings: Vec<String>,
    ids: HashMap<String, u64>,
    locations: HashMap<u8, u64>,
    functions: u64,
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

    /// Some are text, some are numbers with a unit.
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
        let (functions, mapping) = match &frame {
            Frame::Named(functions) => (functions.as_slice(), 1),
            Frame::Kernel(function) => (std::slice::from_ref(function), 2),
            Frame::Native { .. } | Frame::Abort(_) => panic!("generated frames have names"),
        };
        let mut location: Message = vec![(1, id.into()), (2, Value::from(mapping)), (3, (id * 16).into())];
        for name in functions {
            self.functions += 1;
            let function: Message = vec![(1, self.functions.into()), (2, self.string(name).into())];
            let line: Message = vec![(1, self.functions.into()), (2, 7.into())];
            location.push((4, (&line).into()));
            self.definitions.push((5, (&function).into()));
        }
        self.definitions.push((4, (&location).into()));
        if id == 1 {
            for (id, file) in [(1_u64, "/bin/program"), (2, "[kernel.kallsyms]")] {
                let mapping: Message = vec![(1, id.into()), (5, self.string(file).into())];
                self.definitions.push((3, (&mapping).into()));
            }
        }
        id
    }
}

/// As an OTLP export request, layout 1.11: each element of `resources` is a resource's profiles, in one scope.
/// Resources have the label `resource`, so that equal profiles of two of them are two series.
#[must_use]
pub fn otlp(service: &str, names: &str, resources: &[Vec<Profile>], now_ns: u64) -> Message {
    let mut tables = Tables::default();
    let mut stacks: HashMap<&[u8], u64> = HashMap::new();
    let mut request = Message::new();
    for (number, profiles) in resources.iter().enumerate() {
        let mut scope = Message::new();
        for profile in profiles {
            for sample in &profile.samples {
                stacks.entry(&sample.stack).or_insert_with(|| {
                    let frames: Vec<Frame> = sample.stack.iter().map(|&number| frame(names, number)).collect();
                    if frames.is_empty() { 0 } else { tables.stack(&frames) }
                });
            }
            let columns = 0..profile.profiler.sample_types.len();
            scope.extend(columns.map(|column| (2, otlp_profile(&mut tables, &stacks, profile, column, now_ns))));
        }
        let resource = [("service.name", service), ("resource", &number.to_string())];
        let resource: Message =
            resource.iter().map(|(name, value)| (1, Value::from(&key_value(name, value)))).collect();
        request.push((1, (&vec![(1, Value::from(&resource)), (2, (&scope).into())]).into()));
    }
    request.push((2, (&tables.finish()).into()));
    request
}

fn otlp_profile(
    tables: &mut Tables,
    stacks: &HashMap<&[u8], u64>,
    profile: &Profile,
    column: usize,
    now_ns: u64,
) -> Value {
    let time = profile.time(now_ns);
    let Profiler { sample_types, period_type, period, .. } = *profile.profiler;
    let mut value_type =
        |(kind, unit): ValueType| -> Message { vec![(1, tables.string(kind).into()), (2, tables.string(unit).into())] };
    let mut message: Message = vec![(1, (&value_type(sample_types[column])).into())];
    message.extend([(3, Value::Fixed64(time)), (4, 1_000_000_000.into())]);
    message.extend([(5, (&value_type(period_type)).into()), (6, period.into())]);
    for sample in &profile.samples {
        let mut fields: Message = vec![(1, stacks[sample.stack.as_slice()].into())];
        if sample.label > 0 {
            fields.push((2, packed([tables.attribute("handler", &format!("/path/{}", sample.label))])));
        }
        let value = sample.values[column].cast_unsigned();
        let times = || sample.seconds_before.iter().map(|&before| time - u64::from(before) * 1_000_000_000);
        // Of a gauge only the newest time counts, so all of its values have the same.
        let shape = if is_gauge(&format!(":{}", sample_types[column].0)) { Shape::Value } else { profile.shape };
        let (values, times): (Vec<u64>, Vec<u64>) = match (profile.defect, shape) {
            (Defect::Shape, _) => (vec![value; 2], vec![time; 3]),
            (_, Shape::Value) => (vec![value], Vec::new()),
            (_, Shape::Timestamps) => (Vec::new(), times().collect()),
            (_, Shape::Both) => (vec![value; sample.seconds_before.len()], times().collect()),
        };
        // A link that is not set tells this layout from the ones before it.
        fields.push((3, 0.into()));
        if !values.is_empty() {
            fields.push((4, packed(values)));
        }
        if !times.is_empty() {
            fields.push((5, packed_fixed64s(&times)));
        }
        message.push((2, (&fields).into()));
    }
    (&message).into()
}
