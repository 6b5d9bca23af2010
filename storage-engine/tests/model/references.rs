//! Tests of references to stacks, by which the log omits definitions: each is the first half of a stack's hash.

use proto::limits::PARTITION_SERIES_MAX;
use proto::{Batch, Fold, LocationSets, Selection, StackDetail, TenantId, Window};
use storage_engine::{Outcome, StripError};
use storage_model::alike::{ALIKE, batch};
use storage_model::samples::{DAY, SECOND, T0};
use storage_model::steps::Step;
use storage_model::world::World;

/// Returns the batch as the leader of the shard would propose it.
fn stripped(world: &World, mut batch: Batch) -> Batch {
    world.engine().strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
    batch
}

fn is_reference(batch: &Batch) -> bool {
    batch.dictionary.stacks.references().count() == 1
}

/// Returns the sums of all samples by stack, ascending.
fn sums(world: &World) -> Vec<i128> {
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![Window { start_ns: T0 - DAY, end_ns: T0 + 3 * DAY }]),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::Full,
        locations: LocationSets::default(),
    };
    let mut sums: Vec<i128> = world.engine().select(&selection).unwrap().cells.iter().map(|cell| cell.sum).collect();
    sums.sort_unstable();
    sums
}

// The world applies every other command as it was decoded from the log, so each entry is proposed twice.
#[test]
fn a_reference_that_two_stacks_could_have_is_refused() {
    let [known, other] = ALIKE;
    let mut world = World::default();
    assert_eq!(world.append_whole(batch(known, T0, 1)), Outcome::Applied);
    let reference = stripped(&world, batch(known, T0 + SECOND, 1));
    assert!(is_reference(&reference));
    for sum in [2, 3] {
        assert_eq!(world.append_whole(reference.clone()), Outcome::Applied);
        assert_eq!(sums(&world), [sum]);
    }
    // The leader has proposed the other stack after it had made the reference.
    assert_eq!(world.append_whole(batch(other, T0, 1000)), Outcome::Applied);
    for _ in 0..2 {
        assert_eq!(world.append_whole(reference.clone()), Outcome::Dangling);
    }
    assert_eq!(sums(&world), [3, 1000]);
    // From now on, the definitions of both stay in the log. A router that omits them must send them.
    let omitted = world.engine().strip(&mut reference.clone(), PARTITION_SERIES_MAX);
    assert!(matches!(omitted, Err(StripError::Dangling)), "{omitted:?}");
    for address in ALIKE {
        let whole = stripped(&world, batch(address, T0 + SECOND, 1));
        assert!(!is_reference(&whole) && whole.series[0].labels.is_none());
        for _ in 0..2 {
            assert_eq!(world.append_whole(whole.clone()), Outcome::Applied);
        }
    }
    assert_eq!(sums(&world), [5, 1002]);
    world.step(&Step::Restart);
    assert_eq!(sums(&world), [5, 1002]);
}

// Other replicas may not have the other partition in memory, and must come to the same outcome.
#[test]
fn a_reference_does_not_depend_on_stacks_of_other_partitions() {
    let [known, other] = ALIKE;
    let mut leader = World::default();
    let mut follower = World::default();
    leader.append_whole(batch(known, T0, 1));
    let reference = stripped(&leader, batch(known, T0 + SECOND, 1));
    for (address, time_ns, value) in [(other, T0 + DAY, 1000), (known, T0, 1)] {
        assert_eq!(follower.append_whole(batch(address, time_ns, value)), Outcome::Applied);
    }
    for _ in 0..2 {
        assert_eq!(follower.append_whole(reference.clone()), Outcome::Applied);
    }
    assert_eq!(sums(&follower), [3, 1000]);
}
