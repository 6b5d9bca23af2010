//! Invalid export requests. Each has one fault, because of which nothing in it can be stored.

use crate::payload::otlp::{Request, now_ns, stack};
use crate::payload::wire::{Message, Value, decode, edit, encode, inner, packed, packed_fixed64s};

/// The number -1 as a varint field encodes it.
const NEGATIVE: u64 = u64::MAX;

/// Returns a valid request: one sample with three frames.
#[must_use]
pub fn good(service: &str) -> Vec<u8> {
    Request::new(service).seen(stack(&["leaf", "work", "main"]), vec![now_ns()]).bytes()
}

/// Returns the request with its only sample changed by `change`.
#[must_use]
pub fn with_sample(request: &[u8], change: impl Fn(&mut Message)) -> Vec<u8> {
    edit(request, &[1, 2, 2, 2], &mut |mut sample| {
        change(&mut sample);
        sample
    })
}

/// Returns the request with its dictionary changed by `change`.
#[must_use]
pub fn with_dictionary(request: &[u8], change: impl Fn(&mut Message)) -> Vec<u8> {
    edit(request, &[2], &mut |mut dictionary| {
        change(&mut dictionary);
        dictionary
    })
}

/// Replaces a field.
pub fn set(message: &mut Message, field: u32, value: Value) {
    message.retain(|(number, _)| *number != field);
    message.push((field, value));
}

/// Returns all invalid requests, each with a description of its fault.
#[must_use]
pub fn requests(service: &str) -> Vec<(String, Vec<u8>)> {
    let good = good(service);
    let mut out = broken_messages(&good);
    out.extend(broken_samples(&good));
    out.extend(broken_tables(&good));
    out
}

/// Returns requests that are invalid as a whole, such as truncated ones.
fn broken_messages(good: &[u8]) -> Vec<(String, Vec<u8>)> {
    let dictionary = encode(&inner(&decode(good), 2));
    let attribute: Message = vec![(3, 99_999.into()), (2, (&vec![(8, Value::Varint(99_999))]).into())];
    let mut resource = |_: Message| vec![(1, Value::from(&attribute))];
    [
        ("truncated", good[..good.len() / 2].to_vec()),
        ("not protobuf", vec![0xff; 1000]),
        ("a varint without end", vec![0x80; 100]),
        ("a length beyond the end", vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ("wrong wire type of resource_profiles", encode(&vec![(1, 5.into())])),
        ("wrong wire type of the dictionary", [encode(&vec![(2, 7.into())]), dictionary].concat()),
        ("field number 0", vec![0x00, 0x01]),
        ("groups", vec![0x0b, 0x0c]),
        ("nested garbage", b"\x0a".repeat(200_000)),
        ("no dictionary", encode(&decode(good)[..1].to_vec())),
        ("resource attribute refers to no string", edit(good, &[1, 1], &mut resource)),
    ]
    .map(|(name, request)| (name.to_owned(), request))
    .into()
}

/// Returns requests whose sample has an invalid reference, shape, value or time.
fn broken_samples(good: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    for (name, field, value) in [
        ("stack index out of range", 1, Value::Varint(1_000_000)),
        ("stack index negative", 1, Value::Varint(NEGATIVE)),
        ("stack index with a wrong wire type", 1, "x".into()),
        ("attribute index out of range", 2, packed([12345])),
        ("link index out of range", 3, Value::Varint(99)),
        ("more values than timestamps", 4, packed([1, 2, 3])),
        ("timestamps with a wrong wire type", 5, Value::Varint(7)),
        ("timestamps cut in the middle", 5, Value::Bytes(vec![1, 2, 3])),
        ("a negative value", 4, packed([NEGATIVE])),
    ] {
        // The receiver recognizes the layout by a second field: a varint in field 3, which is `link_index`, means OTLP
        // 1.10 or later.
        let sample = |sample: &mut Message| {
            if field != 3 {
                set(sample, 3, Value::Varint(0));
            }
            set(sample, field, value.clone());
        };
        out.push((name.into(), with_sample(good, sample)));
    }
    for (name, time) in [
        ("1970", 1),
        ("1999", 946_684_799_999_999_999),
        ("an hour ahead", now_ns() + 3_600_000_000_000),
        ("2262", i64::MAX.cast_unsigned() - 10),
        ("beyond 2262", u64::MAX),
    ] {
        let change = |sample: &mut Message| set(sample, 5, packed_fixed64s(&[time]));
        out.push((format!("time {name}"), with_sample(good, change)));
    }
    out
}

/// Returns requests whose dictionary has an entry with an invalid reference, or a table without a zero entry.
fn broken_tables(good: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut out = Vec::new();
    for (name, field, value) in [
        ("location out of range", 7, Value::from(&vec![(1, packed([10_000_000]))])),
        ("function out of range", 2, Value::from(&vec![(3, Value::from(&vec![(1, 999.into())]))])),
        ("name out of range", 3, Value::from(&vec![(1, 999_999.into())])),
        ("negative name", 3, Value::from(&vec![(1, NEGATIVE.into())])),
        ("mapping out of range", 2, Value::from(&vec![(1, 77.into()), (2, 5.into())])),
    ] {
        let change = |dictionary: &mut Message| {
            dictionary.retain(|(number, _)| *number != field);
            dictionary.extend([
                (field, "".into()),
                (field, value.clone()),
                (field, value.clone()),
                (field, value.clone()),
            ]);
        };
        out.push((name.into(), with_dictionary(good, change)));
    }
    for (name, field) in [("location", 2), ("function", 3), ("string", 5), ("stack", 7)] {
        let change = |dictionary: &mut Message| {
            let at = dictionary.iter().position(|(number, _)| *number == field).unwrap();
            dictionary.remove(at);
        };
        out.push((format!("no zero entry in the {name} table"), with_dictionary(good, change)));
    }
    out
}
