//! Requests of an interval: content, splitting, and conformance to OTLP.

use ebpf::{Link, Sample as Record};
use proto::otlp::profiles::v1development::{self, Function, ProfilesDictionary};

use super::*;
use crate::names::locator::Locator;
use crate::process::test_record::TestRecord;
use crate::sampling::clock::WallClock;
use testkit::conformance;

struct Fixture {
    locator: Locator,
    aggregate: Aggregate,
}

impl Fixture {
    fn new() -> Self {
        let mut locator = Locator::new(std::sync::Arc::default(), crate::runtimes::Runtimes::default());
        locator.tables.files.number_own(address());
        Self { locator, aggregate: Aggregate::default() }
    }

    fn add(&mut self, record: &TestRecord<'_>) {
        let bytes = record.bytes();
        self.aggregate.add(&Record::read(&bytes).unwrap(), &mut self.locator);
    }

    /// Encodes the samples as requests, and checks each request against the rules of OTLP.
    fn encode(&mut self) -> Vec<ExportProfilesServiceRequest> {
        let interval = Interval {
            start_ktime_ns: 1_000,
            end_ktime_ns: 5_000,
            clock: WallClock::measure(),
            period_ns: 50_000_000,
            host_name: "host".to_owned(),
        };
        let tables = &self.locator.tables;
        let encoded = encode(&mut self.aggregate, &interval, &tables.files, &tables.locations);
        let decode = |request: &EncodedRequest| {
            assert!(request.bytes.len() < REQUEST_BYTES_MAX, "{}", request.bytes.len());
            let decoded = ExportProfilesServiceRequest::decode(&request.bytes[..]).unwrap();
            assert_eq!(conformance::violations(&decoded), [""; 0]);
            assert_eq!(weight(&decoded), request.samples());
            decoded
        };
        encoded.iter().map(decode).collect()
    }
}

fn profiles(request: &ExportProfilesServiceRequest) -> impl Iterator<Item = &Profile> {
    request.resource_profiles.iter().flat_map(|it| &it.scope_profiles).flat_map(|it| &it.profiles)
}

fn weight(request: &ExportProfilesServiceRequest) -> u64 {
    profiles(request).flat_map(|it| &it.samples).map(|it| it.timestamps_unix_nano.len() as u64).sum()
}

/// Returns the value of an attribute by its key.
fn attribute(dictionary: &ProfilesDictionary, indices: &[i32], key: &str) -> Option<Value> {
    indices.iter().find_map(|index| {
        let attribute = &dictionary.attribute_table[*index as usize];
        (dictionary.string_table[attribute.key_strindex as usize] == key).then(|| attribute.value.clone()?.value)?
    })
}

/// Returns an encoded frame at an address in the code of this test, whose file has number 1.
fn code() -> u64 {
    crate::process::file::table::FileTable::default().number_own(address())
}

fn address() -> u64 {
    weight as *const () as u64
}

#[test]
fn an_address_is_exported_with_the_build_id_of_its_file() {
    let mut fixture = Fixture::new();
    fixture.add(&TestRecord { user: &[code()], ..TestRecord::default() });
    let request = &fixture.encode()[0];
    let dictionary = request.dictionary.as_ref().unwrap();
    let location = &dictionary.location_table[1];
    let mapping = &dictionary.mapping_table[1];
    let executable = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let image = host_files::elf::ElfImage::read(&executable).unwrap();
    // The load address of the file, from the mappings of this test.
    let maps = crate::process::maps::Maps::of_process(std::process::id()).unwrap();
    let mapped = maps.find(address()).unwrap();
    assert_eq!(Some(location.address), image.virtual_address(address() - mapped.start + mapped.offset));
    assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
    assert_eq!(
        dictionary.string_table[mapping.filename_strindex as usize],
        std::env::current_exe().unwrap().to_str().unwrap()
    );
    let build_id = attribute(dictionary, &mapping.attribute_indices, "process.executable.build_id.gnu");
    assert_eq!(build_id, Some(Value::StringValue(proto::build_id::to_hex(&image.gnu_build_id.unwrap()))));
    assert_eq!(
        attribute(dictionary, &location.attribute_indices, "profile.frame.type"),
        Some(Value::StringValue("native".to_owned()))
    );
}

#[test]
fn samples_of_one_identity_are_one_sample_with_all_times() {
    let mut fixture = Fixture::new();
    let user = [code()];
    for (tid, ktime_ns) in [(7, 1_000), (7, 4_999), (8, 2_000), (7, 3_000)] {
        fixture.add(&TestRecord { tid, ktime_ns, user: &user, ..TestRecord::default() });
    }
    let requests = fixture.encode();
    let profile = profiles(&requests[0]).next().unwrap();
    let dictionary = requests[0].dictionary.as_ref().unwrap();
    let found: Vec<_> = profile
        .samples
        .iter()
        .map(|sample| {
            let tid = attribute(dictionary, &sample.attribute_indices, "thread.id").unwrap();
            let times: Vec<_> = sample.timestamps_unix_nano.iter().map(|time| time - profile.time_unix_nano).collect();
            (tid, times)
        })
        .collect();
    assert_eq!(found, [(Value::IntValue(7), vec![0, 2_000, 3_999]), (Value::IntValue(8), vec![1_000])]);
    assert_eq!((profile.period, profile.duration_nano), (50_000_000, 4_000));
}

fn span(trace: u64, span: u8) -> Option<Link> {
    let [a, b, c, d, e, f, g, h] = trace.to_be_bytes();
    Some(Link { trace_id: [1, 1, 1, 1, 1, 1, 1, 1, a, b, c, d, e, f, g, h], span_id: [span; 8] })
}

#[test]
fn samples_of_different_spans_are_apart_and_refer_to_their_links() {
    let mut fixture = Fixture::new();
    let user = [code()];
    let links = [span(7, 1), None, span(7, 2), span(7, 1), span(8, 1), None];
    for (link, ktime_ns) in links.into_iter().zip(1_000..) {
        fixture.add(&TestRecord { ktime_ns, link, user: &user, ..TestRecord::default() });
    }
    let requests = fixture.encode();
    let table = &requests[0].dictionary.as_ref().unwrap().link_table;
    assert_eq!(table[0], v1development::Link { trace_id: vec![0; 16], span_id: vec![0; 8] });
    let profile = profiles(&requests[0]).next().unwrap();
    let start = profile.time_unix_nano;
    let mut found: Vec<_> = profile
        .samples
        .iter()
        .map(|sample| {
            let link = &table[sample.link_index as usize];
            let times: Vec<_> = sample.timestamps_unix_nano.iter().map(|time| time - start).collect();
            (times, link.trace_id[15], link.span_id.clone())
        })
        .collect();
    found.sort_unstable();
    let wanted =
        [(vec![0, 3], 7, vec![1; 8]), (vec![1, 5], 0, vec![0; 8]), (vec![2], 7, vec![2; 8]), (vec![4], 8, vec![1; 8])];
    assert_eq!((found.as_slice(), table.len()), (wanted.as_slice(), 4));
}

#[test]
fn an_interval_ends_early_at_the_limit_of_links_and_all_fit_the_requests() {
    let mut fixture = Fixture::new();
    let user = [code()];
    let mut added = 0;
    while !fixture.aggregate.is_full() {
        fixture.add(&TestRecord { link: span(added, 1), user: &user, ..TestRecord::default() });
        added += 1;
    }
    assert_eq!(added, 1 << 16);
    let requests = fixture.encode();
    let links = |request: &ExportProfilesServiceRequest| request.dictionary.as_ref().unwrap().link_table.len() as u64;
    assert!(1 < requests.len(), "{}", requests.len());
    assert_eq!(requests.iter().map(|request| links(request) - 1).sum::<u64>(), added);
}

#[test]
fn stacks_with_equal_locations_are_one_stack() {
    let mut fixture = Fixture::new();
    // Two unmapped leaves are the same marker.
    fixture.add(&TestRecord { user: &[0x10, code()], ..TestRecord::default() });
    fixture.add(&TestRecord { user: &[0x20, code()], ..TestRecord::default() });
    let requests = fixture.encode();
    assert_eq!(requests[0].dictionary.as_ref().unwrap().stack_table.len(), 2);
    assert_eq!(profiles(&requests[0]).next().unwrap().samples.len(), 1);
}

#[test]
fn a_time_outside_the_interval_extends_the_profile() {
    let mut fixture = Fixture::new();
    for ktime_ns in [900, 5_000, 5_100] {
        fixture.add(&TestRecord { ktime_ns, user: &[code()], ..TestRecord::default() });
    }
    let requests = fixture.encode();
    assert_eq!(profiles(&requests[0]).next().unwrap().duration_nano, 5_100 + 1 - 900);
}

#[test]
fn every_process_has_its_own_profile_and_its_own_resource() {
    let mut fixture = Fixture::new();
    fixture.add(&TestRecord { user: &[code()], ..TestRecord::default() });
    fixture.add(&TestRecord { pid: u32::MAX, comm: "gone", user: &[1], ..TestRecord::default() });
    let requests = fixture.encode();
    let describe = |profiles: &ResourceProfiles| {
        let attributes = &profiles.resource.as_ref().unwrap().attributes;
        let find = |key: &str| {
            attributes
                .iter()
                .find(|it| it.key == key)
                .and_then(|it| it.value.clone()?.value)
                .map(|it| format!("{it:?}"))
        };
        [find("process.pid"), find("process.executable.name"), find("host.name")].map(Option::unwrap_or_default)
    };
    let found: Vec<_> = requests[0].resource_profiles.iter().map(describe).collect();
    assert_eq!(found[0][0], format!("IntValue({})", std::process::id()));
    assert_eq!(
        found[1],
        [format!("IntValue({})", u32::MAX), "StringValue(\"gone\")".to_owned(), "StringValue(\"host\")".to_owned()]
    );
}

#[test]
fn a_large_interval_is_split_without_losing_samples() {
    let mut fixture = Fixture::new();
    // Each stack has 1,000 distinct addresses, and no two stacks are equal. The stacks fill several requests.
    let mut added = 0;
    for seed in 0..800u64 {
        let code = code();
        let user: Vec<_> = (0..1_000).map(|depth| code + (seed * 7 + depth * 3) % 4_000).collect();
        for ktime_ns in [2_000, 3_000] {
            fixture.add(&TestRecord { ktime_ns, user: &user, comm: &format!("t{seed}"), ..TestRecord::default() });
            added += 1;
        }
    }
    assert!(fixture.aggregate.is_full());
    let requests = fixture.encode();
    assert!(1 < requests.len(), "{}", requests.len());
    assert_eq!(requests.iter().map(weight).sum::<u64>(), added);
}

#[test]
fn the_deepest_stack_of_the_longest_names_fits_a_request() {
    let mut fixture = Fixture::new();
    for index in 0..30_000u64 {
        let name = format!("{index:0>512}");
        fixture.locator.tables.locations.insert_named(&name, None, crate::names::location::FrameType::Jvm);
    }
    // Each stack has 1,151 of these names, the largest number of frames.
    let ids: Vec<_> = (0..30_000).map(crate::names::location::LocationId).collect();
    for stack in ids.chunks(1_151) {
        fixture.aggregate.add_located(stack);
    }
    let requests = fixture.encode();
    assert!(3 < requests.len(), "{}", requests.len());
}

#[test]
fn the_conformance_check_finds_every_violation() {
    let mut fixture = Fixture::new();
    fixture.add(&TestRecord { user: &[code(), code() + 4], ..TestRecord::default() });
    fixture.add(&TestRecord { tid: 8, user: &[code()], ..TestRecord::default() });
    let good = fixture.encode().remove(0);
    type Change = fn(&mut ExportProfilesServiceRequest, fn(&mut ExportProfilesServiceRequest) -> &mut Profile);
    let changes: [(&str, Change); 14] = [
        ("no dictionary", |it, _| it.dictionary = None),
        ("mapping_table does not begin", |it, _| drop(it.dictionary.as_mut().unwrap().mapping_table.remove(0))),
        ("string_table does not begin", |it, _| it.dictionary.as_mut().unwrap().string_table[0] = "x".to_owned()),
        ("string twice", |it, _| it.dictionary.as_mut().unwrap().string_table.push("samples".to_owned())),
        ("orphans in string_table", |it, _| it.dictionary.as_mut().unwrap().string_table.push("orphan".to_owned())),
        ("orphans in function_table", |it, _| {
            it.dictionary.as_mut().unwrap().function_table.push(Function { name_strindex: 1, ..Function::default() });
        }),
        ("location 99 of", |it, _| it.dictionary.as_mut().unwrap().stack_table[1].location_indices[0] = 99),
        ("unset location", |it, _| it.dictionary.as_mut().unwrap().stack_table[1].location_indices[0] = 0),
        ("mapping from", |it, _| it.dictionary.as_mut().unwrap().mapping_table[1].memory_limit = 1),
        ("attribute key twice", |it, profile| {
            let sample = &mut profile(it).samples[0];
            sample.attribute_indices.push(sample.attribute_indices[0]);
        }),
        ("sample identity twice", |it, profile| {
            let sample = profile(it).samples[0].clone();
            profile(it).samples.push(sample);
        }),
        ("outside", |it, profile| profile(it).samples[0].timestamps_unix_nano.push(5)),
        ("of 2 shapes", |it, profile| {
            profile(it).samples[0].timestamps_unix_nano.clear();
            profile(it).samples[0].values.push(1);
        }),
        ("stack -1 of", |it, profile| profile(it).samples[0].stack_index = -1),
    ];
    for (expected, change) in changes {
        let mut bad = good.clone();
        change(&mut bad, |it| &mut it.resource_profiles[0].scope_profiles[0].profiles[0]);
        let found = conformance::violations(&bad);
        assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
    }
}

#[test]
fn go_code_is_exported_with_its_address_and_its_calls() {
    use crate::names::location::{Call, FrameType};
    use crate::process::file::MappedFile;
    let mut files = crate::process::file::table::FileTable::default();
    let mut locations = LocationTable::default();
    let file = files.insert(MappedFile::pseudo("program", Some("ab".into())));
    let call = |function: &str, line, start_line| Call {
        function: function.to_owned(),
        file: "main.go".to_owned(),
        line,
        start_line,
    };
    let calls = [call("main.inner", 7, 5), call("main.outer", 20, 18)];
    let id = locations.insert_calls(Some((file, 0x40_1000)), &calls, FrameType::Go);
    let mut builder = DictionaryBuilder::new(&files, &locations);
    assert_eq!(builder.location(id), 1);
    let dictionary = builder.finish();
    let location = &dictionary.location_table[1];
    let text = |index: i32| &*dictionary.string_table[index as usize];
    assert_eq!((location.address, location.mapping_index), (0x40_1000, 1));
    let lines = location.lines.iter().map(|line| {
        let function = &dictionary.function_table[line.function_index as usize];
        (text(function.name_strindex), text(function.filename_strindex), function.start_line, line.line)
    });
    assert_eq!(lines.collect::<Vec<_>>(), [("main.inner", "main.go", 5, 7), ("main.outer", "main.go", 18, 20)]);
    let frame_type = attribute(&dictionary, &location.attribute_indices, "profile.frame.type");
    assert_eq!(frame_type, Some(Value::StringValue("go".to_owned())));
}
