//! A decoder of pprof by the field numbers of profile.proto, and edits of pprof files for tests.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read as _, Write as _};

use crate::payload::otlp::now_ns;
use crate::payload::sample::{
    Expected, Folded, Multiset, Sample, address_location, is_possible, line, lines_location, names, profile_type,
    stored_value, unnamed,
};
use crate::payload::wire::{Message, Value, all, decode, encode, inner, number, numbers};

/// A type and its unit.
type ValueType = (String, String);

/// Compresses bytes to a gzip member.
#[must_use]
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns the protobuf message in a pprof file, which may be gzipped.
#[must_use]
pub fn unpacked(bytes: &[u8]) -> Vec<u8> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return bytes.to_vec();
    }
    let mut out = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out).unwrap();
    out
}

/// Returns the profile with its time replaced by `time_ns`, gzipped.
#[must_use]
pub fn at_time(bytes: &[u8], time_ns: u64) -> Vec<u8> {
    let mut message = decode(&unpacked(bytes));
    message.retain(|(field, _)| *field != 9);
    message.push((9, time_ns.into()));
    gzip(&encode(&message))
}

/// Returns the profile without its time, not compressed.
#[must_use]
pub fn without_time(bytes: &[u8]) -> Vec<u8> {
    let mut message = decode(&unpacked(bytes));
    message.retain(|(field, _)| *field != 9);
    encode(&message)
}

/// Builds a pprof of one type: stacks (leaf first) with one value each.
#[must_use]
pub fn build(kind: ValueType, period: Option<(ValueType, u64)>, stacks: &[(&[&str], i64)], time_ns: u64) -> Vec<u8> {
    let mut strings: Vec<String> = vec![String::new()];
    let mut string = |text: &str| -> u64 {
        let at = strings.iter().position(|known| known == text).unwrap_or_else(|| {
            strings.push(text.to_owned());
            strings.len() - 1
        });
        at as u64
    };
    let mut value_type = |kind: &ValueType| vec![(1, string(&kind.0).into()), (2, string(&kind.1).into())];
    let mut message: Message = vec![(1, (&value_type(&kind)).into())];
    if let Some((kind, period)) = period {
        message.extend([(11, (&value_type(&kind)).into()), (12, period.into())]);
    }
    let mut ids: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, value) in stacks {
        let mut locations = Vec::new();
        for name in *stack {
            let next = ids.len() as u64 + 1;
            let id = *ids.entry(name).or_insert(next);
            if id == next {
                let function: Message = vec![(1, id.into()), (2, string(name).into())];
                let line: Message = vec![(1, id.into()), (2, 1.into())];
                let location: Message = vec![(1, id.into()), (4, (&line).into())];
                message.extend([(5, (&function).into()), (4, (&location).into())]);
            }
            locations.push(id);
        }
        let sample: Message = vec![
            (1, crate::payload::wire::packed(locations)),
            (2, crate::payload::wire::packed([value.cast_unsigned()])),
        ];
        message.push((2, (&sample).into()));
    }
    message.extend(strings.iter().map(|text| (6, Value::from(text.as_str()))));
    message.push((9, time_ns.into()));
    encode(&message)
}

/// A decoded profile.
#[derive(Debug)]
pub struct Profile {
    /// Type and unit of each column. Every sample has one value per column.
    pub sample_types: Vec<ValueType>,
    /// Name that the push gives to the profile types; empty if it gives none.
    name: String,
    message: Message,
    strings: Vec<String>,
    locations: HashMap<u64, Message>,
    functions: HashMap<u64, Message>,
    mappings: HashMap<u64, Message>,
}

impl Profile {
    /// Reads a profile, compressed or not.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let message = decode(&unpacked(bytes));
        let by_id = |field| all(&message, field).map(decode).map(|entry| (number(&entry, 1), entry)).collect();
        let strings: Vec<String> = all(&message, 6).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        let locations = by_id(4);
        let functions = by_id(5);
        let mappings = by_id(3);
        let mut profile =
            Self { sample_types: Vec::new(), name: String::new(), message, strings, locations, functions, mappings };
        profile.sample_types =
            all(&profile.message, 1).map(|value_type| profile.value_type(&decode(value_type))).collect();
        profile
    }

    /// Returns the profile as if the push gave its types this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Returns the profile as if it was received at `time_ns`, which becomes the profile's time if it has none.
    #[must_use]
    pub fn received_at(mut self, time_ns: u64) -> Self {
        if number(&self.message, 9) == 0 {
            self.message.push((9, time_ns.into()));
        }
        self
    }

    fn string(&self, message: &Message, field: u32) -> &str {
        &self.strings[usize::try_from(number(message, field)).unwrap()]
    }

    fn value_type(&self, message: &Message) -> ValueType {
        (self.string(message, 1).to_owned(), self.string(message, 2).to_owned())
    }

    /// Returns the stored profile type of each column, and the factor by which the column's values are multiplied.
    #[must_use]
    pub fn profile_types(&self) -> Vec<(String, i64)> {
        let period = self.value_type(&inner(&self.message, 11));
        let value = number(&self.message, 12).cast_signed();
        let stored = |kind| profile_type(&self.name, kind, &self.sample_types, &period, value);
        self.sample_types.iter().map(stored).collect()
    }

    /// Returns true if every location has lines.
    #[must_use]
    pub fn is_symbolized(&self) -> bool {
        self.locations.values().all(|location| all(location, 4).next().is_some())
    }

    /// Returns the samples that a node must store in the series with these labels. The profile must have a time.
    #[must_use]
    pub fn samples(&self, labels: &[(String, String)]) -> Multiset {
        self.expected(labels).expect("a profile that may be stored").samples
    }

    /// Returns the samples that must be stored, and the numbers of valid and invalid sample types; `None` if the whole
    /// profile must be rejected.
    #[must_use]
    pub fn expected(&self, labels: &[(String, String)]) -> Option<Expected> {
        let time_ns = number(&self.message, 9);
        let samples: Vec<Message> = all(&self.message, 2).map(decode).collect();
        let has_columns = |sample: &Message| numbers(sample, 2).len() == self.sample_types.len();
        if !is_possible(time_ns, now_ns()) || !samples.iter().all(has_columns) {
            return None;
        }
        let mut out = Expected::default();
        for (column, (id, scale)) in self.profile_types().into_iter().enumerate() {
            let of_type = [("__profile_type__".to_owned(), id.clone())];
            let read = |sample: &Message| {
                let mut attributes: Vec<(String, String)> =
                    all(sample, 3).map(|label| self.attribute(&decode(label))).collect();
                // Of equal keys, the first counts.
                attributes.reverse();
                let names = names([&attributes[..], labels, &of_type]);
                let stack = numbers(sample, 1).iter().rev().map(|id| self.location(&self.locations[id])).collect();
                let value = stored_value(&id, numbers(sample, 2)[column].cast_signed(), scale)?;
                Some((Sample { names, stack, time_ns: i64::try_from(time_ns).ok()? }, self.names(sample), value))
            };
            let series = [labels, &of_type].concat();
            out.add(&id, &series, samples.iter().map(read).collect());
        }
        Some(out)
    }

    /// Returns the function names of a sample's stack, root first. Each inlined call is a separate frame.
    fn names(&self, sample: &Message) -> Vec<String> {
        let name = |line: Message| self.string(&self.functions[&number(&line, 1)], 2).to_owned();
        let of_location = |id: &u64| {
            let location = &self.locations[id];
            let lines: Vec<String> = all(location, 4).map(decode).map(name).collect();
            if lines.is_empty() { vec![unnamed(&self.binary(location), self.address(location).1)] } else { lines }
        };
        let mut names: Vec<String> = numbers(sample, 1).iter().flat_map(of_location).collect();
        names.reverse();
        names
    }

    /// Returns the sum of one column for each stack. A stack is its names from root to leaf. Each inlined call is a
    /// separate frame, an unnamed function is `?`, and values are unchanged.
    #[must_use]
    pub fn folded(&self, column: usize) -> Folded {
        let mut out = Folded::new();
        for sample in all(&self.message, 2).map(decode) {
            *out.entry(self.names(&sample)).or_default() += i128::from(numbers(&sample, 2)[column].cast_signed());
        }
        out.retain(|_, sum| *sum != 0);
        out
    }

    fn attribute(&self, label: &Message) -> (String, String) {
        let text = self.string(label, 2);
        let value = if text.is_empty() { number(label, 3).cast_signed().to_string() } else { text.to_owned() };
        (self.string(label, 1).to_owned(), value)
    }

    fn location(&self, location: &Message) -> String {
        let [build_id, file] = self.binary(location);
        let is_kernel = file.starts_with("[kernel");
        let lines: Vec<String> = all(location, 4).map(|line| self.line(&decode(line))).collect();
        if !lines.is_empty() {
            return lines_location(&file, if is_kernel { "kernel" } else { "" }, &lines);
        }
        let (is_offset, address) = self.address(location);
        address_location([&build_id, &file], is_offset, address, if is_kernel { "kernel" } else { "native" })
    }

    /// Returns the mapping of a location; `None` if the location refers to no mapping or to one that does not exist.
    fn mapping(&self, location: &Message) -> Option<&Message> {
        self.mappings.get(&number(location, 2))
    }

    /// Returns the build ID and the file of a location's mapping. The build ID begins with its kind, as in `gnu:0a0b`.
    fn binary(&self, location: &Message) -> [String; 2] {
        let text = |field| self.mapping(location).map_or("", |mapping| self.string(mapping, field));
        let build_id = text(6);
        let is_hex = build_id.len().is_multiple_of(2) && build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let build_id = match build_id {
            "" => String::new(),
            id if is_hex => format!("gnu:{}", id.to_lowercase()),
            id => format!("go:{id}"),
        };
        [build_id, text(5).to_owned()]
    }

    /// Returns the address of a location. An address inside of the mapping is converted to a file offset, which the
    /// flag `true` marks. Any other address is returned unchanged, with the flag `false`.
    fn address(&self, location: &Message) -> (bool, u64) {
        let address = number(location, 3);
        let of_mapping = |field| self.mapping(location).map_or(0, |mapping| number(mapping, field));
        let [start, limit, offset] = [2, 3, 4].map(of_mapping);
        let is_inside = start <= address && address < limit;
        (is_inside, if is_inside { address - start + offset } else { address })
    }

    fn line(&self, message: &Message) -> String {
        let function = &self.functions[&number(message, 1)];
        let [name, system_name, file] = [2, 3, 4].map(|field| self.string(function, field));
        let [start_line, at, column] =
            [number(function, 5), number(message, 2), number(message, 3)].map(u64::cast_signed);
        line(name, system_name, file, start_line, at, column)
    }
}
