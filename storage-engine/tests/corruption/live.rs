//! Tests of damage to table files of an engine that is open: blocks become unreadable, and the engine notices when it
//! reads them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use storage_engine::{BudgetSizes, Budgets, Config, Engine};
use storage_model::world;
use testkit::random::Random;

use super::store::{Answered, Store, answer, check};

/// Size of a piece that is overwritten. It exceeds a block of a table, so it damages at least one.
const PIECE: usize = 20 << 10;

/// Overwrites a random piece of the first three quarters of a random table, which have its values. Returns what it hit.
fn overwrite(path: &Path, random: &mut Random) -> String {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut tables: Vec<_> = files.filter(|file| file.extension().is_some_and(|is| is == "sst")).collect();
    tables.sort();
    let table = &tables[random.below(tables.len())];
    let length = std::fs::metadata(table).unwrap().len() as usize;
    let bytes = PIECE.min(length / 2);
    let at = random.below((length * 3 / 4).saturating_sub(bytes) + 1);
    let noise: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
    // Other copies have hard links to the file, and the engine has it open: the copy is made before.
    File::options().write(true).open(table).unwrap().write_all_at(&noise, at as u64).unwrap();
    format!("{} at {at} of {length}", table.file_name().unwrap().display())
}

fn check_all(store: &Store, engine: &Engine, wanted: &[Answered], when: &str) -> usize {
    let mut reported = 0;
    for (selection, wanted) in store.selections.iter().zip(wanted) {
        // The first query that meets damage may be refused.
        let Ok(got) = answer(engine, selection, true) else { continue };
        reported += usize::from(got.as_ref().is_some_and(super::Answer::is_damaged));
        check(selection, wanted.as_ref(), got.as_ref()).unwrap_or_else(|what| panic!("{when}: {what}: {selection:?}"));
    }
    reported
}

#[test]
fn blocks_that_become_unreadable_are_reported_by_the_first_query() {
    let store = Store::new();
    let mut reported = 0;
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let copy = store.copy(seed as usize);
        // The tables of a copy are hard links.
        let path = copy.with_extension("own");
        std::fs::create_dir(&path).unwrap();
        for file in std::fs::read_dir(&copy).unwrap().flatten().filter(|file| file.file_name() != "LOCK") {
            std::fs::copy(file.path(), path.join(file.file_name())).unwrap();
        }
        // Blocks in RocksDB's cache would hide the damage.
        let budgets = Budgets::new(BudgetSizes { cache_bytes: 1, ..world::BUDGETS });
        let engine = Engine::open(Config { budgets, ..world::config(&path) }).unwrap();
        if seed % 2 == 0 {
            // With blocks and dictionaries in memory.
            check_all(&store, &engine, &store.answers[..seed as usize % store.answers.len()], "undamaged");
        }
        let hit = overwrite(&path, &mut random);
        let when = |which: &str| format!("seed {seed}, {hit}, {which}");
        let wanted = match seed % 3 {
            0 => &store.answers,
            // New samples, some of them late, come before the first query.
            _ => match store.retry(&engine).map_err(|error| error.to_string()).and_then(|_| store.append_more(&engine))
            {
                Ok(()) => &store.answers_after,
                // A sample of the refused entry may be visible.
                Err(_damage) => continue,
            },
        };
        // Several queries may meet the damage at the same time.
        std::thread::scope(|scope| {
            let query = || check_all(&store, &engine, wanted, &when("first"));
            let queries: Vec<_> = (0..4).map(|_| scope.spawn(query)).collect();
            reported += queries.into_iter().map(|query| query.join().unwrap()).sum::<usize>();
        });
        reported += check_all(&store, &engine, wanted, &when("second"));
        let _verified = engine.verify().is_ok();
        check_all(&store, &engine, wanted, &when("verified"));
        let _compacted = engine.compact().is_ok();
        check_all(&store, &engine, wanted, &when("compacted"));
        drop(engine);
        std::fs::remove_dir_all(&path).unwrap();
    }
    assert!(reported > 50, "{reported}");
}
