//! The decoder against the oracle: the message object that prost decodes.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use prost::Message as _;
use prost::encoding::{encode_key, encode_varint};

use super::*;
use crate::build_id::BuildId;
use crate::dictionary::{Address, Location, Mapping, StackHash, StackPair, stack_hash};
use crate::formats::definitions::DefinitionsError;
use crate::formats::definitions::tests::filled;
use crate::formats::{oracle, wire};
use crate::label::Fingerprint;

const CASES: u32 = 2000;

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0..3_u32, any::<u32>()]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![-2..2_i64, any::<i64>(), Just(i64::MIN), Just(i64::MAX)]
}

/// A frame type, a mapping, whether the address is an offset, the address, and lines.
type AnyLocation = (u32, u32, bool, u64, Vec<(u32, i64, i64)>);

/// Functions, mappings and locations. Each ID is taken modulo the length of its table.
type Code = (Vec<([u32; 3], i64)>, Vec<(u32, Option<Vec<u8>>)>, Vec<AnyLocation>);

fn code() -> impl Strategy<Value = Code> {
    let function = ([id(), id(), id()], number());
    let mapping = (id(), prop::option::of(prop::collection::vec(any::<u8>(), 1..20)));
    let line = (id(), number(), number());
    let lines = prop::collection::vec(line, 0..4);
    let location = (id(), id(), any::<bool>(), any::<u64>(), lines);
    (prop::collection::vec(function, 0..6), prop::collection::vec(mapping, 0..6), prop::collection::vec(location, 0..8))
}

fn attribute_value() -> impl Strategy<Value = AttributeValue> {
    prop_oneof![
        id().prop_map(AttributeValue::Text),
        id().prop_map(AttributeValue::Json),
        number().prop_map(AttributeValue::Integer),
        any::<bool>().prop_map(AttributeValue::Boolean),
        any::<u64>().prop_map(AttributeValue::Double),
    ]
}

fn add_code(to: &mut Dictionary, (functions, mappings, locations): Code) {
    let text = |to: &Dictionary, id: u32| id % to.strings.len();
    for (texts, start_line) in functions {
        let [name, system_name, file] = texts.map(|id| text(to, id));
        to.intern_function(Function { name, system_name, file, start_line });
    }
    for (file, build_id) in mappings {
        let mapping = Mapping { build_id: build_id.map(BuildId::Gnu), file: text(to, file) };
        to.intern_mapping(mapping);
    }
    for (frame_type, mapping, is_file_offset, address, lines) in locations {
        let frame_type = text(to, frame_type);
        let functions = to.functions.len() as u32;
        if functions > 0 && !lines.is_empty() {
            let line = |(function, line, column)| Line { function: function % functions, line, column };
            let lines = lines.into_iter().map(line).collect();
            to.intern_location(Location::Lines { mapping_file: text(to, mapping), frame_type, lines });
        } else if let Some(mapping) = mapping.checked_rem(to.mappings.len() as u32) {
            let address = if is_file_offset { Address::FileOffset(address) } else { Address::Virtual(address) };
            to.intern_location(Location::Address { mapping, address, frame_type });
        }
    }
}

fn dictionary() -> impl Strategy<Value = Dictionary> {
    let stack = (any::<u128>(), prop::collection::vec(id(), 0..5));
    let set = prop::collection::vec((id(), id(), attribute_value()), 0..4);
    (
        prop::collection::vec("[a-cé]{0,9}", 0..9),
        code(),
        prop::collection::vec(stack, 0..12),
        prop::collection::vec(set, 0..8),
        prop::collection::vec((id(), id()), 0..12),
    )
        .prop_map(|(texts, code, stacks, sets, pairs)| {
            let mut to = Dictionary::default();
            texts.iter().for_each(|text| {
                to.strings.intern(text);
            });
            add_code(&mut to, code);
            for (hash, locations) in stacks {
                let locations: Option<Vec<u32>> =
                    locations.into_iter().map(|id| id.checked_rem(to.locations.len() as u32)).collect();
                // A stack without locations is a reference.
                let stack = locations.as_deref().filter(|locations| !locations.is_empty());
                let hashes = |stack: &[u32]| stack.iter().map(|&id| to.location_hash(id)).collect::<Vec<_>>();
                to.intern_stack(stack.map_or(StackHash(hash), |stack| stack_hash(&hashes(stack))), stack);
            }
            let text = |to: &Dictionary, id: u32| id % to.strings.len();
            for set in sets {
                let attribute = |(key, unit, value)| {
                    let value = match value {
                        AttributeValue::Text(id) => AttributeValue::Text(text(&to, id)),
                        AttributeValue::Json(id) => AttributeValue::Json(text(&to, id)),
                        value => value,
                    };
                    Attribute { key: text(&to, key), unit: text(&to, unit), value }
                };
                let attributes = set.into_iter().map(attribute).collect();
                to.intern_attributes(attributes);
            }
            for (user, kernel) in pairs {
                let [user, kernel] = [user, kernel].map(|id| id % to.stacks.len() as u32);
                to.intern_pair(StackPair { user, kernel });
            }
            to
        })
}

/// Time, pair, value and attribute set of a sample.
type Row = (i64, u32, i64, u32);

fn batch() -> impl Strategy<Value = Batch> {
    let label =
        ("[a-c]{1,2}", "[x-zé]{0,3}", prop::option::of("[a-c.]{1,3}")).prop_map(|(name, value, original_name)| Label {
            name: name.into(),
            value: value.into(),
            original_name: original_name.map(ArcStr::from),
        });
    let sample = (number(), id(), number(), id());
    let one = (any::<u128>(), prop::collection::vec(label, 0..4), prop::collection::vec(sample, 0..20));
    (prop::option::of(any::<u128>()), any::<u8>(), dictionary(), prop::collection::vec(one, 0..5)).prop_map(
        |(id, retention_class, dictionary, series)| {
            let [pairs, sets] = [dictionary.pairs.len(), dictionary.attribute_sets.len()].map(|length| length as u32);
            let of = |(fingerprint, labels, all): (u128, Vec<Label>, Vec<Row>)| {
                let labels = Some(LabelSet::new(labels)).filter(|labels| !labels.is_empty());
                let mut samples = Samples::default();
                all.iter().for_each(|&(time, pair, value, set)| samples.push(time, pair % pairs, value, set % sets));
                SeriesSamples { fingerprint: Fingerprint(fingerprint), labels, samples }
            };
            let series = series.into_iter().map(of).collect();
            Batch { tenant: TenantId::default_tenant(), id: id.map(BatchId), retention_class, dictionary, series }
        },
    )
}

/// Kind of a field, for [`scramble`].
#[derive(Clone, Copy)]
enum Kind {
    /// A column of numbers.
    Column,
    /// Messages, one for each element.
    Message(&'static [(u32, Kind)]),
    /// One message, whose parts are merged.
    Merged(&'static [(u32, Kind)]),
    /// A field with one value: the last.
    Single,
}

const ATTRIBUTES: &[(u32, Kind)] = &[(1, Kind::Message(&[(1, Kind::Single), (2, Kind::Single)]))];
const LOCATION: &[(u32, Kind)] = &[(1, Kind::Single), (3, Kind::Single), (5, Kind::Message(&[(2, Kind::Single)]))];
const DEFINITIONS: &[(u32, Kind)] = &[
    (2, Kind::Message(&[(1, Kind::Single), (4, Kind::Single)])),
    (3, Kind::Message(&[(2, Kind::Single)])),
    (4, Kind::Message(LOCATION)),
    (5, Kind::Single),
    (6, Kind::Column),
    (7, Kind::Column),
    (8, Kind::Message(ATTRIBUTES)),
    (9, Kind::Column),
    (10, Kind::Column),
];
const SERIES: &[(u32, Kind)] = &[
    (1, Kind::Single),
    (2, Kind::Message(&[(1, Kind::Single), (3, Kind::Single)])),
    (3, Kind::Column),
    (4, Kind::Column),
    (5, Kind::Column),
    (6, Kind::Column),
];
const BATCH: &[(u32, Kind)] = &[
    (1, Kind::Single),
    (2, Kind::Single),
    (3, Kind::Merged(DEFINITIONS)),
    (4, Kind::Message(SERIES)),
    (5, Kind::Single),
];

fn element(number: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut out);
    encode_varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

/// Returns a column in pieces, some of which are not packed.
fn pieces(number: u32, mut packed: &[u8], choose: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut out = Vec::new();
    while !packed.is_empty() {
        let (before, count) = (packed, 1 + choose(8));
        for _ in 0..count {
            let before = packed;
            if decode_varint(&mut packed).is_ok() && count == 1 {
                encode_key(number, WireType::Varint, &mut out);
                out.extend_from_slice(&before[..before.len() - packed.len()]);
            }
        }
        if count > 1 {
            out.extend(element(number, &before[..before.len() - packed.len()]));
        }
    }
    out
}

/// Unknown fields of each wire type. The group has a group in itself.
const UNKNOWN: [&[u8]; 5] = [
    &[0xa0, 0x06, 0xac, 0x02],
    &[0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8],
    &[0xa2, 0x06, 2, 1, 2],
    &[0xa3, 0x06, 8, 1, 0xab, 0x06, 0x12, 1, 9, 0xac, 0x06, 0xa4, 0x06],
    &[0xa5, 0x06, 1, 2, 3, 4],
];

/// Returns the parts of a message that means the same: unknown fields are added, fields of one value have earlier
/// values, columns are in pieces, merged messages are split, and fields have another order.
fn scramble(mut from: &[u8], kinds: &[(u32, Kind)], choose: &mut impl FnMut(usize) -> usize) -> Vec<Vec<u8>> {
    let mut parts: Vec<(u32, Vec<u8>)> = Vec::new();
    while !from.is_empty() {
        let whole = from;
        let (number, wire_type) = decode_key(&mut from).unwrap();
        let mut value = from;
        skip_field(wire_type, number, &mut from, DecodeContext::default()).unwrap();
        let raw = &whole[..whole.len() - from.len()];
        if wire_type == WireType::LengthDelimited {
            let length = decode_varint(&mut value).unwrap();
            value = &value[..length as usize];
        }
        if choose(8) == 1 {
            parts.push((100, UNKNOWN[choose(UNKNOWN.len())].to_vec()));
        }
        let kind = kinds.iter().find(|(of, _)| *of == number).map(|(_, kind)| *kind);
        let bytes = match kind {
            Some(Kind::Column) => pieces(number, value, choose),
            Some(Kind::Message(kinds)) => element(number, &scramble(value, kinds, choose).concat()),
            Some(Kind::Merged(kinds)) => {
                let parts = scramble(value, kinds, choose);
                let (first, second) = parts.split_at(choose(parts.len() + 1));
                [element(number, &first.concat()), element(number, &second.concat())].concat()
            }
            Some(Kind::Single) if choose(4) == 1 => {
                let earlier = if wire_type == WireType::Varint { vec![raw[0], 0x85, 2] } else { element(number, b"x") };
                [&earlier, raw].concat()
            }
            Some(Kind::Single) | None => raw.to_vec(),
        };
        parts.push((number, bytes));
    }
    let rotated = choose(4) as u32;
    // The order within a field stays.
    parts.sort_by_key(|(number, _)| (number + rotated) % 4);
    parts.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Returns a function that returns numbers below its argument. It takes them from `choices`, again and again.
fn chooser(choices: &[u8]) -> impl FnMut(usize) -> usize {
    let mut choices = choices.iter().copied().cycle();
    move |end| choices.next().map_or(0, usize::from) % end
}

/// Compares what is decoded with the oracle. Returns whether the bytes were accepted.
fn compare(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let (read, wanted) = (Batch::decode(bytes), oracle::decode(bytes));
    let (Ok(read), Ok(wanted)) = (&read, &wanted) else {
        prop_assert!(read.is_err() && wanted.is_err(), "{read:?}, but the oracle: {wanted:?}");
        return Ok(false);
    };
    prop_assert_eq!(oracle::to_wire(read), oracle::to_wire(wanted));
    let hashes = |of: &Dictionary| (0..of.locations.len() as u32).map(|id| of.location_hash(id)).collect::<Vec<_>>();
    prop_assert_eq!(hashes(&read.dictionary), hashes(&wanted.dictionary));
    prop_assert_eq!(read.encode(), wanted.encode());
    prop_assert!(read.logged_len_max() <= read.encoded_len_max());
    Ok(true)
}

#[test]
fn every_form_of_a_valid_batch_is_decoded_as_by_prost() {
    let mut runner = TestRunner::new(Config::with_cases(CASES));
    let (samples, changed) = (Cell::new(0), Cell::new(0));
    let choices = prop::collection::vec(any::<u8>(), 1..60);
    let result = runner.run(&(batch(), choices), |(batch, choices)| {
        samples.set(samples.get() + batch.series.iter().map(|series| series.samples.len()).sum::<usize>());
        let message = oracle::to_wire(&batch);
        let whole = message.encode_to_vec();
        prop_assert_eq!(&oracle::to_wire(&Batch::decode(&whole).unwrap()), &message);
        let logged = oracle::into_logged(message).encode_to_vec();
        let read = oracle::to_wire(&Batch::decode(&logged).unwrap());
        prop_assert!(oracle::into_logged(read).encode_to_vec() == logged);
        for bytes in [whole.as_slice(), &logged, &batch.encode(), &batch.encode_logged()] {
            prop_assert!(compare(bytes)?);
            let scrambled = scramble(bytes, BATCH, &mut chooser(&choices)).concat();
            changed.set(changed.get() + u32::from(scrambled != bytes));
            prop_assert!(compare(&scrambled)?);
        }
        Ok(())
    });
    result.unwrap();
    assert!(samples.get() > CASES as usize && changed.get() > CASES, "{samples:?} {changed:?}");
}

/// A change of bytes: at an index, a byte is replaced, inserted, or removed with all bytes after it, or some bytes are
/// repeated.
type Damage = (Index, u8, u8);

fn damage(bytes: &mut Vec<u8>, (at, kind, byte): &Damage) {
    let at = at.index(bytes.len() + 1);
    match kind % 16 {
        0 => bytes.truncate(at),
        1 => drop(bytes.splice(at..at, [*byte])),
        2 => drop(bytes.splice(at..at, bytes[at / 2..at].to_vec())),
        3 => drop(bytes.drain(at..(at + usize::from(*byte) % 8).min(bytes.len()))),
        _ => bytes.iter_mut().skip(at).take(1).for_each(|at| *at = *byte),
    }
}

#[test]
fn damaged_bytes_are_accepted_or_refused_as_by_prost() {
    let mut runner = TestRunner::new(Config::with_cases(CASES * 2));
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let choices = prop::collection::vec(any::<u8>(), 1..60);
    let damages = prop::collection::vec((any::<Index>(), any::<u8>(), any::<u8>()), 1..4);
    let result = runner.run(&(batch(), choices, damages), |(batch, choices, damages)| {
        let whole = batch.encode().to_vec();
        let scrambled = scramble(&whole, BATCH, &mut chooser(&choices)).concat();
        for mut bytes in [whole, scrambled] {
            damages.iter().for_each(|of| damage(&mut bytes, of));
            let count = if compare(&bytes)? { &accepted } else { &refused };
            count.set(count.get() + 1);
        }
        Ok(())
    });
    result.unwrap();
    assert!(accepted.get() > CASES / 10 && refused.get() > CASES / 10, "{accepted:?} {refused:?}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_accepted_or_refused_as_by_prost(
        bytes in prop::collection::vec(prop_oneof![0..60_u8, any::<u8>()], 0..80)
    ) {
        compare(&bytes)?;
    }
}

/// A field of definitions that holds an ID: its name, the table of the ID, and a function that sets the ID.
type IdField = (&'static str, &'static str, fn(&mut wire::Definitions, u32));

/// A column of samples that holds IDs: its name, the length of the table, and a function that sets the first ID.
type IdColumn = (&'static str, usize, fn(&mut wire::SeriesSamples, u32));

// Of the locations of `filled`, the first has lines, and the second has an address in a mapping.
const ID_FIELDS: [IdField; 17] = [
    ("name of a function", "string", |of, id| of.functions[0].name = id),
    ("system name of a function", "string", |of, id| of.functions[0].system_name = id),
    ("file of a function", "string", |of, id| of.functions[0].file = id),
    ("file of a mapping", "string", |of, id| of.mappings[0].file = id),
    ("frame type of a location with lines", "string", |of, id| of.locations[0].frame_type = id),
    ("mapping file of a location with lines", "string", |of, id| of.locations[0].mapping = id),
    ("function of a line", "function", |of, id| of.locations[0].lines[0].function = id),
    ("frame type of a location with an address", "string", |of, id| of.locations[1].frame_type = id),
    ("mapping of a location with an address", "mapping", |of, id| of.locations[1].mapping = id),
    ("first location of a stack", "location", |of, id| of.stack_locations[0] = id),
    ("second location of a stack", "location", |of, id| of.stack_locations[1] = id),
    ("user stack of a pair", "stack", |of, id| of.pair_users[0] = id),
    ("kernel stack of a pair", "stack", |of, id| of.pair_kernels[0] = id),
    ("key of an attribute", "string", |of, id| of.attribute_sets[0].attributes[0].key = id),
    ("unit of an attribute", "string", |of, id| of.attribute_sets[0].attributes[0].unit = id),
    ("text of an attribute", "string", |of, id| set_value(of, wire::attribute::Value::Text(id))),
    ("JSON of an attribute", "string", |of, id| set_value(of, wire::attribute::Value::Json(id))),
];

fn set_value(of: &mut wire::Definitions, value: wire::attribute::Value) {
    of.attribute_sets[0].attributes[0].value = Some(value);
}

#[test]
fn an_id_without_an_entry_is_refused_in_every_field() {
    let mut samples = Samples::default();
    samples.push(1, 1, 1, 1);
    let series = vec![SeriesSamples { fingerprint: Fingerprint(7), labels: None, samples }];
    let tenant = TenantId::default_tenant();
    let good = Batch { tenant, id: None, retention_class: 0, dictionary: filled(2), series };
    let (message, dictionary) = (oracle::to_wire(&good), &good.dictionary);
    assert_eq!(oracle::to_wire(&Batch::decode(&message.encode_to_vec()).unwrap()), message);
    for (field, in_table, set) in ID_FIELDS {
        let end = match in_table {
            "string" => dictionary.strings.len() as usize,
            "function" => dictionary.functions.len(),
            "mapping" => dictionary.mappings.len(),
            "location" => dictionary.locations.len(),
            _ => dictionary.stacks.len(),
        };
        // The smallest ID that has no entry.
        let mut bad = message.clone();
        set(bad.definitions.as_mut().unwrap(), end as u32);
        let read = Batch::decode(&bad.encode_to_vec());
        let Err(BatchError::Definitions(DefinitionsError::OutOfRange { table, id, length })) = read else {
            panic!("{field}: {read:?}");
        };
        assert_eq!((table, id as usize, length), (in_table, end, end), "{field}");
    }
    let columns: [IdColumn; 2] = [
        ("the stack of a sample", dictionary.pairs.len(), |of, id| of.pairs[0] = id),
        ("the attribute set of a sample", dictionary.attribute_sets.len(), |of, id| of.attribute_sets[0] = id),
    ];
    for (field, end, set) in columns {
        let mut bad = message.clone();
        set(&mut bad.series[0], end as u32);
        let said = Batch::decode(&bad.encode_to_vec()).unwrap_err().to_string();
        assert_eq!(said, format!("batch: {field} has no definition"));
    }
}
