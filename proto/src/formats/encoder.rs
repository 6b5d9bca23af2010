//! Encoder of a [`Batch`] to the bytes of a [`wire::Batch`](crate::wire::Batch), for the leader of a shard or for the
//! log.
//!
//! The encoder builds no message object. It writes only the definitions that stacks and attribute sets need.

use crate::batch::{Batch, SeriesSamples};
use crate::dictionary::{Address, Attribute, AttributeValue, Dictionary, Function, Line, Location, Mapping, StackHash};
use crate::formats::needed::Needed;
use crate::label::LabelSet;

/// Writes the protobuf wire format, field by field. Fields with their default value are skipped.
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

/// Form of the references to stacks that the receiver of a batch knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum References {
    /// The hashes, for the leader of a shard.
    Hashes,
    /// The first halves of the hashes, for the log. The leader has removed the definitions only of stacks whose halves
    /// were unique in its memory.
    FirstHalves,
}

// Wire types of protobuf.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

fn zigzag(number: i64) -> u64 {
    (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned()
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    #[inline]
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.out.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.out.push(number as u8);
    }

    fn key(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn uint64(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.key(number, VARINT);
            self.varint(value);
        }
    }

    fn uint32(&mut self, number: u32, value: u32) {
        self.uint64(number, u64::from(value));
    }

    fn sint64(&mut self, number: u32, value: i64) {
        self.uint64(number, zigzag(value));
    }

    fn bytes(&mut self, number: u32, value: &[u8]) {
        if !value.is_empty() {
            self.element(number, value);
        }
    }

    /// Writes an element of a repeated field, even if the element is empty.
    fn element(&mut self, number: u32, value: &[u8]) {
        self.key(number, LENGTH);
        self.varint(value.len() as u64);
        self.out.extend_from_slice(value);
    }

    /// Writes a field with a length, which is a message or a column of numbers.
    pub(crate) fn message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        self.key(number, LENGTH);
        let start = self.out.len();
        // The length gets one byte, which is enough for most lengths.
        self.out.push(0);
        write(self);
        let end = self.out.len();
        let length = end - start - 1;
        if length < 0x80 {
            self.out[start] = length as u8;
            return;
        }
        self.varint(length as u64);
        let width = self.out.len() - end;
        let mut prefix = [0; 10];
        prefix[..width].copy_from_slice(&self.out[end..]);
        self.out.copy_within(start + 1..end, start + width);
        self.out[start..start + width].copy_from_slice(&prefix[..width]);
        self.out.truncate(start + width + length);
    }

    fn column(&mut self, number: u32, values: impl ExactSizeIterator<Item = u64>) {
        if values.len() > 0 {
            self.message(number, |to| values.for_each(|value| to.varint(value)));
        }
    }

    pub(crate) fn batch(&mut self, batch: &Batch, references: References) {
        self.bytes(1, batch.tenant.as_str().as_bytes());
        if let Some(id) = batch.id {
            self.bytes(2, &id.0.to_be_bytes());
        }
        self.message(3, |to| to.dictionary(&batch.dictionary, references));
        for series in &batch.series {
            self.message(4, |to| to.series(series));
        }
        self.uint32(5, batch.retention_class.into());
    }

    fn series(&mut self, series: &SeriesSamples) {
        let samples = &series.samples;
        self.bytes(1, &series.fingerprint.0.to_be_bytes());
        for label in series.labels.iter().flat_map(LabelSet::iter) {
            self.message(2, |to| {
                to.bytes(1, label.name.as_bytes());
                to.bytes(2, label.value.as_bytes());
                to.bytes(3, label.original_name.as_deref().unwrap_or_default().as_bytes());
            });
        }
        let mut before = 0_i64;
        let deltas =
            samples.times_ns.iter().map(|&time| zigzag(time.wrapping_sub(std::mem::replace(&mut before, time))));
        self.column(3, deltas);
        self.column(4, samples.pairs.iter().map(|&pair| u64::from(pair)));
        self.column(5, samples.values.iter().map(|&value| zigzag(value)));
        self.column(6, samples.attribute_sets.iter().map(|&set| u64::from(set)));
    }

    /// Writes the definitions. Skips entry 0 of the tables in which entry 0 is the empty entry.
    fn dictionary(&mut self, from: &Dictionary, references: References) {
        let needed = Needed::of(from);
        for id in needed.strings.ids().skip(1) {
            self.element(1, from.strings.get(id).as_bytes());
        }
        for id in needed.functions.ids() {
            self.message(2, |to| to.function(&from.functions[id as usize], &needed));
        }
        for id in needed.mappings.ids() {
            let Mapping { build_id, file } = &from.mappings[id as usize];
            self.message(3, |to| {
                to.uint32(1, needed.strings.of(*file));
                if let Some(build_id) = build_id {
                    to.bytes(2, build_id.to_string().as_bytes());
                }
            });
        }
        for id in needed.locations.ids() {
            self.message(4, |to| to.location(&from.locations[id as usize], &needed));
        }
        let mut references_of = from.stacks.references().peekable();
        if references_of.peek().is_some() {
            self.message(5, |to| references_of.for_each(|hash| to.reference(hash, references)));
        }
        let each = || from.stacks.iter().skip(1).map(|(_, stack)| stack.unwrap_or_default());
        self.column(6, each().map(|stack| stack.len() as u64));
        if each().any(|stack| !stack.is_empty()) {
            self.message(7, |to| {
                each().flatten().for_each(|&location| to.varint(u64::from(needed.locations.of(location))));
            });
        }
        for set in from.attribute_sets.iter().skip(1) {
            self.message(8, |to| {
                set.clone().for_each(|attribute| to.message(1, |to| to.attribute(&attribute, &needed)))
            });
        }
        self.column(9, from.pairs.iter().skip(1).map(|pair| u64::from(pair.user)));
        self.column(10, from.pairs.iter().skip(1).map(|pair| u64::from(pair.kernel)));
    }

    fn reference(&mut self, hash: StackHash, references: References) {
        match references {
            References::Hashes => self.out.extend_from_slice(&hash.0.to_be_bytes()),
            References::FirstHalves => self.out.extend_from_slice(&hash.first_half().to_be_bytes()),
        }
    }

    fn function(&mut self, function: &Function, needed: &Needed) {
        self.uint32(1, needed.strings.of(function.name));
        self.uint32(2, needed.strings.of(function.system_name));
        self.uint32(3, needed.strings.of(function.file));
        self.sint64(4, function.start_line);
    }

    fn location(&mut self, location: &Location, needed: &Needed) {
        match location {
            Location::Address { mapping, address, frame_type } => {
                let (address, is_file_offset) = match *address {
                    Address::Virtual(address) => (address, 0),
                    Address::FileOffset(offset) => (offset, 1),
                };
                self.uint32(1, needed.strings.of(*frame_type));
                self.uint32(2, needed.mappings.of(*mapping));
                self.uint64(3, address);
                self.uint32(4, is_file_offset);
            }
            Location::Lines { mapping_file, frame_type, lines } => {
                self.uint32(1, needed.strings.of(*frame_type));
                self.uint32(2, needed.strings.of(*mapping_file));
                for Line { function, line, column } in lines {
                    self.message(5, |to| {
                        to.uint32(1, needed.functions.of(*function));
                        to.sint64(2, *line);
                        to.sint64(3, *column);
                    });
                }
            }
        }
    }

    fn attribute(&mut self, attribute: &Attribute, needed: &Needed) {
        self.uint32(1, needed.strings.of(attribute.key));
        self.uint32(2, needed.strings.of(attribute.unit));
        // A member of a oneof is written even if it has its default value.
        let (number, value) = match attribute.value {
            AttributeValue::Text(id) => (3, u64::from(needed.strings.of(id))),
            AttributeValue::Integer(integer) => (4, zigzag(integer)),
            AttributeValue::Boolean(boolean) => (5, u64::from(boolean)),
            AttributeValue::Json(id) => (7, u64::from(needed.strings.of(id))),
            AttributeValue::Double(bits) => {
                self.key(6, FIXED64);
                self.out.extend_from_slice(&bits.to_le_bytes());
                return;
            }
        };
        self.key(number, VARINT);
        self.varint(value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message as _;

    use super::*;
    use crate::build_id::BuildId;
    use crate::dictionary::{StackPair, stack_hash};
    use crate::formats::definitions::tests::filled;
    use crate::formats::oracle::{into_logged, to_wire};
    use crate::formats::wire;
    use crate::{BatchId, Command, Entry, Fingerprint, Label, Samples, TenantId};

    fn batch(n: u32) -> Batch {
        let dictionary = if n == 0 { Dictionary::default() } else { filled(n) };
        let samples = Samples {
            times_ns: (0..i64::from(n)).map(|i| [i64::MIN, 0, i64::MAX, i << 33][i as usize % 4]).collect(),
            pairs: (0..n).collect(),
            values: (0..i64::from(n)).map(|i| [-1, i64::MAX, 0, i << 20][i as usize % 4]).collect(),
            attribute_sets: (0..n).collect(),
        };
        let labels = LabelSet::new(vec![Label::new("a.b", "1"), Label::new("c", "x".repeat(200))]);
        let series = |labels| SeriesSamples { fingerprint: Fingerprint(7), labels, samples: samples.clone() };
        let id = (n > 0).then_some(BatchId(u128::MAX - 1));
        let series = vec![series(Some(labels)), series(None)];
        Batch { tenant: TenantId::default_tenant(), id, retention_class: (n % 256) as u8, dictionary, series }
    }

    /// Returns a copy of `from` without the entries that no stack and no attribute set needs.
    fn compact(from: &Dictionary) -> Dictionary {
        let mut to = Dictionary::default();
        let mut importer = crate::Importer::new(from);
        for id in 0..from.stacks.len() as u32 {
            match from.stacks.get(id) {
                Some(_) => importer.stack(&mut to, id),
                None => to.intern_stack(from.stacks.hash(id), None),
            };
        }
        for id in 0..from.attribute_sets.len() as u32 {
            importer.attributes(&mut to, id);
        }
        to.pairs = from.pairs.clone();
        to
    }

    // Regression: for sets of many attributes the bound was too low, so batches too large for an entry were not split.
    #[test]
    fn the_size_on_the_wire_never_exceeds_its_upper_bound() {
        for attributes in [1, 2, 32, 100] {
            let mut dictionary = Dictionary::default();
            let keys: Vec<u32> = (0..attributes).map(|i| dictionary.strings.intern(&format!("k{i}"))).collect();
            let unit = dictionary.strings.intern("bytes");
            for set in 0..2000 {
                let value = |i: usize| AttributeValue::Integer(if i < 2 { set >> (6 * i) & 63 } else { 1 });
                let attribute = |(i, &key): (usize, &u32)| Attribute { key, unit, value: value(i) };
                dictionary.intern_attributes(keys.iter().enumerate().map(attribute).collect());
            }
            let batch = Batch { dictionary, ..batch(0) };
            assert!(batch.encoded_len_max() > batch.logged_len_max(), "{attributes}");
        }
        // Each location has its own mapping with the longest build ID, or many lines of the largest numbers.
        let mut dictionary = Dictionary::default();
        let name = dictionary.strings.intern("f");
        for i in 0..2000 {
            let build_id = BuildId::Go(format!("{i:0512}"));
            let mapping = dictionary.intern_mapping(Mapping { build_id: Some(build_id), file: 0 });
            let address = dictionary.intern_location(Location::Address {
                mapping,
                address: Address::Virtual(u64::MAX),
                frame_type: 0,
            });
            let line = |column: i64| {
                let start_line = i64::MIN + column;
                let function = dictionary.intern_function(Function { name, system_name: name, file: name, start_line });
                Line { function, line: i64::MIN + i, column: i64::MIN + column }
            };
            let lines = (1..60).map(line).collect();
            let lines = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
            let hashes = [address, lines].map(|id| dictionary.location_hash(id));
            let stack = dictionary.intern_stack(stack_hash(&hashes), Some(&[address, lines]));
            dictionary.intern_pair(StackPair { user: stack, kernel: 0 });
        }
        let batch = Batch { dictionary, ..batch(0) };
        let encoded = batch.logged_len_max();
        let bound = batch.encoded_len_max();
        assert!(2000 * (512 + 59 * 25) < encoded && encoded < bound, "{encoded} {bound}");
    }

    // A reference takes more bytes than the locations of a short stack.
    #[test]
    fn a_batch_without_known_definitions_stays_below_its_bound() {
        let mut dictionary = filled(9);
        let locations = dictionary.locations.len() as u32;
        for (a, b) in (0..locations).flat_map(|a| (0..locations).map(move |b| (a, b))) {
            let hash = stack_hash(&[a, b].map(|id| dictionary.location_hash(id)));
            dictionary.intern_stack(hash, Some(&[a, b]));
        }
        let mut batch = Batch { dictionary, ..batch(0) };
        let (whole, bound) = (batch.encode_logged().len(), batch.logged_len_max());
        batch.strip(|stack| stack % 7 > 0, |_series| false);
        let stripped = batch.encode_logged().len();
        assert!(whole < stripped && stripped <= bound, "{whole} {stripped} {bound}");
    }

    #[test]
    fn the_bytes_equal_those_of_the_message_without_unneeded_definitions() {
        for n in [0, 1, 4, 40, 400, 4000] {
            for known in [0, 1, 2, n] {
                let mut batch = batch(n);
                let stripped = batch.strip(|stack| stack % 3 < known as usize, |series| series as u32 == known);
                let message = to_wire(&Batch { dictionary: compact(&batch.dictionary), ..batch.clone() });
                assert!(batch.encode() == message.encode_to_vec(), "{n} {known}");
                let logged = into_logged(message).encode_to_vec();
                assert!(batch.encode_logged() == logged && logged.len() <= self::batch(n).logged_len_max());
                let command = Command::Append(Arc::new(batch.clone()));
                let mut bytes = Vec::new();
                command.encode(&mut bytes);
                let command = Some(wire::entry::Command::Append(logged.into()));
                assert!(bytes == wire::Entry { proposed_at_ns: 0, command }.encode_to_vec(), "{n} {known}");
                batch.restore(stripped);
                assert_eq!(to_wire(&batch), to_wire(&self::batch(n)));
            }
        }
        let (command, mut bytes) =
            (Command::Expire { tier: crate::Tier::Hour, retention_class: 2, before_ns: -5 }, Vec::new());
        command.encode(&mut bytes);
        assert_eq!(bytes, Entry { proposed_at_ns: 0, command }.to_wire().encode_to_vec());
    }

    #[test]
    fn unneeded_definitions_are_not_written_and_the_others_are_read_back() {
        let whole = batch(40);
        let mut batch = whole.clone();
        batch.strip(|stack| stack != 7, |_series| false);
        let read = Batch::decode(&batch.encode()).unwrap();
        let hashes = |d: &Dictionary| d.stack(7).iter().map(|&id| d.location_hash(id)).collect::<Vec<_>>();
        assert_eq!(hashes(&read.dictionary), hashes(&whole.dictionary));
        assert_eq!(read.dictionary.locations.len(), whole.dictionary.stack(7).len());
        assert!(read.dictionary.stacks.keys().eq(whole.dictionary.stacks.keys()));
        assert!(read.dictionary.pairs.iter().eq(whole.dictionary.pairs.iter()));
        assert!(read.dictionary.has_attributes_of(&whole.dictionary));
    }
}
