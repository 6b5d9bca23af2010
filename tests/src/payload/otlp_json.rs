//! Encodes OTLP export requests of layout 1.11 as JSON.

use serde_json::{Map, Value as Json, json};

use crate::payload::wire::{Message, Value, decode, fixed64s, numbers};

/// JSON form of a field.
enum Kind {
    Text,
    Texts,
    /// A 32-bit number, which JSON writes as a number.
    Number,
    Numbers,
    /// A 64-bit number, which JSON writes as text.
    Long,
    Longs,
    /// A fixed64, which JSON writes as text.
    Time,
    Times,
    /// Bytes, which JSON writes in hexadecimal.
    Id,
    Inner(&'static [Field]),
    Inners(&'static [Field]),
}

use Kind::{Id, Inner, Inners, Long, Longs, Number, Numbers, Text, Texts, Time, Times};

struct Field(u32, &'static str, Kind);

const VALUE_TYPE: &[Field] = &[Field(1, "typeStrindex", Number), Field(2, "unitStrindex", Number)];
const ANY_VALUE: &[Field] = &[Field(1, "stringValue", Text)];
const KEY_VALUE: &[Field] = &[Field(1, "key", Text), Field(2, "value", Inner(ANY_VALUE))];
const RESOURCE: &[Field] = &[Field(1, "attributes", Inners(KEY_VALUE))];
const SAMPLE: &[Field] = &[
    Field(1, "stackIndex", Number),
    Field(2, "attributeIndices", Numbers),
    Field(3, "linkIndex", Number),
    Field(4, "values", Longs),
    Field(5, "timestampsUnixNano", Times),
];
const PROFILE: &[Field] = &[
    Field(1, "sampleType", Inner(VALUE_TYPE)),
    Field(2, "samples", Inners(SAMPLE)),
    Field(3, "timeUnixNano", Time),
    Field(4, "durationNano", Long),
    Field(5, "periodType", Inner(VALUE_TYPE)),
    Field(6, "period", Long),
    Field(7, "profileId", Id),
    Field(11, "attributeIndices", Numbers),
];
const SCOPE_PROFILES: &[Field] = &[Field(2, "profiles", Inners(PROFILE))];
const RESOURCE_PROFILES: &[Field] =
    &[Field(1, "resource", Inner(RESOURCE)), Field(2, "scopeProfiles", Inners(SCOPE_PROFILES))];
const MAPPING: &[Field] = &[Field(4, "filenameStrindex", Number), Field(5, "attributeIndices", Numbers)];
const LINE: &[Field] = &[Field(1, "functionIndex", Number), Field(2, "line", Long)];
const LOCATION: &[Field] = &[
    Field(1, "mappingIndex", Number),
    Field(2, "address", Long),
    Field(3, "lines", Inners(LINE)),
    Field(4, "attributeIndices", Numbers),
];
const FUNCTION: &[Field] = &[Field(1, "nameStrindex", Number)];
const LINK: &[Field] = &[];
const ATTRIBUTE: &[Field] =
    &[Field(1, "keyStrindex", Number), Field(2, "value", Inner(ANY_VALUE)), Field(3, "unitStrindex", Number)];
const STACK: &[Field] = &[Field(1, "locationIndices", Numbers)];
const DICTIONARY: &[Field] = &[
    Field(1, "mappingTable", Inners(MAPPING)),
    Field(2, "locationTable", Inners(LOCATION)),
    Field(3, "functionTable", Inners(FUNCTION)),
    Field(4, "linkTable", Inners(LINK)),
    Field(5, "stringTable", Texts),
    Field(6, "attributeTable", Inners(ATTRIBUTE)),
    Field(7, "stackTable", Inners(STACK)),
];
const REQUEST: &[Field] =
    &[Field(1, "resourceProfiles", Inners(RESOURCE_PROFILES)), Field(2, "dictionary", Inner(DICTIONARY))];

/// Encodes the request as JSON.
#[must_use]
pub fn of_request(request: &Message) -> Vec<u8> {
    object(request, REQUEST).to_string().into_bytes()
}

fn object(message: &Message, fields: &[Field]) -> Json {
    let is_known = |number: u32| fields.iter().any(|field| field.0 == number);
    let unknown = message.iter().find(|(number, _)| !is_known(*number));
    assert!(unknown.is_none(), "a field has no name here: {unknown:?}");
    let mut out = Map::new();
    for Field(number, name, kind) in fields {
        let values: Vec<&Value> = message.iter().filter(|(field, _)| field == number).map(|(_, value)| value).collect();
        if values.is_empty() {
            continue;
        }
        let longs = |values: Vec<u64>| values.into_iter().map(|value| value.cast_signed().to_string()).collect();
        let value = match kind {
            Text => json!(text(values[0])),
            Texts => values.iter().map(|value| text(value)).collect(),
            Number => json!(numbers(message, *number)[0]),
            Numbers => json!(numbers(message, *number)),
            Long => json!(numbers(message, *number)[0].cast_signed().to_string()),
            Longs => longs(numbers(message, *number)),
            Time => json!(numbers(message, *number)[0].to_string()),
            Times => longs(fixed64s(message, *number)),
            Id => bytes(values[0]).iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
            Inner(fields) => object(&decode(bytes(values[0])), fields),
            Inners(fields) => values.iter().map(|value| object(&decode(bytes(value)), fields)).collect(),
        };
        out.insert((*name).to_owned(), value);
    }
    Json::Object(out)
}

fn bytes(value: &Value) -> &[u8] {
    match value {
        Value::Bytes(bytes) => bytes,
        other => panic!("{other:?} is no message"),
    }
}

fn text(value: &Value) -> String {
    String::from_utf8(bytes(value).to_vec()).unwrap()
}
