//! References to stacks of which another one looks the same to the log, after the definitions of a partition were lost.

use std::sync::Arc;

use proto::limits::PARTITION_SERIES_MAX;
use proto::{Command, Entry, Fold, LocationSets, Selection, StackDetail, TenantId, Window};
use storage_engine::{Engine, Outcome};
use storage_model::alike::{ALIKE, batch};
use storage_model::samples::{DAY, SECOND, T0, labels_of};
use storage_model::steps::Step;
use storage_model::world::{World, copy_of};

use super::lost::write;
use super::store::{Store, apply, kind_of};

/// Time between two samples of one partition that are in different windows.
const LATER: i64 = 10_000 * SECOND;

/// Returns the sums by stack in the minute that begins so long after [`T0`], and whether times are reported as damaged.
fn sums(engine: &Engine, after: i64) -> (Vec<i128>, bool) {
    let start_ns = T0 + after;
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![Window { start_ns: start_ns - SECOND, end_ns: start_ns + 60 * SECOND }]),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::Full,
        locations: LocationSets::default(),
    };
    let answer = engine.select(&selection).unwrap();
    (answer.cells.iter().map(|cell| cell.sum).collect(), !answer.missing.is_empty())
}

fn entry(batch: proto::Batch) -> Option<Entry> {
    Some(Entry { proposed_at_ns: T0 + DAY + 100 * SECOND, command: Command::Append(Arc::new(batch)) })
}

/// Returns two engines with a stack at [`T0`] and the other one a day later. The second engine has lost the definitions
/// of the first day. The value is the index of the last entry.
fn engines() -> (World, tempfile::TempDir, usize) {
    let mut world = World::default();
    let [known, other] = ALIKE;
    for (address, time_ns, value) in [(known, T0, 1), (other, T0 + DAY, 1000)] {
        assert_eq!(world.append_whole(batch(address, time_ns, value)), Outcome::Applied);
    }
    world.step(&Step::Flush);
    let last = 2;
    let damaged = copy_of(world.directory.path());
    let database = rocksdb::DB::open_for_read_only(&rocksdb::Options::default(), damaged.path(), false).unwrap();
    let keys = database.iterator(rocksdb::IteratorMode::Start).map(|item| item.unwrap().0.to_vec());
    let first = keys.filter(|key| kind_of(key) == Some("1m dictionary")).min().unwrap();
    drop(database);
    write(damaged.path(), &[(first, vec![0; 20])], &[]);
    (world, damaged, last)
}

#[test]
fn a_sample_of_a_lost_stack_is_not_given_to_another_stack() {
    let (undamaged, damaged, last) = engines();
    // The leader does not have the other partition.
    let mut leader = World::default();
    leader.append_whole(batch(ALIKE[0], T0, 1));
    let mut reference = batch(ALIKE[0], T0 + LATER, 1);
    leader.engine().strip(&mut reference, PARTITION_SERIES_MAX).unwrap().unwrap();
    assert_eq!(reference.dictionary.stacks.references().count(), 1);
    // Without its labels, the sample would be skipped because of its series.
    reference.series[0].labels = Some(labels_of(0));
    let damaged = Store::open(damaged.path()).unwrap();
    // The query loads the other partition.
    assert_eq!(sums(&damaged, DAY), (vec![1000], false));
    for engine in [undamaged.engine(), &damaged] {
        assert_eq!(apply(engine, last + 1, &entry(reference.clone())).unwrap(), Outcome::Applied);
    }
    assert_eq!(sums(undamaged.engine(), LATER), (vec![1], false));
    assert_eq!(sums(&damaged, LATER), (Vec::new(), true));
    assert_eq!(sums(&damaged, DAY), (vec![1000], false));
}

#[test]
fn a_leader_that_lost_definitions_keeps_those_of_stacks() {
    let (_undamaged, damaged, last) = engines();
    let damaged = Store::open(damaged.path()).unwrap();
    let known = || batch(7, T0, 1);
    assert_eq!(apply(&damaged, last + 1, &entry(known())).unwrap(), Outcome::Applied);
    let mut stripped = known();
    damaged.strip(&mut stripped, PARTITION_SERIES_MAX).unwrap();
    assert!(stripped.series[0].labels.is_none(), "the series is known");
    assert_eq!(stripped.dictionary.stacks.references().count(), 0);
}
