//! Two replicas apply the same entries, and one of them has damaged values. Both must have the same outcomes, and the
//! same data except where damage is reported.

use std::sync::Arc;

use proto::entry::Deletion;
use proto::limits::PARTITION_SERIES_MAX;
use proto::selection::Operation;
use proto::{Command, Entry, Matcher, TenantId, Window};
use storage_engine::{Engine, Outcome};
use storage_model::samples::{SECOND, T0, batch_of};

use super::damage::flip_bit;
use super::store::{Store, answer, apply, check, samples};
use testkit::random::Random;

/// Number of damaged values of each kind.
const VALUES: usize = 6;

fn check_answers(store: &Store, undamaged: &Engine, damaged: &Engine, when: &str) {
    for selection in &store.selections {
        let wanted = answer(undamaged, selection, true).unwrap();
        let got = answer(damaged, selection, true).unwrap_or_else(|why| panic!("{when}: {selection:?}: {why}"));
        check(selection, wanted.as_ref(), got.as_ref()).unwrap_or_else(|what| panic!("{when}: {what}: {selection:?}"));
    }
}

/// Returns an entry with samples of two partitions. The definitions that the undamaged replica has are stripped from
/// it.
fn append(undamaged: &Engine, after: i64) -> Entry {
    let mut batch = batch_of(&samples(-30_000, 1200, 60), None);
    let _removed = undamaged.strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
    Entry { proposed_at_ns: T0 + after * SECOND, command: Command::Append(Arc::new(batch)) }
}

fn delete(after: i64) -> Entry {
    let matcher = Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value: "s1".to_owned() };
    let window = Window { start_ns: T0 - 20_000 * SECOND, end_ns: T0 - 1000 * SECOND };
    let deletion = Deletion { tenant: TenantId::default_tenant(), matchers: vec![matcher], window };
    Entry { proposed_at_ns: T0 + after * SECOND, command: Command::Delete(deletion) }
}

/// Removes the counts of deleted samples and windows from an outcome, because they depend on the readable values.
fn without_counts(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Deleted { .. } => Outcome::Deleted { samples: 0, windows: 0 },
        outcome => outcome,
    }
}

#[test]
fn local_damage_changes_no_outcome_and_no_undamaged_window() {
    let store = Store::new();
    let mut random = Random::new(1);
    let mut number = 0;
    for kind in ["1m dictionary", "1m series", "1m left out", "head", "chunk", "1h windows"] {
        let values = &store.values[kind];
        for (key, value) in values.iter().step_by(values.len().div_ceil(VALUES)) {
            let paths = [store.copy(number), store.copy(number + 1)];
            number += 2;
            let mut changed = value.clone();
            flip_bit(&mut changed, &mut random);
            let database = rocksdb::DB::open(&rocksdb::Options::default(), &paths[1]).unwrap();
            database.put(key, changed).unwrap();
            drop(database);
            let [undamaged, damaged] = [0, 1].map(|i| Store::open(&paths[i]).unwrap());
            assert_eq!(store.retry(&undamaged).unwrap(), store.retry(&damaged).unwrap(), "{kind}");
            check_answers(&store, &undamaged, &damaged, kind);
            let first = store.last_index() + 2;
            for (i, entry) in [append(&undamaged, 1200), delete(1201)].into_iter().map(Some).enumerate() {
                let [wanted, got] = [&undamaged, &damaged].map(|engine| apply(engine, first + i, &entry).unwrap());
                assert_eq!(without_counts(wanted), without_counts(got), "{kind}: {entry:?}");
                check_answers(&store, &undamaged, &damaged, kind);
            }
            undamaged.flush().unwrap();
            damaged.flush().unwrap();
            check_answers(&store, &undamaged, &damaged, kind);
            drop(damaged);
            check_answers(&store, &undamaged, &Store::open(&paths[1]).unwrap(), kind);
        }
    }
}
