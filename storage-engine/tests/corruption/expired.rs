//! Damage of the coarser windows that show whether there were samples in an expired time.

use proto::selection::Operation;
use proto::{Fold, Matcher, Selection, StackDetail, TenantId, Window};
use storage_engine::Engine;
use storage_model::samples::SECOND;

use super::lost::write;
use super::store::{Store, Stored};

/// Returns whether a query of times within one minute reports that they are missing.
fn reports_missing(engine: &Engine, minute_ns: i64) -> bool {
    let window = Window { start_ns: minute_ns + SECOND, end_ns: minute_ns + 59 * SECOND };
    let no_gauge = Matcher { name: "service_name".to_owned(), operation: Operation::NotEqual, value: "s3".to_owned() };
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: vec![no_gauge],
        fold: Fold::Sum(vec![window]),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::None,
        locations: proto::LocationSets::default(),
    };
    engine.select(&selection).map_or(true, |answer| !answer.missing.is_empty())
}

// Regression: such a time was not reported, and before, the query never ended.
#[test]
fn an_expired_time_stays_missing_if_its_minutes_are_damaged() {
    let store = Store::new();
    // Raw samples of this time have expired.
    let (first, _) = &store.values["1m windows"][0];
    let chunk = &first[16..20];
    let start_ns = i64::from(u32::from_be_bytes(chunk.try_into().unwrap())) * 600 * SECOND;
    let minutes: Vec<i64> = (0..10).map(|minute| start_ns + minute * 60 * SECOND).collect();
    let undamaged = Store::open(&store.copy(0)).unwrap();
    let missing: Vec<i64> = minutes.into_iter().filter(|&minute_ns| reports_missing(&undamaged, minute_ns)).collect();
    assert!(!missing.is_empty(), "no time is missing without damage");
    let path = store.copy(1);
    let damaged: Vec<Stored> = store.values["1m windows"]
        .iter()
        .filter(|(key, _)| key[16..20] == *chunk)
        .map(|(key, _)| (key.clone(), vec![0; 20]))
        .collect();
    write(&path, &damaged, &[]);
    let engine = Store::open(&path).unwrap();
    for when in ["found", "known"] {
        for &minute_ns in &missing {
            assert!(reports_missing(&engine, minute_ns), "{when}: {minute_ns} is not reported");
        }
    }
}
