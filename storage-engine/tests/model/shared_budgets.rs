//! Engines that share budgets: together they stay within bounds, none waits for another, and every response is that of
//! an engine alone.

use proptest::prelude::*;
use storage_engine::{BudgetSizes, Budgets};
use storage_model::answers::selection;
use storage_model::samples::{Drawn, drawn};
use storage_model::world::{BUDGETS, Step, World};

use crate::check;

const ENGINES: usize = 3;
const HEAD_BYTES_MAX: usize = 16_000;
/// Size of the largest generated batch in a head, in bytes: 20 samples, each in a head chunk of its own.
const BATCH_BYTES_MAX: usize = 20 * 600;

fn worlds() -> Vec<World> {
    let budgets = Budgets::new(BudgetSizes { engines: ENGINES, head_bytes_max: HEAD_BYTES_MAX, ..BUDGETS });
    (0..ENGINES).map(|_| World::sharing(budgets.clone(), [&[], &[]])).collect()
}

fn head_bytes(worlds: &[World]) -> usize {
    worlds.iter().map(|world| world.engine().head_bytes()).sum()
}

/// Appends to one engine until all heads together have `bytes` bytes.
fn fill(worlds: &mut [World], one: usize, bytes: usize) {
    while head_bytes(worlds) < bytes {
        let samples = (0..10).map(|user| Drawn::simple(user % 3, 0, user % 8, 1)).collect();
        worlds[one].step(&Step::Append(samples, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Without upkeep, an entry flushes only its own engine, as in the thread that applies entries.
    #[test]
    fn heads_stay_bounded_and_no_response_changes(
        appends in prop::collection::vec((0..ENGINES, prop::collection::vec(drawn(), 1..20), any::<bool>()), 1..80),
        selections in prop::collection::vec(selection(), 1..10),
    ) {
        let mut worlds = worlds();
        for (one, samples, with_upkeep) in appends {
            worlds[one].step(&Step::Append(samples, None));
            if worlds[one].engine().is_overfull() {
                worlds[one].engine().flush().unwrap();
                prop_assert_eq!(worlds[one].engine().head_bytes(), 0);
            }
            let bytes = head_bytes(&worlds);
            prop_assert!(bytes <= 2 * HEAD_BYTES_MAX + ENGINES * BATCH_BYTES_MAX, "{}", bytes);
            if with_upkeep {
                for world in worlds.iter().filter(|world| world.engine().wants_flush()) {
                    world.engine().flush().unwrap();
                }
                prop_assert!(head_bytes(&worlds) < HEAD_BYTES_MAX, "{}", head_bytes(&worlds));
            }
        }
        for selection in &selections {
            for world in &worlds {
                check(world, selection, &(Vec::new(), 0))?;
            }
        }
    }
}

#[test]
fn the_largest_head_flushes_and_a_small_one_stays() {
    let mut worlds = worlds();
    // All samples are of the present window, so that only the budget is a reason to flush.
    let samples = |count: u8| (0..count).map(|thread| Drawn { thread, ..Drawn::simple(0, 0, thread % 8, 1) }).collect();
    worlds[0].step(&Step::Append(samples(2), None));
    worlds[1].step(&Step::Append(samples(40), None));
    fill(&mut worlds, 2, HEAD_BYTES_MAX);
    let before = head_bytes(&worlds[..1]);
    assert_eq!([0, 1, 2].map(|one| worlds[one].engine().wants_flush()), [false, false, true]);
    // A flush for another reason writes the small head, and keeps it in memory.
    worlds[0].engine().flush().unwrap();
    assert_eq!(head_bytes(&worlds[..1]), before);
    worlds[2].engine().flush().unwrap();
    assert_eq!(worlds[2].engine().head_bytes(), 0);
    assert!(worlds.iter().all(|world| !world.engine().wants_flush()));
}

#[test]
fn a_small_engine_never_waits_for_a_large_one() {
    let mut worlds = worlds();
    // Nobody flushes the large engine.
    fill(&mut worlds, 0, 2 * HEAD_BYTES_MAX);
    assert!(worlds[0].engine().is_overfull());
    worlds[1].step(&Step::Append(vec![Drawn::simple(0, 0, 1, 1)], None));
    assert!(!worlds[1].engine().is_overfull(), "it would flush for each entry, and free nothing");
    // An engine that was closed does not count any more.
    worlds[0].engine = None;
    assert!(!worlds[1].engine().wants_flush());
}
