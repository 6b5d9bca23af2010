//! A decoder of OTLP export requests, layouts 1.8 to 1.11, by field numbers and without generated code.

use serde_json::{Value as Json, json};

use crate::payload::otlp::now_ns;
use crate::payload::sample::{
    Expected, Multiset, Sample, address_location, is_possible, line, lines_location, names, profile_type, stored_value,
    unnamed,
};
use crate::payload::wire::{Message, Value, all, decode, fixed64s, inner, number, numbers};

/// Keys and values, as queries show them.
type Pairs = Vec<(String, String)>;

/// Attributes that may hold a service's name, in order of preference.
const SERVICE_NAMES: [&str; 9] = [
    "service.name",
    "k8s.deployment.name",
    "k8s.statefulset.name",
    "k8s.daemonset.name",
    "k8s.cronjob.name",
    "k8s.job.name",
    "k8s.container.name",
    "container.name",
    "process.executable.name",
];

/// Decodes a request that has no invalid part. Returns its samples.
#[must_use]
pub fn read(request: &[u8]) -> Multiset {
    expected(request).samples
}

/// Decodes a request. Returns the samples that must be stored, and the numbers of valid and invalid profiles.
#[must_use]
pub fn expected(request: &[u8]) -> Expected {
    let request = decode(request);
    let tables = Tables::read(&inner(&request, 2));
    let layout = Layout::of(&request);
    let mut out = Expected::default();
    for resource_profiles in all(&request, 1).map(decode) {
        let resource = tables.pairs(&inner(&resource_profiles, 1), 1);
        for scope_profiles in all(&resource_profiles, 2).map(decode) {
            let mut labels = resource.clone();
            labels.extend(tables.scope(&inner(&scope_profiles, 1)));
            labels.push(("service_name".to_owned(), service_name(&resource)));
            let profiles: Vec<Message> = all(&scope_profiles, 2).map(decode).collect();
            let siblings: Pairs = profiles.iter().map(|profile| tables.value_type(profile, 1)).collect();
            for profile in &profiles {
                tables.profile(profile, layout, &labels, &siblings, &mut out);
            }
        }
    }
    out
}

fn service_name(resource: &Pairs) -> String {
    let value = |key: &&str| resource.iter().find(|(name, value)| name == key && !value.is_empty());
    SERVICE_NAMES.iter().find_map(value).map_or("unknown_service", |(_, value)| value).to_owned()
}

/// Version of OTLP. It determines the field numbers inside `Sample` (values, attribute_indices, link_index), and of
/// `Profile.attribute_indices`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Since1_10,
    From1_8,
    From1_9,
}

impl Layout {
    fn of(request: &Message) -> Self {
        let scopes = all(request, 1).map(decode).flat_map(|resource| all(&resource, 2).map(decode).collect::<Vec<_>>());
        let profiles: Vec<Message> = scopes.flat_map(|scope| all(&scope, 2).map(decode).collect::<Vec<_>>()).collect();
        let samples = profiles.iter().flat_map(|profile| all(profile, 2).map(decode));
        let is_old = samples.flatten().any(|field| matches!(field, (3, Value::Bytes(_)) | (4, Value::Varint(_))));
        // `profile_id`, 16 bytes, is field 8 in 1.8 only.
        let has_id_in_8 = profiles.iter().flatten().any(|field| matches!(field, (8, Value::Bytes(_))));
        match (is_old, has_id_in_8) {
            (false, _) => Self::Since1_10,
            (true, true) => Self::From1_8,
            (true, false) => Self::From1_9,
        }
    }

    fn sample_fields(self) -> [u32; 3] {
        if self == Self::Since1_10 { [4, 2, 3] } else { [2, 3, 4] }
    }

    fn profile_attributes(self) -> u32 {
        if self == Self::From1_8 { 12 } else { 11 }
    }
}

/// Properties that all samples of one profile share.
struct TypeOf<'a> {
    id: &'a str,
    scale: i64,
    labels: &'a Pairs,
    now_ns: u64,
}

/// The request's dictionary.
struct Tables {
    mappings: Vec<Message>,
    locations: Vec<Message>,
    functions: Vec<Message>,
    links: Vec<Message>,
    strings: Vec<String>,
    attributes: Vec<Message>,
    stacks: Vec<Message>,
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

impl Tables {
    fn read(dictionary: &Message) -> Self {
        let table = |field| all(dictionary, field).map(decode).collect();
        let strings = all(dictionary, 5).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        Self {
            mappings: table(1),
            locations: table(2),
            functions: table(3),
            links: table(4),
            strings,
            attributes: table(6),
            stacks: table(7),
        }
    }

    fn string(&self, message: &Message, field: u32) -> &str {
        &self.strings[index(number(message, field))]
    }

    fn value_type(&self, profile: &Message, field: u32) -> (String, String) {
        let value_type = inner(profile, field);
        (self.string(&value_type, 1).to_owned(), self.string(&value_type, 2).to_owned())
    }

    /// Returns the keys and values of a repeated `KeyValue` field.
    fn pairs(&self, message: &Message, field: u32) -> Pairs {
        all(message, field)
            .map(decode)
            .map(|pair| (self.key(&pair), text_of(&self.any_value(&inner(&pair, 2)))))
            .collect()
    }

    fn key(&self, pair: &Message) -> String {
        match all(pair, 1).last() {
            Some(key) => String::from_utf8_lossy(key).into_owned(),
            None => self.string(pair, 3).to_owned(),
        }
    }

    fn any_value(&self, value: &Message) -> Json {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match value.last() {
            None => Json::Null,
            Some((1, Value::Bytes(bytes))) => json!(text(bytes)),
            Some((2, Value::Varint(boolean))) => json!(*boolean != 0),
            Some((3, Value::Varint(integer))) => json!(integer.cast_signed()),
            Some((4, Value::Fixed64(bits))) => json!(f64::from_bits(*bits)),
            Some((5, Value::Bytes(array))) => {
                all(&decode(array), 1).map(|element| self.any_value(&decode(element))).collect()
            }
            Some((6, Value::Bytes(map))) => {
                let entries = decode(map);
                let entry = |pair: Message| (self.key(&pair), self.any_value(&inner(&pair, 2)));
                Json::Object(all(&entries, 1).map(decode).map(entry).collect())
            }
            Some((8, Value::Varint(string))) => json!(self.strings[index(*string)]),
            other => panic!("AnyValue {other:?} is in no payload of these tests"),
        }
    }

    fn scope(&self, scope: &Message) -> Pairs {
        let text = |field| all(scope, field).last().map(|text| String::from_utf8_lossy(text).into_owned());
        let named = [("otel.scope.name", text(1)), ("otel.scope.version", text(2))];
        let mut out: Pairs = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        out.extend(self.pairs(scope, 3).into_iter().map(|(name, value)| (format!("otel.scope.{name}"), value)));
        out
    }

    fn attributes(&self, indices: &[u64]) -> Pairs {
        let attribute = |&at: &u64| {
            let attribute = &self.attributes[index(at)];
            (self.string(attribute, 1).to_owned(), text_of(&self.any_value(&inner(attribute, 2))))
        };
        indices.iter().map(attribute).collect()
    }

    fn profile(&self, profile: &Message, layout: Layout, labels: &Pairs, siblings: &Pairs, out: &mut Expected) {
        let period = number(profile, 6).cast_signed();
        let (id, scale) =
            profile_type("", &self.value_type(profile, 1), siblings, &self.value_type(profile, 5), period);
        let labels: Pairs = labels.iter().cloned().chain([("__profile_type__".to_owned(), id.clone())]).collect();
        let of_type = TypeOf { id: &id, scale, labels: &labels, now_ns: now_ns() };
        out.add(&id, &labels, self.samples(profile, layout, &of_type));
    }

    /// Reads the samples of a profile, with their names and values; `None` if a sample is invalid.
    fn samples(
        &self,
        profile: &Message,
        layout: Layout,
        of_type: &TypeOf<'_>,
    ) -> Option<Vec<(Sample, Vec<String>, i128)>> {
        let common = self.attributes(&numbers(profile, layout.profile_attributes()));
        let [values, attribute_indices, link] = layout.sample_fields();
        let mut out = Vec::new();
        for sample in all(profile, 2).map(decode) {
            let mut own = self.attributes(&numbers(&sample, attribute_indices));
            own.extend(self.link(number(&sample, link)));
            // Of equal keys, the first counts.
            own.reverse();
            let names = names([&common[..], &own, of_type.labels]);
            let stack = self.stack(number(&sample, 1));
            let functions = self.functions(number(&sample, 1));
            let values = numbers(&sample, values);
            let times = fixed64s(&sample, 5);
            let is_shape = values.is_empty() || times.is_empty() && values.len() == 1 || values.len() == times.len();
            let times = if times.is_empty() { vec![number(profile, 3)] } else { times };
            if !is_shape || !times.iter().all(|&time| is_possible(time, of_type.now_ns)) {
                return None;
            }
            for (i, time) in times.into_iter().enumerate() {
                let value = values.get(i).map_or(1, |value| value.cast_signed());
                let value = stored_value(of_type.id, value, of_type.scale)?;
                let time_ns = i64::try_from(time).unwrap();
                out.push((Sample { names: names.clone(), stack: stack.clone(), time_ns }, functions.clone(), value));
            }
        }
        Some(out)
    }

    /// Returns the function names of a stack, root first. Each inlined call is a separate frame.
    fn functions(&self, at: u64) -> Vec<String> {
        let indices = self.stacks.get(index(at)).map(|stack| numbers(stack, 1)).unwrap_or_default();
        let name = |line: Message| self.string(&self.functions[index(number(&line, 1))], 1).to_owned();
        let names = |&location: &u64| {
            let location = &self.locations[index(location)];
            let lines: Vec<String> = all(location, 3).map(decode).map(name).collect();
            if lines.is_empty() { vec![unnamed(&self.binary(location), number(location, 2))] } else { lines }
        };
        let mut out: Vec<String> = indices.iter().flat_map(names).collect();
        out.reverse();
        out
    }

    fn link(&self, at: u64) -> Pairs {
        if at == 0 {
            return Vec::new();
        }
        let hex = |field| all(&self.links[index(at)], field).flatten().map(|byte| format!("{byte:02x}")).collect();
        vec![("trace_id".to_owned(), hex(1)), ("span_id".to_owned(), hex(2))]
    }

    /// Returns the locations of a stack as texts, root first.
    fn stack(&self, at: u64) -> Vec<String> {
        let indices = self.stacks.get(index(at)).map(|stack| numbers(stack, 1)).unwrap_or_default();
        indices.iter().rev().map(|&location| self.location(&self.locations[index(location)])).collect()
    }

    fn location(&self, location: &Message) -> String {
        let attributes = self.attributes(&numbers(location, 4));
        let frame_type =
            attributes.iter().find(|(key, _)| key == "profile.frame.type").map(|(_, value)| value.as_str());
        let [build_id, file] = self.binary(location);
        let lines: Vec<String> = all(location, 3).map(|line| self.line(&decode(line))).collect();
        if !lines.is_empty() {
            return lines_location(&file, frame_type.unwrap_or_default(), &lines);
        }
        address_location([&build_id, &file], false, number(location, 2), frame_type.unwrap_or("native"))
    }

    /// Returns the build ID and the file of a location's mapping. The build ID begins with its kind, as in `gnu:0a0b`.
    fn binary(&self, location: &Message) -> [String; 2] {
        let mapping = &self.mappings[index(number(location, 1))];
        let of_mapping = self.attributes(&numbers(mapping, 5));
        let build_id = |kind: &str| {
            let key = format!("process.executable.build_id.{kind}");
            let found = of_mapping.iter().find(|(name, _)| *name == key);
            found.map(|(_, value)| format!("{}:{value}", if kind == "profiling" { "htlhash" } else { kind }))
        };
        let build_id = ["gnu", "go", "htlhash", "profiling"].into_iter().find_map(build_id).unwrap_or_default();
        [build_id, self.string(mapping, 4).to_owned()]
    }

    fn line(&self, message: &Message) -> String {
        let function = &self.functions[index(number(message, 1))];
        let [name, system_name, file] = [1, 2, 3].map(|field| self.string(function, field));
        let [start_line, at, column] =
            [number(function, 4), number(message, 2), number(message, 3)].map(u64::cast_signed);
        line(name, system_name, file, start_line, at, column)
    }
}

/// Converts a value to the text that queries show.
fn text_of(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}
