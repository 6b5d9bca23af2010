//! Tests of power cuts after any file operation, and of the state that the engine then opens.
//!
//! The engine must open, whichever of the unsynced writes the disk keeps. Its state must then hold everything that it
//! had reported as durable. After a replay of the log, its state must hold everything.
//!
//! A script runs on a real engine, and every operation on its files is recorded (`testkit::power_cut`). The test then
//! cuts the power many times after a random operation, computes a possible content of the disk, and opens an engine on
//! it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

mod check;
mod history;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use storage_engine::{Budgets, Config, Engine};
use storage_model::world;

use check::{check_answers, check_disk, position};
use history::{History, Promise, directory, flushed};
use testkit::power_cut::disk::{Disk, Loss, draw_cut};
use testkit::random::Random;

testkit::record_file_operations!();

/// Number of power cuts that are tested for each script.
const STATES_OF_A_SCRIPT: u64 = 50;
/// Number of failures after which the test ends.
const FAILED_MAX: usize = 10;

fn config(history: &History, path: &Path) -> Config {
    let mut sizes = world::BUDGETS;
    if history.has_small_head {
        sizes.head_bytes_max = 200;
    }
    Config { budgets: Budgets::new(sizes), ..world::config(path) }
}

/// Opens the state after a power cut and checks it, then replays the log and checks again.
fn check_state(history: &History, path: &Path, durable: usize, compacts: bool) -> Result<(), String> {
    let engine = Engine::open(config(history, path)).map_err(|error| format!("it does not open: {error}"))?;
    let index = flushed(&engine);
    if index < durable {
        return Err(format!("{durable} entries were reported as durable, but the state has {index}"));
    }
    check_disk(&engine)?;
    check_answers(&engine, &history.moments[index], &history.selections)?;
    for (i, entry) in history.log.iter().enumerate().skip(index) {
        engine.apply(position(i + 1), entry).map_err(|error| format!("replay of {}: {error}", i + 1))?;
    }
    let now = &history.moments[history.log.len()];
    check_answers(&engine, now, &history.selections)?;
    if compacts { engine.compact() } else { engine.flush() }.map_err(|error| error.to_string())?;
    check_disk(&engine)?;
    check_answers(&engine, now, &history.selections)
}

/// Checks that a checkpoint holds everything up to its position.
fn check_checkpoint(history: &History, path: &Path, index: usize) -> Result<(), String> {
    let engine =
        Engine::open(config(history, path)).map_err(|error| format!("the checkpoint does not open: {error}"))?;
    if flushed(&engine) != index {
        return Err(format!("the checkpoint ends at entry {}, not at {index}", flushed(&engine)));
    }
    check_disk(&engine)?;
    check_answers(&engine, &history.moments[index], &history.selections)
}

/// Tests one power cut. Returns the kind of the power cut.
fn cut(history: &History, seed: u64) -> Result<Loss, String> {
    let mut random = Random::new(seed);
    let at = draw_cut(&history.operations, &mut random);
    let loss = [Loss::Tails, Loss::Sectors, Loss::Anything][random.below(3)];
    let done = &history.operations[..at];
    let disk = Disk::after(done, loss, &mut random);
    let durable = history
        .promises(at)
        .find_map(|promise| if let Promise::Durable(index) = promise { Some(*index) } else { None });
    let folder = directory();
    disk.write(history.root, &folder.path().join("state")).unwrap();
    let checked = check_state(history, &folder.path().join("state"), durable.unwrap_or_default(), random.chance(20));
    let checkpoints = history.promises(at).filter_map(|promise| match promise {
        Promise::Checkpoint { entry, index } => Some((disk.at(entry)?, *index)),
        Promise::Durable(_) => None,
    });
    let checkpoints = checked.and_then(|()| {
        checkpoints.into_iter().try_for_each(|(inode, index)| {
            let path = folder.path().join(format!("checkpoint-{inode}"));
            disk.write(inode, &path).unwrap();
            check_checkpoint(history, &path, index)
        })
    });
    match checkpoints {
        Ok(()) => Ok(loss),
        Err(what) => {
            let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("crash-{seed}"));
            disk.write(history.root, &left).unwrap();
            Err(format!(
                "seed {seed}, after operation {at} of {}, {loss:?} ({}): {what}",
                history.operations.len(),
                left.display()
            ))
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Environment variables: `VARVE_CRASH_STATES` sets the number of power cuts, and `VARVE_CRASH_SEED` repeats the script
/// of a seed. RocksDB's background work differs between runs, so a state that fails is also kept on disk.
#[test]
fn no_power_cut_loses_anything_that_was_reported_as_durable() {
    let states = number("VARVE_CRASH_STATES").unwrap_or(500);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let first = number("VARVE_CRASH_SEED").unwrap_or(now.as_secs());
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut kinds: BTreeMap<Loss, u64> = BTreeMap::new();
    let mut operations = 0;
    let mut checked = 0;
    let mut failed = Vec::new();
    for script in first.. {
        let of_script = STATES_OF_A_SCRIPT.min(states - checked);
        if of_script == 0 || failed.len() >= FAILED_MAX {
            break;
        }
        let history = History::record(script);
        operations += history.operations.len();
        let next = AtomicU64::new(0);
        let results = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(state) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|state| *state < of_script)
                    {
                        let result = cut(&history, script.wrapping_mul(1_000_003).wrapping_add(state));
                        results.lock().push(result);
                    }
                });
            }
        });
        for result in results.into_inner() {
            match result {
                Ok(loss) => *kinds.entry(loss).or_default() += 1,
                Err(what) => failed.push(format!("VARVE_CRASH_SEED={script}: {what}")),
            }
        }
        checked += of_script;
        if checked % 1000 == 0 {
            println!("{checked} power cuts; continue with VARVE_CRASH_SEED={}", script + 1);
        }
    }
    println!(
        "{checked} power cuts ({kinds:?}), {operations} operations; \
         again with VARVE_CRASH_SEED={first} VARVE_CRASH_STATES={states}"
    );
    assert!(failed.is_empty(), "{} failed\n{}", failed.len(), failed.join("\n"));
    assert!(states < 500 || kinds.values().all(|&count| count > 50), "{kinds:?}");
}
