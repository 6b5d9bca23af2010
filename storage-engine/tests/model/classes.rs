//! Tests of retention classes, between which a tenant moves when its policy changes.

use proto::{Batch, Fold, LocationSets, Selection, StackDetail, TenantId, Tier, Window};
use storage_engine::Outcome;
use storage_model::samples::{DAY, Drawn, SECOND, T0, batch_of};
use storage_model::steps::Step;
use storage_model::world::World;

// The policy of the tenant changes between a push and its retry.
#[test]
fn a_retry_is_recognized_in_every_retention_class() {
    let mut world = World::default();
    let push = || vec![Drawn::simple(0, 1, 1, 5), Drawn::simple(1, 30_000, 1, 5)];
    // The model checks every outcome.
    world.step(&Step::Append(push(), Some(1)));
    for step in [Step::Class(7), Step::Crash, Step::Class(1), Step::Compact, Step::Restart] {
        world.step(&step);
        assert_eq!(retried(&mut world, push(), 1), Outcome::Duplicate, "after {step:?}");
    }
    // A new push in the new class, and its retry in the old one.
    world.step(&Step::Append(vec![Drawn::simple(0, 2, 2, 7)], Some(2)));
    world.step(&Step::Class(0));
    assert_eq!(retried(&mut world, vec![Drawn::simple(0, 2, 2, 7)], 2), Outcome::Duplicate);
    assert_eq!(world.rows.len(), 3);
}

/// Appends a batch in the class of the world as it is, without adding its samples to the model's rows.
fn retried(world: &mut World, samples: Vec<Drawn>, id: u8) -> Outcome {
    let batch = Batch { retention_class: world.class, ..batch_of(&samples, Some(id)) };
    world.append_whole(batch)
}

// Late samples are not added to the sums that another class has kept.
#[test]
fn one_class_expires_and_another_stays() {
    let mut world = World::default();
    world.step(&Step::Append(vec![Drawn::simple(0, 1, 1, 5)], Some(1)));
    world.step(&Step::Class(1));
    world.step(&Step::Append(vec![Drawn::simple(0, 2, 1, 70)], Some(2)));
    world.step(&Step::Append(vec![Drawn::simple(0, 40_000, 1, 1)], None));
    world.expire(Tier::Raw, T0 + 30_000 * SECOND);
    let day = Window { start_ns: T0 / DAY * DAY, end_ns: T0 / DAY * DAY + DAY };
    let everything = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![day]),
        group_by: Vec::new(),
        group_by_series: true,
        stacks: StackDetail::Full,
        locations: LocationSets::default(),
    };
    let sum = |world: &World| {
        let answer = world.engine().select(&everything).unwrap();
        (answer.cells.iter().map(|cell| cell.sum).sum::<i128>(), answer.missing.len())
    };
    assert_eq!(sum(&world), (76, 0));
    // The ID of the first push has expired with its samples, but the sums of minutes have the push.
    let late = retried(&mut world, vec![Drawn::simple(0, 1, 1, 5)], 1);
    assert_eq!(late, Outcome::Partial { samples_too_old: 1 });
    assert_eq!(sum(&world), (76, 0));
    world.expire(Tier::Minute, T0 + 30_000 * SECOND);
    world.expire(Tier::Hour, T0 + 20 * DAY);
    world.expire(Tier::Day, T0 + 300 * DAY);
    for step in [Step::Flush, Step::Crash, Step::Compact, Step::Restart] {
        world.step(&step);
        assert_eq!(sum(&world), (71, 0), "after {step:?}");
    }
    assert_eq!(world.rows.len(), 2);
}
