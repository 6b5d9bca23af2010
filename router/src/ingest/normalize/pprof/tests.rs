//! Tests that compare pprof files with their expected normal form.

use prost::Message;
use proto::{Label, Push};

use crate::ingest::decode;
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::{DefinitionPlan, planned};
use crate::ingest::normalize::push_of;
use crate::ingest::request::Format;

const NOW: i64 = 1_790_000_000_000_000_000;

/// Normalizes a file, with definitions of all stacks.
fn decode(message: &[u8], name: Option<&str>, labels: &[Label], now_ns: i64) -> Result<Push, IngestError> {
    let format = Format::Pprof { name: name.map(str::to_owned), labels: labels.to_vec() };
    let normalize = |plan: &mut DefinitionPlan<'_>| push_of(&decode::decode(message, &format)?, now_ns, plan);
    let push = planned(None, normalize).map(|(push, _defined)| push);
    push.map_err(|error| decode::recognized(error, message, &format))
}

/// The part of `profile.proto` that these tests write.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    start: u64,
    #[prost(uint64, tag = "3")]
    limit: u64,
    #[prost(uint64, tag = "4")]
    offset: u64,
    #[prost(int64, tag = "5")]
    file: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

/// Returns a profile with one stack (`leaf`, called by an address in `/bin/x`) and these columns of values.
fn profile(types: &[(i64, i64)], values: &[i64]) -> Profile {
    let strings = ["", "samples", "count", "cpu", "nanoseconds", "inuse_space", "bytes", "leaf", "/bin/x"];
    Profile {
        sample_type: types.iter().map(|&(kind, unit)| ValueType { kind, unit }).collect(),
        sample: vec![Sample { location_id: vec![9, 4], value: values.to_vec() }],
        mapping: vec![Mapping { id: 3, start: 0x1000, limit: 0x2000, offset: 0x500, file: 8 }],
        location: vec![
            Location { id: 9, line: vec![Line { function_id: 2, line: 5 }], ..Location::default() },
            Location { id: 4, mapping_id: 3, address: 0x1234, ..Location::default() },
        ],
        function: vec![Function { id: 2, name: 7 }],
        string_table: strings.map(str::to_owned).to_vec(),
        time_nanos: NOW - 5,
        period_type: Some(ValueType { kind: 3, unit: 4 }),
        period: 10,
    }
}

fn push(profile: &Profile) -> Push {
    decode(&profile.encode_to_vec(), None, &[Label::new("service_name", "s")], NOW).unwrap()
}

fn types(push: &Push) -> Vec<(String, Vec<i64>)> {
    push.profiles.iter().map(|p| (p.labels.get("__profile_type__").to_owned(), p.samples.values.clone())).collect()
}

#[test]
fn every_column_is_a_profile_and_counts_become_cpu_time() {
    let both = push(&profile(&[(1, 2), (3, 4)], &[2, 20]));
    let want = [("process_cpu:samples:count:cpu:nanoseconds", 2), ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", 20)];
    assert_eq!(types(&both), want.map(|(name, value)| (name.to_owned(), vec![value])));
    let alone = push(&profile(&[(1, 2)], &[2]));
    assert_eq!(types(&alone), [("process_cpu:cpu:nanoseconds:cpu:nanoseconds".to_owned(), vec![20])]);
}

#[test]
fn zeros_are_dropped_except_one_of_a_gauge() {
    assert!(push(&profile(&[(3, 4)], &[0])).profiles.is_empty());
    let gauge = push(&profile(&[(5, 6)], &[0]));
    assert_eq!(types(&gauge), [("memory:inuse_space:bytes:cpu:nanoseconds".to_owned(), vec![0])]);
}

#[test]
fn an_address_becomes_an_offset_in_its_file() {
    let push = push(&profile(&[(3, 4)], &[1]));
    let stack = push.dictionary.stack(push.dictionary.pairs[push.profiles[0].samples.pairs[0] as usize].user);
    let address = match &push.dictionary.locations[stack[1] as usize] {
        proto::Location::Address { address, .. } => *address,
        proto::Location::Lines { .. } => panic!("it has no lines"),
    };
    assert_eq!(address, proto::Address::FileOffset(0x734));
    assert_eq!(push.profiles[0].samples.times_ns, [NOW - 5]);
}

// Such files exist, and Go's reader accepts them in the same way.
#[test]
fn a_location_whose_mapping_does_not_exist_is_in_no_mapping() {
    let push = push(&Profile { mapping: Vec::new(), ..profile(&[(3, 4)], &[1]) });
    let stack = push.dictionary.stack(push.dictionary.pairs[push.profiles[0].samples.pairs[0] as usize].user);
    let proto::Location::Address { mapping, address, .. } = push.dictionary.locations[stack[1] as usize] else {
        panic!("it has no lines")
    };
    assert_eq!((push.dictionary.mapping(mapping), address), ((None, ""), proto::Address::Virtual(0x1234)));
}

#[test]
fn a_profile_without_a_time_has_the_time_of_receipt() {
    let push = push(&Profile { time_nanos: 0, ..profile(&[(3, 4)], &[1]) });
    assert_eq!((push.profiles[0].samples.times_ns[0], push.has_own_times), (NOW, false));
}

#[test]
fn bodies_that_are_not_pprof_are_refused_with_a_reason() {
    let good = profile(&[(3, 4)], &[1]);
    let refused = |profile: &Profile| {
        let labels = [Label::new("service_name", "s")];
        decode(&profile.encode_to_vec(), None, &labels, NOW).unwrap_err().to_string()
    };
    assert!(refused(&Profile::default()).contains("the body is empty"));
    assert!(refused(&Profile { sample_type: Vec::new(), ..good.clone() }).contains("no sample type"));
    assert!(refused(&Profile { location: Vec::new(), ..good.clone() }).contains("location"));
    assert!(refused(&Profile { function: Vec::new(), ..good.clone() }).contains("function"));
    assert!(refused(&Profile { time_nanos: 1, ..good.clone() }).contains("2000"));
    assert!(refused(&profile(&[(3, 4)], &[1, 2])).contains("2 values"));
    assert!(refused(&profile(&[(1, 2)], &[i64::MAX])).contains("64 bits"));
    assert!(refused(&Profile { string_table: vec!["x".to_owned()], ..good }).contains("entry 0"));
}

#[test]
fn a_mapping_with_many_locations_is_read_once() {
    let mut many = profile(&[(3, 4)], &[1]);
    let location = |id| Location { id, mapping_id: 3, address: id, ..Location::default() };
    many.location = (1..=40_000).map(location).collect();
    many.sample[0].location_id = (1..=40_000).collect();
    let mut bytes = many.encode_to_vec();
    // The file has the mapping again, with 80 kB of unknown fields. Reading it for each location would take minutes.
    let mut mapping = Mapping { id: 3, file: 8, ..Mapping::default() }.encode_to_vec();
    mapping.extend([15 << 3, 1].repeat(40_000));
    prost::encoding::bytes::encode(3, &mapping, &mut bytes);
    let push = decode(&bytes, None, &[Label::new("service_name", "s")], NOW).unwrap();
    assert_eq!(push.dictionary.mapping(0).1, "/bin/x");
}
