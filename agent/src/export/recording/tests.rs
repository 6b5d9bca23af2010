//! Recordings: merged intervals, the limit, and the three formats.

use std::io::Read as _;

use proto::otlp::common::v1::KeyValue;
use proto::otlp::profiles::v1development::{
    Function, Line, Location, Mapping, ProfilesDictionary, Sample, ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::v1::Resource;
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Config, Reason};

use super::*;
use crate::export::request;
use crate::names::locator::Locator;
use crate::process::test_record::TestRecord;
use crate::sampling::aggregate::Aggregate;
use crate::sampling::clock::WallClock;
use crate::sampling::interval::Interval;
use testkit::conformance;

/// Returns the requests of an interval with these records.
fn interval(
    locator: &mut Locator,
    start_ktime_ns: u64,
    records: &[TestRecord<'_>],
) -> Vec<ExportProfilesServiceRequest> {
    let mut aggregate = Aggregate::default();
    for record in records {
        aggregate.add(&ebpf::Sample::read(&record.bytes()).unwrap(), locator);
    }
    let interval = Interval {
        start_ktime_ns,
        end_ktime_ns: start_ktime_ns + 5_000,
        clock: WallClock::measure(),
        period_ns: 50_000_000,
        host_name: "host".to_owned(),
    };
    let tables = &locator.tables;
    let encoded = request::encode(&mut aggregate, &interval, &tables.files, &tables.locations);
    encoded.iter().map(|request| ExportProfilesServiceRequest::decode(&request.bytes[..]).unwrap()).collect()
}

fn recording(request: ExportProfilesServiceRequest, off_cpu: bool) -> Recording {
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    let duration = Duration::from_secs(2);
    Recording { request, started, duration, off_cpu, is_full: false, fault: None }
}

/// Returns an encoded frame at an address in the code of this test program. The file of the program has number 1.
fn code() -> u64 {
    crate::process::file::table::FileTable::default().number_own(address())
}

fn address() -> u64 {
    interval as *const () as u64
}

/// Returns a locator that knows file number 1.
fn locator() -> Locator {
    let mut locator = Locator::new(Arc::default(), crate::runtimes::Runtimes::default());
    locator.tables.files.number_own(address());
    locator
}

#[test]
fn merged_intervals_conform_to_otlp_and_have_every_sample() {
    let mut locator = locator();
    let mut merge = Merge::new(RECORDING_BYTES_MAX);
    let known = [code()];
    let other = [code() + 4, code()];
    for start_ktime_ns in [1_000, 6_000, 11_000] {
        // Each interval has a new stack, thread and process, before known ones.
        let new = [code() + start_ktime_ns / 1_000];
        let of_new = TestRecord { ktime_ns: start_ktime_ns, tid: 8, user: &new, ..TestRecord::default() };
        let gone = TestRecord { pid: u32::MAX, comm: "gone", ktime_ns: start_ktime_ns, ..TestRecord::default() };
        let of = |ktime_ns, user| TestRecord { ktime_ns, user, ..TestRecord::default() };
        let known = [of(start_ktime_ns + 1, &known), of(start_ktime_ns + 4_999, &known), of(start_ktime_ns, &other)];
        let records: Vec<_> = [of_new, gone].into_iter().chain(known).collect();
        interval(&mut locator, start_ktime_ns, &records).into_iter().for_each(|request| merge.add(request));
    }
    let recording = recording(merge.finish(), false);
    assert_eq!(conformance::violations(&recording.request), [""; 0]);
    assert_eq!((recording.samples(), recording.processes()), (15, 2));
    let times = |profile: &Profile| {
        let mut times: Vec<_> = profile.samples.iter().map(|sample| sample.timestamps_unix_nano.len()).collect();
        times.sort_unstable();
        times
    };
    // Samples by process: equal stacks are one sample with all times.
    let found: Vec<_> = recording.profiles().map(|(_, profile)| times(profile)).collect();
    assert_eq!(found, [vec![1, 1, 1, 3, 6], vec![3]]);
    let (_, profile) = recording.profiles().next().unwrap();
    // The clock is measured for each interval, to a microsecond.
    assert!(profile.duration_nano.abs_diff(15_000) < 1_000_000, "{}", profile.duration_nano);
    assert_eq!(ExportProfilesServiceRequest::decode(&recording.otlp()[..]).unwrap(), recording.request);
}

#[test]
fn merged_samples_keep_their_spans() {
    let mut locator = locator();
    let mut merge = Merge::new(RECORDING_BYTES_MAX);
    let user = [code()];
    let link = |span: u8| Some(ebpf::Link { trace_id: [9; 16], span_id: [span; 8] });
    for (start_ktime_ns, links) in [(1_000, [link(1), None]), (6_000, [link(2), link(1)]), (11_000, [None, link(3)])] {
        let of = |link| TestRecord { ktime_ns: start_ktime_ns, link, user: &user, ..TestRecord::default() };
        interval(&mut locator, start_ktime_ns, &links.map(of)).into_iter().for_each(|request| merge.add(request));
    }
    let recording = recording(merge.finish(), false);
    assert_eq!(conformance::violations(&recording.request), [""; 0]);
    let table = &recording.request.dictionary.as_ref().unwrap().link_table;
    let (_, profile) = recording.profiles().next().unwrap();
    let found = profile.samples.iter().map(|sample| {
        let link = &table[sample.link_index as usize];
        (link.trace_id[0], link.span_id[0], sample.timestamps_unix_nano.len())
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    assert_eq!(found, [(0, 0, 2), (9, 1, 2), (9, 2, 1), (9, 3, 1)]);
}

#[test]
fn a_recording_is_full_at_its_limit() {
    let mut locator = locator();
    let request = interval(&mut locator, 1_000, &[TestRecord { user: &[code()], ..TestRecord::default() }]).remove(0);
    let bytes = request.encoded_len();
    let mut merge = Merge::new(10 * bytes);
    merge.add(request.clone());
    assert!(!merge.is_full());
    let mut added = 1;
    while !merge.is_full() {
        merge.add(request.clone());
        added += 1;
    }
    // Only the times of these requests are new.
    assert!(bytes / size_of::<u64>() < added, "{added} of {bytes} bytes");
    assert_eq!(recording(merge.finish(), false).samples(), added as u64);
}

/// Returns a request of a process `a;b`. It ran twice at an unnamed address in `/lib/x`, called by `inner`, which is
/// inlined in `outer`. It also waited 70 ns in `outer`.
fn small() -> ExportProfilesServiceRequest {
    let texts = [
        "",
        "samples",
        "count",
        "cpu",
        "nanoseconds",
        "off_cpu",
        "in;ner",
        "outer",
        "x.c",
        "/lib/x",
        "thread.name",
        "t",
    ];
    let mut dictionary = ProfilesDictionary {
        string_table: texts.map(str::to_owned).into(),
        function_table: vec![Function::default(); 3],
        location_table: vec![Location::default(); 4],
        mapping_table: vec![Mapping::default(), Mapping { filename_strindex: 9, ..Mapping::default() }],
        stack_table: [vec![], vec![1, 2], vec![3]].map(|location_indices| Stack { location_indices }).into(),
        attribute_table: vec![Default::default(); 2],
        ..ProfilesDictionary::default()
    };
    let text = |text: &str| Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) });
    dictionary.attribute_table[1].key_strindex = 10;
    dictionary.attribute_table[1].value = text("t");
    let function =
        |name_strindex, start_line| Function { name_strindex, filename_strindex: 8, start_line, ..Function::default() };
    (dictionary.function_table[1], dictionary.function_table[2]) = (function(6, 1), function(7, 10));
    let line = |function_index, line| Line { function_index, line, column: 0 };
    dictionary.location_table[1] = Location { mapping_index: 1, address: 0x40, ..Location::default() };
    dictionary.location_table[2].lines = vec![line(1, 3), line(2, 12)];
    dictionary.location_table[3].lines = vec![line(2, 14)];
    let process = |key: &str, value| KeyValue { key: key.to_owned(), value, ..KeyValue::default() };
    let attributes = vec![
        process("process.pid", Some(AnyValue { value: Some(Value::IntValue(5)) })),
        process("process.executable.name", text("a;b")),
    ];
    let profile = |sample_type: (i32, i32), period, sample: Sample| {
        let sample_type = Some(ValueType { type_strindex: sample_type.0, unit_strindex: sample_type.1 });
        let samples = vec![Sample { attribute_indices: vec![1], ..sample }];
        let profile = Profile { sample_type, period, samples, ..Profile::default() };
        ResourceProfiles {
            resource: Some(Resource { attributes: attributes.clone(), ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles: vec![profile], ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    };
    let ran = Sample { stack_index: 1, timestamps_unix_nano: vec![8, 9], ..Sample::default() };
    let waited = Sample { stack_index: 2, timestamps_unix_nano: vec![8, 9], values: vec![30, 40], ..Sample::default() };
    let resource_profiles = vec![profile((1, 2), 50, ran), profile((5, 4), 0, waited)];
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary) }
}

/// Returns a symbol store without files.
fn no_symbols(folder: &std::path::Path) -> SymbolStore {
    let converter = Converter { program: "/nonexistent".into(), arguments: Vec::new() };
    let directory = folder.to_owned();
    let host_files = false;
    let debug_directory = String::new();
    let limits = Limits::DEFAULT;
    let bucket = None;
    SymbolStore::open(Config { directory, converter, host_files, debug_directory, bucket, limits }).unwrap()
}

#[test]
fn folded_stacks_have_cpu_time_or_waiting_time() {
    let folder = tempfile::tempdir().unwrap();
    let symbols = no_symbols(folder.path());
    for (off_cpu, expected) in [(false, "a:b;outer;in:ner;x+0x40 100\n"), (true, "a:b;outer 70\n")] {
        let recording = recording(small(), off_cpu);
        let mut progress = Vec::new();
        let named = recording.named(&symbols, &CancellationToken::new(), |done, files| progress.push((done, files)));
        assert_eq!(String::from_utf8(named.folded().unwrap()).unwrap(), expected);
        assert_eq!(progress, [(0, 1), (1, 1)]);
        assert_eq!(named.unnamed(), [Unnamed { file: "/lib/x".to_owned(), reason: Reason::NoBuildId }]);
    }
}

#[test]
fn a_pprof_has_lines_inlined_calls_labels_and_all_values() {
    let folder = tempfile::tempdir().unwrap();
    let symbols = no_symbols(folder.path());
    let recording = recording(small(), true);
    let compressed = recording.named(&symbols, &CancellationToken::new(), |_, _| {}).pprof().unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&compressed[..]).read_to_end(&mut bytes).unwrap();
    let profile = proto::pprof::Profile::decode(&bytes[..]).unwrap();
    let text = |index: i64| &*profile.string_table[usize::try_from(index).unwrap()];
    let types: Vec<_> = profile.sample_type.iter().map(|it| (text(it.kind), text(it.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds"), ("off_cpu", "nanoseconds")]);
    assert_eq!((profile.time_nanos, profile.duration_nanos, profile.period), (7_000_000_000, 2_000_000_000, 50));
    assert_eq!(text(profile.default_sample_type), "cpu");
    let labels = |sample: &proto::pprof::Sample| {
        let label =
            |label: &proto::pprof::Label| (text(label.key).to_owned(), text(label.text).to_owned(), label.number);
        sample.label.iter().map(label).collect::<Vec<_>>()
    };
    let expected = [("process_pid", "", 5), ("process_executable_name", "a;b", 0), ("thread_name", "t", 0)];
    let expected = expected.map(|(key, text, number)| (key.to_owned(), text.to_owned(), number));
    assert_eq!((labels(&profile.sample[0]), labels(&profile.sample[1])), (expected.to_vec(), expected.to_vec()));
    assert_eq!((&profile.sample[0].value, &profile.sample[1].value), (&vec![2, 100, 0], &vec![0, 0, 70]));
    let unnamed = &profile.location[0];
    assert_eq!((unnamed.address, unnamed.line.len(), unnamed.mapping_id), (0x40, 0, 1));
    assert_eq!((text(profile.mapping[0].filename), profile.mapping[0].has_functions), ("/lib/x", false));
    let lines = profile.location[1].line.iter().map(|line| {
        let function = &profile.function[usize::try_from(line.function_id).unwrap() - 1];
        (text(function.name), text(function.filename), function.start_line, line.line)
    });
    assert_eq!(lines.collect::<Vec<_>>(), [("in;ner", "x.c", 1, 3), ("outer", "x.c", 10, 12)]);
    assert_eq!(profile.sample[0].location_id, [1, 2]);
}
