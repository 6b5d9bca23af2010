//! Tests of valid pprofs that may not mean what their sender expects. They are stored, and the response has a warning
//! with the remedy.

use tests::payload::generated::{Defect, Profile, Seen, Shape};
use tests::payload::otlp::now_ns;
use tests::payload::pprof;
use tests::payload::profilers::PROFILERS;
use tests::server::Varve;
use tests::shared::payloads;

/// Returns a pprof of a profiler with one stack, which has this value in every column.
fn body(profiler: &str, value: i64) -> Vec<u8> {
    let profiler = PROFILERS.iter().find(|known| known.name == profiler).unwrap();
    let values = vec![value; profiler.sample_types.len()];
    let samples = vec![Seen { stack: vec![1, 2], values, label: 0, seconds_before: vec![0] }];
    Profile { profiler, defect: Defect::None, shape: Shape::Value, samples }.pprof("", now_ns())
}

/// Pushes a body, which must be stored. Returns the warnings of the response.
fn warnings(varve: &Varve, body: &[u8], parameters: &[(&str, &str)]) -> Vec<String> {
    let json = varve.push_pprof(&pprof::gzip(body), parameters, None).expect(200).json();
    let warnings = json["data"]["warnings"].as_array().unwrap().iter();
    warnings.map(|warning| warning.as_str().unwrap().to_owned()).collect()
}

#[test]
fn mutex_and_block_profiles_without_a_name_warn() {
    let varve = Varve::up();
    let of = |name: &'static str| [("service_name", "contention"), ("name", name)];
    for unnamed in [&of("")[..1], &of("")] {
        let told = warnings(&varve, &body("go block?seconds", 3), unnamed);
        assert!(
            matches!(told.as_slice(), [one] if one.contains("name=mutex") && one.contains("name=block")),
            "{told:?}"
        );
    }
    assert_eq!(warnings(&varve, &body("go block?seconds", 5), &of("block")), Vec::<String>::new());
    assert_eq!(warnings(&varve, &body("go block?seconds", 7), &of("mutex")), Vec::<String>::new());
    let total = |name: &str| {
        let id = format!("{name}:delay:nanoseconds:contentions:count");
        let selector = format!("{{__profile_type__=\"{id}\",service_name=\"contention\"}}");
        varve.total(&format!("sum_over_time({selector}[1h])"), now_ns() as f64 / 1e9 + 1.0)
    };
    assert_eq!(["block", "mutex", "contention"].map(total), [5.0, 7.0, 6.0]);
}

#[test]
fn cumulative_profiles_warn_once_and_name_their_types() {
    let varve = Varve::up();
    let of = [("service_name", "totals"), ("name", "some")];
    for (profiler, types) in [("go heap", "alloc_objects, alloc_space:"), ("go mutex", "contentions, delay:")] {
        let told = warnings(&varve, &body(profiler, 3), &of);
        let is_told = |one: &String| one.starts_with(types) && one.contains("?seconds=N");
        assert!(matches!(told.as_slice(), [one] if is_told(one)), "{profiler}: {told:?}");
    }
    for profiler in ["go allocs?seconds", "go block?seconds", "go cpu", "go goroutine", "pprof-rs", "node heap"] {
        assert_eq!(warnings(&varve, &body(profiler, 3), &of), Vec::<String>::new(), "{profiler}");
    }
    assert_eq!(warnings(&varve, &body("go heap", 0), &of), Vec::<String>::new(), "nothing is added again");
}

#[test]
fn goroutines_and_threads_are_gauges() {
    let varve = Varve::up();
    for name in ["goroutine", "threadcreate"] {
        for value in [7, 4] {
            assert_eq!(warnings(&varve, &body(&format!("go {name}"), value), &[("service_name", "gauges")]), [""; 0]);
        }
        let at_s = now_ns() as f64 / 1e9 + 1.0;
        assert_eq!(varve.total(&format!("last_over_time({name}{{service_name=\"gauges\"}}[1h])"), at_s), 4.0);
        let summed = varve.try_query(&format!("sum_over_time({name}{{service_name=\"gauges\"}}[1h])"), at_s);
        let refused = summed.unwrap_err().refused_with(&[422, 400]);
        assert!(refused.text().contains("gauge"), "{}", refused.text());
    }
}

#[test]
fn a_heap_difference_is_stored_with_negative_values_and_a_warning() {
    let test = "a_heap_difference_is_stored_with_negative_values_and_a_warning";
    let is_difference = |path: &std::path::PathBuf| path.ends_with("heap_delta_negative.pb.gz");
    let Some(path) = payloads(test, "pprof").into_iter().find(is_difference) else { return };
    let varve = Varve::up();
    let now = now_ns();
    let body = pprof::unpacked(&pprof::at_time(&std::fs::read(path).unwrap(), now));
    let told = warnings(&varve, &body, &[("service_name", "heap")]);
    for kind in ["inuse_objects", "inuse_space"] {
        assert!(told.iter().any(|one| one.starts_with(kind) && one.contains("difference")), "{kind}: {told:?}");
    }
    assert_eq!(told.len(), 2, "{told:?}");
    let profile = pprof::Profile::read(&body);
    for (column, (id, _)) in profile.profile_types().into_iter().enumerate() {
        let selector = format!("{{__profile_type__=\"{id}\",service_name=\"heap\"}}");
        let mut got = varve.folded(&selector, (now as f64 / 1e9 - 60.0, now as f64 / 1e9 + 60.0));
        got.retain(|_, sum| *sum != 0);
        let want = profile.folded(column);
        assert_eq!(want.values().any(|&sum| sum < 0), id.contains("inuse"), "{id}");
        assert!(got == want, "{id}: {} stacks, not {}", got.len(), want.len());
    }
}
