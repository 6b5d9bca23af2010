//! Tests of values in export requests: zeros of gauges, and values that might not mean what their sender expects.

use super::*;

/// Returns a dictionary in which string 1 is this kind of sample.
fn dictionary_of(kind: &str) -> ProfilesDictionary {
    let mut dictionary = dictionary();
    dictionary.string_table[1] = kind.to_owned();
    dictionary
}

#[test]
fn the_newest_zero_of_a_gauge_is_kept() {
    let of = |kind: &str, values: &[(u64, i64)]| {
        let sample = |&(seconds, value): &(u64, i64)| Sample {
            values: vec![value],
            ..at(1, &[TIME - 10_000_000_000 + seconds * 1_000_000_000])
        };
        let mut request = request(&[], vec![profile(values.iter().map(sample).collect())]);
        request.dictionary = Some(dictionary_of(kind));
        let second = |time: i64| (time - (TIME as i64 - 10_000_000_000)) / 1_000_000_000;
        let mut rows: Vec<(i64, i64)> =
            rows(&push(&request)).into_iter().map(|(time, value, ..)| (second(time), value)).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(of("goroutines", &[(1, 5), (2, 0)]), [(1, 5), (2, 0)]);
    assert_eq!(of("goroutines", &[(2, 0), (1, 0), (2, 0), (1, 5)]), [(1, 5), (2, 0)]);
    assert_eq!(of("goroutines", &[(2, 0), (1, 0), (2, 3)]), [(2, 3)]);
    assert_eq!(of("goroutines", &[(1, 0), (3, 0), (2, 0)]), [(3, 0)]);
    assert_eq!(of("off_cpu", &[(1, 5), (2, 0)]), [(1, 5)]);
}

#[test]
fn contentions_without_a_name_and_totals_warn() {
    let warnings = |kind: &str, scope: &str, duration_nano: u64, value: i64| {
        let sample = Sample { stack_index: 1, values: vec![value], ..Sample::default() };
        let mut request = request(&[], vec![Profile { duration_nano, ..profile(vec![sample]) }]);
        request.dictionary = Some(dictionary_of(kind));
        let scope = InstrumentationScope { name: scope.to_owned(), ..InstrumentationScope::default() };
        request.resource_profiles[0].scope_profiles[0].scope = Some(scope);
        let push = push(&request);
        assert_eq!(push.rejected, 0);
        push.warnings
    };
    for kind in ["contentions", "delay"] {
        let told = warnings(kind, "runtime", 5, 1);
        assert!(matches!(told.as_slice(), [one] if one.starts_with(kind) && one.contains("scopes mutex and block")));
        assert_eq!(warnings(kind, "mutex", 5, 1), [""; 0]);
    }
    for kind in ["contentions", "delay", "alloc_objects", "alloc_space"] {
        let told = warnings(kind, "block", 0, 1);
        assert!(matches!(told.as_slice(), [one] if one.starts_with(kind) && one.contains("no duration")), "{told:?}");
        assert_eq!(warnings(kind, "block", 0, 0), [""; 0], "nothing is added again");
    }
    assert_eq!(warnings("inuse_space", "", 0, 1), [""; 0]);
}
