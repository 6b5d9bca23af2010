//! Tests that compare export requests with their expected normal form.

mod stacks;
mod values;

use prost::Message;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::any_value::Value;
use proto::otlp::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::v1::Resource;
use proto::{Push, limits};

use crate::ingest::decode;
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::{DefinitionPlan, planned};
use crate::ingest::normalize::push_of;
use crate::ingest::request::Format;
use crate::ingest::unpack::otlp_json::to_protobuf;

const NOW: i64 = 1_790_000_000_000_000_000;
const TIME: u64 = 1_790_000_000_000_000_000;

/// Normalizes a protobuf request with a plan of definitions.
fn normalize(body: &[u8], now_ns: i64, plan: &mut DefinitionPlan<'_>) -> Result<Push, IngestError> {
    push_of(&decode::decode(body, &Format::OtlpProtobuf)?, now_ns, plan)
}

/// Normalizes a protobuf request, with definitions of all stacks.
fn decode(body: &[u8], now_ns: i64) -> Result<Push, IngestError> {
    planned(None, |plan| normalize(body, now_ns, plan)).map(|(push, _defined)| push)
}

fn decode_json(message: &[u8], now_ns: i64) -> Result<Push, IngestError> {
    let normalize = |plan: &mut DefinitionPlan<'_>| push_of(&decode::decode(message, &Format::OtlpJson)?, now_ns, plan);
    planned(None, normalize).map(|(push, _defined)| push)
}

/// The string table of the dictionary.
const STRINGS: [&str; 16] = [
    "",
    "samples",
    "count",
    "cpu",
    "nanoseconds",
    "leaf",
    "main",
    "profile.frame.type",
    "kernel",
    "sys_read",
    "thread.name",
    "worker",
    "libc.so",
    "process.executable.build_id.gnu",
    "abcd",
    "heap",
];

fn text(value: &str) -> Option<AnyValue> {
    Some(AnyValue { value: Some(Value::StringValue(value.to_owned())) })
}

fn attribute(key: i32, value: &str) -> KeyValueAndUnit {
    KeyValueAndUnit { key_strindex: key, value: text(value), unit_strindex: 0 }
}

/// Returns a dictionary. Locations: 1 `leaf`, 2 `main`, 3 kernel `sys_read`, 4 an address in libc. Stacks: 1 leaf-main,
/// 2 kernel-leaf-main, 3 address. Attributes: 1 frame type kernel, 2 thread worker, 3 build id.
fn dictionary() -> ProfilesDictionary {
    let lines = |function| vec![Line { function_index: function, line: 7, column: 0 }];
    let function = |name| Function { name_strindex: name, ..Function::default() };
    ProfilesDictionary {
        mapping_table: vec![
            Mapping::default(),
            Mapping { filename_strindex: 12, attribute_indices: vec![3], ..Mapping::default() },
        ],
        location_table: vec![
            Location::default(),
            Location { lines: lines(1), ..Location::default() },
            Location { lines: lines(2), ..Location::default() },
            Location { lines: lines(3), attribute_indices: vec![1], ..Location::default() },
            Location { mapping_index: 1, address: 0x1234, ..Location::default() },
        ],
        function_table: vec![Function::default(), function(5), function(6), function(9)],
        link_table: vec![Link::default(), Link { trace_id: vec![0xab; 16], span_id: vec![0xcd; 8] }],
        string_table: STRINGS.map(str::to_owned).to_vec(),
        attribute_table: vec![
            KeyValueAndUnit::default(),
            attribute(7, "kernel"),
            attribute(10, "worker"),
            attribute(13, "abcd"),
        ],
        stack_table: [vec![], vec![1, 2], vec![3, 1, 2], vec![4]]
            .map(|location_indices| Stack { location_indices })
            .to_vec(),
    }
}

fn profile(samples: Vec<Sample>) -> Profile {
    let value_type = |kind, unit| Some(ValueType { type_strindex: kind, unit_strindex: unit });
    Profile {
        sample_type: value_type(1, 2),
        period_type: value_type(3, 4),
        period: 50,
        time_unix_nano: TIME,
        samples,
        ..Profile::default()
    }
}

fn request(resource: &[(&str, &str)], profiles: Vec<Profile>) -> ExportProfilesServiceRequest {
    let attributes = resource
        .iter()
        .map(|(key, value)| KeyValue { key: (*key).to_owned(), value: text(value), ..KeyValue::default() })
        .collect();
    let scope = InstrumentationScope { name: "test".to_owned(), ..InstrumentationScope::default() };
    ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }],
        dictionary: Some(dictionary()),
    }
}

fn at(stack_index: i32, timestamps: &[u64]) -> Sample {
    Sample { stack_index, timestamps_unix_nano: timestamps.to_vec(), ..Sample::default() }
}

fn push(request: &ExportProfilesServiceRequest) -> Push {
    decode(&request.encode_to_vec(), NOW).unwrap()
}

/// Returns time, value, user frames and kernel frames of each sample of the only profile. Frames are leaf first.
fn rows(push: &Push) -> Vec<(i64, i64, Vec<String>, Vec<String>)> {
    let d = &push.dictionary;
    let names = |stack: u32| {
        let name = |&location: &u32| match &d.locations[location as usize] {
            proto::Location::Lines { lines, .. } => {
                d.strings.get(d.functions[lines[0].function as usize].name).to_owned()
            }
            proto::Location::Address { address, .. } => format!("{address:?}"),
        };
        d.stack(stack).iter().map(name).collect::<Vec<_>>()
    };
    let samples = &push.profiles[0].samples;
    (0..samples.len())
        .map(|i| {
            let pair = d.pairs[samples.pairs[i] as usize];
            (samples.times_ns[i], samples.values[i], names(pair.user), names(pair.kernel))
        })
        .collect()
}

#[test]
fn a_timestamp_without_a_value_counts_one_period() {
    let push = push(&request(&[("service.name", "api")], vec![profile(vec![at(2, &[TIME, TIME + 5])])]));
    let labels = &push.profiles[0].labels;
    assert_eq!(labels.get("service_name"), "api");
    assert_eq!(labels.get("__profile_type__"), "process_cpu:cpu:nanoseconds:cpu:nanoseconds");
    assert_eq!(labels.get("otel_scope_name"), "test");
    let user = vec!["leaf".to_owned(), "main".to_owned()];
    let kernel = vec!["sys_read".to_owned()];
    assert_eq!(rows(&push), [(NOW, 50, user.clone(), kernel.clone()), (NOW + 5, 50, user, kernel)]);
    assert!(push.has_own_times);
}

#[test]
fn values_without_timestamps_have_the_time_of_their_profile() {
    let one = Sample { stack_index: 1, values: vec![3], ..Sample::default() };
    let many = Sample { values: vec![4, 5], ..at(1, &[TIME + 1, TIME + 2]) };
    let push = push(&request(&[], vec![profile(vec![one, many])]));
    let rows: Vec<_> = rows(&push).into_iter().map(|(time, value, ..)| (time - NOW, value)).collect();
    assert_eq!(rows, [(0, 150), (1, 200), (2, 250)]);
}

#[test]
fn every_profile_of_a_resource_has_its_labels() {
    let profiles = |count| vec![profile(vec![at(1, &[TIME])]); count];
    // The profiles of each scope. A scope without profiles may be the last.
    for scopes in [&[1][..], &[3], &[2, 2], &[1, 0], &[0, 1]] {
        let mut request = request(&[("service.name", "api"), ("host.name", "h")], Vec::new());
        let of_resource = &mut request.resource_profiles[0].scope_profiles;
        let scope = of_resource.remove(0);
        of_resource.extend(scopes.iter().map(|&count| ScopeProfiles { profiles: profiles(count), ..scope.clone() }));
        let push = push(&request);
        assert_eq!(push.profiles.len(), scopes.iter().sum::<usize>());
        for proto::Profile { labels, .. } in &push.profiles {
            let names = ["service_name", "host_name", "otel_scope_name"].map(|name| labels.get(name));
            assert_eq!(names, ["api", "h", "test"], "{scopes:?}");
        }
    }
}

#[test]
fn a_service_has_the_first_name_that_is_set() {
    for (resource, want) in [
        (&[("process.executable.name", "exe"), ("k8s.job.name", "job")][..], "job"),
        (&[("process.executable.name", "exe"), ("container.name", "c")], "c"),
        (&[("process.executable.name", "exe"), ("service.name", "")], "exe"),
        (&[("host.name", "h")], "unknown_service"),
    ] {
        let push = push(&request(resource, vec![profile(vec![at(1, &[TIME])])]));
        assert_eq!(push.profiles[0].labels.get("service_name"), want, "{resource:?}");
    }
}

#[test]
fn resource_attributes_of_a_process_become_sample_attributes() {
    let resource =
        [("service.name", "api"), ("process.pid", "12"), ("process.command_line", "api --x"), ("host.name", "h")];
    let sample = Sample { attribute_indices: vec![2], link_index: 1, ..at(1, &[TIME]) };
    let push = push(&request(&resource, vec![profile(vec![sample])]));
    let labels = &push.profiles[0].labels;
    assert_eq!((labels.get("process_pid"), labels.get("process_command_line"), labels.get("host_name")), ("", "", "h"));
    let d = &push.dictionary;
    let set = d.attribute_sets.get(push.profiles[0].samples.attribute_sets[0]);
    let attributes: Vec<_> = set.map(|a| (d.strings.get(a.key).to_owned(), a.value.render(&d.strings))).collect();
    let want = [
        ("process.command_line", "api --x".to_owned()),
        ("process.pid", "12".to_owned()),
        ("span_id", "cd".repeat(8)),
        ("thread.name", "worker".to_owned()),
        ("trace_id", "ab".repeat(16)),
    ];
    assert_eq!(attributes, want.map(|(key, value)| (key.to_owned(), value)));
}

#[test]
fn an_address_keeps_its_build_id_and_file() {
    let push = push(&request(&[], vec![profile(vec![at(3, &[TIME])])]));
    assert_eq!(rows(&push)[0].2, ["Virtual(4660)"]);
    let (build_id, file) = push.dictionary.mapping(0);
    assert_eq!(build_id.unwrap().to_string(), "gnu:abcd");
    assert_eq!(file, "libc.so");
}

#[test]
fn a_bad_profile_is_refused_and_the_others_are_kept() {
    let bad = [
        at(99, &[TIME]),
        at(-1, &[TIME]),
        at(1, &[1]),
        at(1, &[u64::MAX]),
        at(1, &[TIME + 3600 * 1_000_000_000]),
        Sample { values: vec![1, 2], ..at(1, &[TIME]) },
        // The link decides the layout: without it, 44 could be a value of layout 1.8.
        Sample { attribute_indices: vec![44], link_index: 1, ..at(1, &[TIME]) },
        Sample { values: vec![i64::MAX], ..at(1, &[TIME]) },
    ];
    for sample in bad {
        let good = profile(vec![at(1, &[TIME])]);
        let push = push(&request(&[], vec![profile(vec![sample.clone()]), good]));
        assert_eq!((push.rejected, push.profiles.len(), push.warnings.len()), (1, 1, 1), "{sample:?}");
        let alone = request(&[], vec![profile(vec![sample.clone()])]).encode_to_vec();
        assert!(matches!(decode(&alone, NOW), Err(IngestError::NothingAccepted { rejected: 1, .. })), "{sample:?}");
    }
}

#[test]
fn a_dictionary_whose_entry_0_is_not_empty_is_refused() {
    let mut bad = request(&[], vec![profile(vec![at(1, &[TIME])])]);
    bad.dictionary.as_mut().unwrap().string_table[0] = "x".to_owned();
    let error = decode(&bad.encode_to_vec(), NOW).unwrap_err().to_string();
    assert!(error.contains("entry 0 of string_table"), "{error}");
}

#[test]
fn a_stack_that_is_too_deep_keeps_its_leaf_side_and_a_marker() {
    let mut deep = request(&[], vec![profile(vec![at(1, &[TIME])])]);
    let mut locations = vec![1; 100_000];
    locations[0] = 2;
    deep.dictionary.as_mut().unwrap().stack_table[1].location_indices = locations;
    let push = push(&deep);
    let (_, value, user, _) = &rows(&push)[0];
    assert_eq!((user.len(), *value), (limits::STACK_DEPTH_MAX, 50));
    assert_eq!(
        (user[0].as_str(), user[1].as_str(), user.last().unwrap().as_str()),
        ("main", "leaf", "[truncated stack]")
    );
    assert_eq!(push.warnings.len(), 1);
}

/// Encodes the request in layout 1.8. In its `Sample`, field 2 has the values, field 3 the attribute indices, and field
/// 4 the link index.
fn in_layout_1_8(request: &ExportProfilesServiceRequest) -> Vec<u8> {
    #[derive(Clone, PartialEq, Message)]
    struct OldSample {
        #[prost(int32, tag = "1")]
        stack_index: i32,
        #[prost(int64, repeated, tag = "2")]
        values: Vec<i64>,
        #[prost(int32, repeated, tag = "3")]
        attribute_indices: Vec<i32>,
        #[prost(int32, tag = "4")]
        link_index: i32,
        #[prost(fixed64, repeated, tag = "5")]
        timestamps_unix_nano: Vec<u64>,
    }
    let mut profile = request.resource_profiles[0].scope_profiles[0].profiles[0].clone();
    let samples = std::mem::take(&mut profile.samples);
    let mut bytes = profile.encode_to_vec();
    for sample in samples {
        let Sample { stack_index, values, attribute_indices, link_index, timestamps_unix_nano } = sample;
        let old = OldSample { stack_index, values, attribute_indices, link_index, timestamps_unix_nano };
        prost::encoding::message::encode(2, &old, &mut bytes);
    }
    let nested = |tag, inner: &Vec<u8>| {
        let mut out = Vec::new();
        prost::encoding::bytes::encode(tag, inner, &mut out);
        out
    };
    let scope = nested(2, &bytes);
    let mut resource = Vec::new();
    let attributes = request.resource_profiles[0].resource.clone().unwrap_or_default();
    prost::encoding::message::encode(1, &attributes, &mut resource);
    resource.extend(nested(2, &scope));
    let mut out = nested(1, &resource);
    prost::encoding::message::encode(2, &dictionary(), &mut out);
    out
}

#[test]
fn layout_1_8_and_json_give_the_same_push() {
    let sample = Sample { values: vec![4, 5], attribute_indices: vec![2], ..at(2, &[TIME + 1, TIME + 2]) };
    let mut new = request(&[("service.name", "api")], vec![profile(vec![sample])]);
    new.resource_profiles[0].scope_profiles[0].scope = None;
    let want = push(&new);
    let old = decode(&in_layout_1_8(&new), NOW).unwrap();
    let json = serde_json::json!({
        "resourceProfiles": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "api"}}]},
            "scopeProfiles": [{"profiles": [{
                "sampleType": {"typeStrindex": 1, "unitStrindex": 2},
                "periodType": {"typeStrindex": 3, "unitStrindex": 4},
                "period": "50", "timeUnixNano": TIME.to_string(), "unknownField": 1,
                "samples": [{"stackIndex": 2, "values": ["4", 5], "attributeIndices": [2],
                             "timestampsUnixNano": [(TIME + 1).to_string(), (TIME + 2).to_string()]}]}]}]}],
        "dictionary": {
            "mappingTable": [{}], "linkTable": [{}], "stringTable": STRINGS,
            "functionTable": [{}, {"nameStrindex": 5}, {"nameStrindex": 6}, {"nameStrindex": 9}],
            "locationTable": [{}, {"lines": [{"functionIndex": 1, "line": "7"}]},
                {"lines": [{"functionIndex": 2, "line": 7}]},
                              {"lines": [{"functionIndex": 3, "line": 7}], "attributeIndices": [1]}],
            "attributeTable": [{}, {"keyStrindex": 7, "value": {"stringValue": "kernel"}},
                               {"keyStrindex": 10, "value": {"stringValue": "worker"}}],
            "stackTable": [{}, {"locationIndices": [1, 2]}, {"locationIndices": [3, 1, 2]}]}});
    let json = decode_json(&to_protobuf(json.to_string().as_bytes()).unwrap(), NOW).unwrap();
    for other in [old, json] {
        assert_eq!(rows(&other), rows(&want));
        assert_eq!(other.profiles[0].labels, want.profiles[0].labels);
    }
}

#[test]
fn json_always_has_the_newest_layout() {
    let json = serde_json::json!({"resourceProfiles": [{"scopeProfiles": [{"profiles": [{"samples": [
        {"attributeIndices": [1_000_000], "timestampsUnixNano": [TIME.to_string()]}]}]}]}]});
    let error = decode_json(&to_protobuf(json.to_string().as_bytes()).unwrap(), NOW).unwrap_err().to_string();
    assert!(error.contains("entry 1000000 of attribute_table"), "{error}");
}

#[test]
fn a_request_with_too_many_profiles_is_refused_before_any_is_read() {
    let nested = |tag: u32, inner: &[u8]| {
        let mut out = Vec::new();
        prost::encoding::bytes::encode(tag, &inner.to_vec(), &mut out);
        out
    };
    let count = limits::PUSH_PROFILES_MAX;
    let profiles = nested(1, &nested(2, &[2 << 3 | 2, 0].repeat(count)));
    for many in [profiles, [1 << 3 | 2, 0].repeat(count + 1), nested(1, &[2 << 3 | 2, 0].repeat(count))] {
        let error = decode(&many, NOW).unwrap_err().to_string();
        assert!(error.contains("more than 100000 resources, scopes and profiles"), "{error}");
    }
    assert!(decode(&[1 << 3 | 2, 0].repeat(count), NOW).is_ok());
}

#[test]
fn entries_with_many_references_are_read_once() {
    // If each reference read its entry again, this would take minutes: 2 GB would be read for each kind of entry.
    let references = 30_000;
    let big = "x".repeat(60_000);
    let mut request = request(&[], vec![profile(vec![at(1, &[TIME]); references]); 2]);
    let dictionary = request.dictionary.as_mut().unwrap();
    dictionary.string_table.push(big.clone());
    let big_string = dictionary.string_table.len() as i32 - 1;
    let big_kind = Some(ValueType { type_strindex: big_string, unit_strindex: big_string });
    let list = ArrayValue { values: vec![AnyValue { value: Some(Value::IntValue(1)) }; 20_000] };
    let structure = Some(AnyValue { value: Some(Value::ArrayValue(list)) });
    dictionary.attribute_table.push(KeyValueAndUnit { key_strindex: 10, value: structure, unit_strindex: 0 });
    let structure = dictionary.attribute_table.len() as i32 - 1;
    // The last location of this stack does not exist.
    let broken = [vec![1; 60_000], vec![999_999]].concat();
    dictionary.stack_table.push(Stack { location_indices: broken });
    let broken = dictionary.stack_table.len() as i32 - 1;
    let indices = vec![structure; 60_000];
    dictionary.mapping_table.push(Mapping { attribute_indices: indices, ..Mapping::default() });
    let mapping = dictionary.mapping_table.len() as i32 - 1;
    let first_location = dictionary.location_table.len() as i32;
    let location = |address| Location { mapping_index: mapping, address, ..Location::default() };
    dictionary.location_table.extend((0..references as u64).map(location));
    let locations = (first_location..first_location + references as i32).collect();
    dictionary.stack_table.push(Stack { location_indices: locations });
    let many_locations = dictionary.stack_table.len() as i32 - 1;
    let profiles = &mut request.resource_profiles[0].scope_profiles[0].profiles;
    profiles[0].samples.iter_mut().for_each(|sample| sample.attribute_indices = vec![structure]);
    profiles[1].samples = vec![at(many_locations, &[TIME])];
    let bad = |sample_type, stack| Profile { sample_type, ..profile(vec![at(stack, &[TIME])]) };
    profiles.extend(vec![bad(big_kind, 1); references]);
    profiles.extend(vec![bad(None, broken); references]);
    let push = push(&request);
    assert_eq!((push.profiles.len(), push.rejected), (2, 2 * references as u64));
    assert_eq!(push.profiles[0].samples.len(), references);
}

#[test]
fn an_array_that_repeats_a_long_string_is_truncated() {
    let mut long = request(&[], vec![profile(vec![Sample { attribute_indices: vec![4], ..at(1, &[TIME]) }])]);
    let dictionary = long.dictionary.as_mut().unwrap();
    dictionary.string_table.push("x".repeat(30_000));
    let reference = Some(Value::StringValueStrindex(dictionary.string_table.len() as i32 - 1));
    let list = ArrayValue { values: vec![AnyValue { value: reference }; 100_000] };
    let value = Some(AnyValue { value: Some(Value::ArrayValue(list)) });
    dictionary.attribute_table.push(KeyValueAndUnit { key_strindex: 10, value, unit_strindex: 0 });
    let push = push(&long);
    let d = &push.dictionary;
    let mut set = d.attribute_sets.get(push.profiles[0].samples.attribute_sets[0]);
    assert_eq!(set.next().unwrap().value.render(&d.strings).len(), limits::STRING_BYTES_MAX);
    assert_eq!(push.warnings.len(), 1, "{:?}", push.warnings);
}

#[test]
fn labels_copied_to_every_profile_are_limited() {
    let value = "x".repeat(2000);
    let names: Vec<String> = (0..60).map(|i| format!("label{i}")).collect();
    let resource: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let push_of = |resource: &[_], profile: Profile, count| push(&request(resource, vec![profile; count]));
    let copies = push_of(&resource, profile(vec![at(1, &[TIME])]), 1000);
    let kept = copies.profiles.len();
    assert!((400..600).contains(&kept) && copies.rejected as usize == 1000 - kept, "{kept}");
    assert!(copies.warnings[0].contains("bytes of labels"), "{:?}", copies.warnings);
    let mut many = profile(vec![at(1, &[TIME])]);
    many.attribute_indices = vec![2; limits::SAMPLE_ATTRIBUTES_MAX + 1];
    let alone = decode(&request(&[], vec![many]).encode_to_vec(), NOW).unwrap_err().to_string();
    assert!(alone.contains("attributes of one sample"), "{alone}");
}

#[test]
fn broken_requests_are_decoded_or_refused_without_a_panic() {
    let sample = Sample { attribute_indices: vec![2], link_index: 1, ..at(2, &[TIME]) };
    let whole = request(&[("service.name", "api")], vec![profile(vec![sample])]).encode_to_vec();
    for length in 0..whole.len() {
        // Only a panic would be a fault.
        let _outcome = decode(&whole[..length], NOW);
    }
    for i in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = whole.clone();
            bad[i] ^= flip;
            let _outcome = decode(&bad, NOW);
        }
    }
}
