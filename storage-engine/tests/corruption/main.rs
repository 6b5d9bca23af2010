//! Tests of damaged values and files: the state is damaged, then the engine is opened and queried.
//!
//! The engine opens, returns everything undamaged exactly, reports the damaged times, and accepts new samples. It
//! refuses to open only if an essential value, or a file with one, is damaged. No response is wrong, and `verify` finds
//! all damage that a query can find.
//!
//! Values are changed through RocksDB, which computes its own checksums anew, so the engine's checksums are tested.
//! Files are changed directly, so RocksDB's checksums are tested. A last kind of damage is possible only with faulty
//! software: wrong content with a right checksum. It must neither cause a panic nor take unbounded memory.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test fails by panicking")]

mod alike;
mod damage;
mod expired;
mod live;
mod lost;
mod lost_ids;
mod replicas;
mod store;
mod timeline;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use storage_engine::{Engine, Outcome};

use damage::Damage;
use store::{Answer, Answered, KINDS, Store, answer, check};
use testkit::random::Random;

/// Parts of file names, each of which stands for one kind of RocksDB's files.
const FILES: [&str; 5] = ["sst", "MANIFEST", "CURRENT", "OPTIONS", "IDENTITY"];

/// Result of opening and reading a damaged copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The engine does not open.
    Refused,
    /// The engine opens with the state of an earlier position, and the log still has the later entries.
    Earlier,
    /// The engine opens, and verification finds the damage.
    Found,
    /// The engine opens, and the damage has no effect because nothing needs the damaged bytes.
    Harmless,
}

/// Damages one value of this kind in a copy. Returns a description of the value.
fn damage_value(store: &Store, path: &Path, kind: &str, damage: Damage, random: &mut Random) -> String {
    let values = &store.values[kind];
    let (key, value) = &values[random.below(values.len())];
    let mut changed = vec![(key.clone(), value.clone())];
    match damage {
        Damage::FlippedBit => damage::flip_bit(&mut changed[0].1, random),
        Damage::ZeroedPage => damage::zero_page(&mut changed[0].1, random),
        Damage::Truncated => damage::truncate(&mut changed[0].1, random),
        Damage::Rewritten => changed[0].1 = damage::rewrite(key, value, random),
        Damage::Swapped => {
            let others = if values.len() > 1 { values } else { &store.values["chunk"] };
            let others: Vec<_> = others.iter().filter(|other| other.0 != *key).collect();
            let (other, of_other) = others[random.below(others.len())];
            changed = vec![(key.clone(), of_other.clone()), (other.clone(), value.clone())];
        }
    }
    let mut options = rocksdb::Options::default();
    options.set_disable_auto_compactions(true);
    let database = rocksdb::DB::open(&options, path).unwrap();
    let mut unlogged = rocksdb::WriteOptions::default();
    unlogged.disable_wal(true);
    changed.iter().for_each(|(key, value)| database.put_opt(key, value, &unlogged).unwrap());
    database.flush().unwrap();
    proto::build_id::to_hex(key)
}

/// Damages one file of this kind in a copy. Returns the name of the file.
fn damage_file(path: &Path, kind: &str, damage: Damage, random: &mut Random) -> String {
    let is_kind = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy().contains(kind));
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(is_kind).collect();
    files.sort();
    let file = &files[random.below(files.len())];
    let mut bytes = std::fs::read(file).unwrap();
    match damage {
        Damage::FlippedBit | Damage::Rewritten => damage::flip_bit(&mut bytes, random),
        Damage::ZeroedPage => damage::zero_page(&mut bytes, random),
        Damage::Truncated => damage::truncate(&mut bytes, random),
        Damage::Swapped => damage::swap_pieces(&mut bytes, random),
    }
    // The file may be a hard link that other copies share, so it is replaced.
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
    file.file_name().unwrap().to_string_lossy().into_owned()
}

/// Kinds of essential values: the engine does not open if one is damaged.
const VITAL: [&str; 9] = [
    "format",
    "position",
    "membership",
    "clock",
    "oldest",
    "dropped",
    "tenant",
    "first period without samples",
    "labels to drop",
];

/// Checks of one damaged copy of the store.
struct Examination<'a> {
    store: &'a Store,
    path: &'a Path,
    is_file: bool,
    is_rewritten: bool,
    /// True once a response has reported damage.
    is_reported: Cell<bool>,
}

impl Examination<'_> {
    /// Runs all queries. Returns an error if a response is wrong.
    fn query(&self, engine: &Engine, wanted: &[Answered], when: &str) -> Result<(), String> {
        for (selection, wanted) in self.store.selections.iter().zip(wanted) {
            match answer(engine, selection, !self.is_rewritten) {
                _ if self.is_rewritten => {}
                Ok(got) => {
                    self.is_reported.set(self.is_reported.get() || got.as_ref().is_some_and(Answer::is_damaged));
                    let known = || engine.verify().map(|verified| verified.described);
                    check(selection, wanted.as_ref(), got.as_ref())
                        .map_err(|what| format!("{when}, {what}; known: {:?}; {selection:?}", known()))?;
                }
                Err(why) => return Err(format!("{when}, {selection:?} is not answered: {why}")),
            }
        }
        Ok(())
    }

    /// Applies a known batch again, then new batches, and queries again. Returns whether the new batches were accepted.
    fn append(&self, engine: &Engine, compacts: bool) -> Result<bool, String> {
        // After a compaction that read a damaged block, RocksDB refuses all writes until the engine is opened again.
        let allowed = |why: String| if self.is_file || self.is_rewritten { Ok(false) } else { Err(why) };
        let has_lost_ids = has_lost_ids(engine);
        match self.store.retry(engine) {
            Ok(Outcome::Applied) if self.is_file && has_lost_ids => return Ok(false),
            Ok(Outcome::Applied) if !self.is_rewritten => return Err("a retry counted twice".to_owned()),
            Ok(_) => {}
            Err(why) => return allowed(format!("a retry: {why}")),
        }
        if let Err(why) = self.store.append_more(engine) {
            return allowed(format!("new samples are refused: {why}"));
        }
        self.query(engine, &self.store.answers_after, "with new samples")?;
        // Sealing and rolling up read stored values, too.
        if compacts {
            if let Err(why) = engine.compact() {
                return allowed(format!("it does not compact: {why}"));
            }
            self.query(engine, &self.store.answers_after, "compacted")?;
        }
        Ok(true)
    }

    /// Opens the copy again, and checks all responses. Then flushes, seals and compacts everything.
    fn open_again(&self, has_appended: bool) -> Result<(), String> {
        let engine = Store::open(self.path)?;
        let index = engine.applied().map_or(0, |position| position.index as usize);
        if has_appended && index == self.store.last_index_after() {
            return self.query(&engine, &self.store.answers_after, "opened again");
        }
        self.store.replay(&engine).map_err(|error| error.to_string())?;
        self.query(&engine, &self.store.answers, "opened again")?;
        if !has_appended && index == self.store.last_index() {
            // The damaged files were repaired when the engine was opened.
            let has_lost_ids = has_lost_ids(&engine);
            let retried = self.store.retry(&engine).map_err(|why| format!("a retry when it is opened again: {why}"))?;
            let more = self.store.append_more(&engine);
            more.map_err(|why| format!("new samples are refused when it is opened again: {why}"))?;
            // A batch whose ID was lost counts twice.
            if retried != Outcome::Applied {
                self.query(&engine, &self.store.answers_after, "opened again, with new samples")?;
            } else if !has_lost_ids {
                return Err("a retry counted twice, and no ID is known to be lost".to_owned());
            }
        }
        engine.flush().map(drop).map_err(|error| format!("it does not flush when it is opened again: {error}"))?;
        engine.compact().map(drop).map_err(|error| format!("it does not compact when it is opened again: {error}"))
    }
}

/// Returns whether the engine knows that it lost IDs of batches.
fn has_lost_ids(engine: &Engine) -> bool {
    engine.damage_counts().without_batch_ids > 0
}

/// Returns whether damage of a file makes an essential value unreadable. All files except table files are essential.
fn lost_vital_values(path: &Path, kind: &str) -> bool {
    if kind != "sst" {
        return true;
    }
    let mut options = rocksdb::Options::default();
    // Without this option, the other files could not be read if one cannot be opened.
    options.set_paranoid_checks(false);
    let database = rocksdb::DB::open_for_read_only(&options, path, false).unwrap();
    let mut vital = rocksdb::ReadOptions::default();
    vital.set_iterate_upper_bound([3]);
    database.iterator_opt(rocksdb::IteratorMode::Start, vital).any(|item| item.is_err())
}

/// Examines a damaged copy. Returns an error if a response is wrong, or if it reports damage that verification does not
/// find.
fn examine(store: &Store, path: &Path, (is_file, kind, damage): Kind, compacts: bool) -> Result<Fate, String> {
    let engine = match Store::open(path) {
        Ok(engine) => engine,
        Err(why) if why.len() <= 20 => return Err(format!("an error that says nothing: {why:?}")),
        Err(_) if VITAL.contains(&kind) || is_file && lost_vital_values(path, kind) => return Ok(Fate::Refused),
        Err(why) => return Err(format!("it does not open: {why}")),
    };
    let is_earlier = engine.applied().map_or(0, |position| position.index as usize) < store.last_index();
    let is_found = engine.verify().map_or(true, |verified| verified.faults > 0);
    let is_rewritten = damage == Damage::Rewritten;
    if is_earlier && !is_rewritten && store.replay(&engine).is_err() {
        return if is_found {
            Ok(Fate::Found)
        } else {
            Err("the log cannot be applied, and nothing is found".to_owned())
        };
    }
    let examination = Examination { store, path, is_file, is_rewritten, is_reported: Cell::new(false) };
    examination.query(&engine, &store.answers, "opened")?;
    let has_appended = examination.append(&engine, compacts)?;
    drop(engine);
    if !is_rewritten {
        examination.open_again(has_appended)?;
    }
    if examination.is_reported.get() && !is_found && !is_rewritten {
        return Err("an answer reports damage that verification does not find".to_owned());
    }
    Ok(match (is_earlier, is_found) {
        (true, _) => Fate::Earlier,
        (false, true) => Fate::Found,
        (false, false) => Fate::Harmless,
    })
}

/// Runs one test case: makes a copy, damages it once, and examines it.
fn case(store: &Store, number: usize, seed: u64, (is_file, kind, damage): Kind) -> Result<Fate, String> {
    let mut random = Random::new(seed);
    let path = store.copy(number);
    let what = catch_unwind(AssertUnwindSafe(|| {
        let hit = if is_file {
            damage_file(&path, kind, damage, &mut random)
        } else {
            damage_value(store, &path, kind, damage, &mut random)
        };
        let fate = examine(store, &path, (is_file, kind, damage), random.chance(30))
            .map_err(|what| format!("{hit}: {what}"))?;
        let is_detected = matches!(fate, Fate::Refused | Fate::Found);
        if is_file || damage == Damage::Rewritten || is_detected {
            Ok(fate)
        } else {
            Err(format!("{hit} is not found"))
        }
    }));
    std::fs::remove_dir_all(&path).unwrap();
    let what = what.unwrap_or_else(|_| Err("a panic".to_owned()));
    what.map_err(|what| format!("case {number}, seed {seed}, {damage:?} {kind}: {what}"))
}

/// A kind of test case: whether a whole file is damaged (and otherwise a value), the kind of the file or value, and the
/// damage.
type Kind = (bool, &'static str, Damage);

fn kinds() -> Vec<Kind> {
    let files = FILES.into_iter().flat_map(|kind| Damage::OF_FILES.map(|damage| (true, kind, damage)));
    let values = KINDS.into_iter().flat_map(|kind| Damage::OF_VALUES.map(|damage| (false, kind, damage)));
    let wanted = std::env::var("VARVE_CORRUPTION_KIND").ok();
    files.chain(values).filter(|(_, kind, _)| wanted.as_deref().is_none_or(|wanted| wanted == *kind)).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// Returns the peak memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Maximum peak memory of this process, in bytes.
const PEAK_BYTES_MAX: u64 = 1 << 30;

/// Number of cases between two reports of progress.
const PROGRESS_EVERY: usize = 5000;

/// Environment variables: `VARVE_CORRUPTION_CASES` sets the number of cases per kind and damage,
/// `VARVE_CORRUPTION_SEED` repeats the cases of a seed, and `VARVE_CORRUPTION_KIND` selects one kind.
#[test]
fn all_damage_is_detected_and_none_is_served() {
    let cases = number("VARVE_CORRUPTION_CASES").unwrap_or(9) as usize;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("VARVE_CORRUPTION_SEED").unwrap_or(now.as_secs());
    println!("{cases} of each; again with VARVE_CORRUPTION_SEED={seed} VARVE_CORRUPTION_CASES={cases}");
    let store = Store::new();
    let lacking: Vec<_> = KINDS.iter().filter(|kind| !store.values.contains_key(*kind)).collect();
    assert!(lacking.is_empty(), "the store has no {lacking:?}: {:?}", store.values.keys());
    let kinds = kinds();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&n| n < cases * kinds.len())
                {
                    if number % PROGRESS_EVERY == PROGRESS_EVERY - 1 {
                        println!("{} of {}", number + 1, cases * kinds.len());
                    }
                    let kind = kinds[number % kinds.len()];
                    let result = case(&store, number, seed.wrapping_add(number as u64), kind);
                    results.lock().push((kind, result));
                }
            });
        }
    });
    let mut fates: BTreeMap<(bool, Damage, Fate), usize> = BTreeMap::new();
    let mut failed: Vec<String> = Vec::new();
    for ((is_file, _, damage), result) in results.into_inner() {
        match result {
            Ok(fate) => *fates.entry((is_file, damage, fate)).or_default() += 1,
            Err(what) => failed.push(what),
        }
    }
    for ((is_file, damage, fate), count) in &fates {
        println!("{} {damage:?}: {count} {fate:?}", if *is_file { "files" } else { "values" });
    }
    println!("peak {} MB", peak_bytes() >> 20);
    failed.truncate(10);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(peak_bytes() < PEAK_BYTES_MAX, "{} bytes of memory", peak_bytes());
}

/// The loss of a whole value breaks no checksum. It must be found because the finer or the coarser tier has the same
/// samples.
#[test]
fn a_lost_value_is_found_if_another_tier_refers_to_it() {
    let store = Store::new();
    let mut number = 0;
    // Not all losses are found. Last points of gauges do not add up, and stale windows are not compared.
    for (kind, found_min) in [("chunk", 12), ("1m windows", 9), ("1h windows", 7), ("1d windows", 7)] {
        let values = &store.values[kind];
        let (mut found, mut lost) = (0, 0);
        for (key, _) in values.iter().step_by(values.len() / 12).take(12) {
            number += 1;
            let path = store.copy(number);
            let mut options = rocksdb::Options::default();
            options.set_disable_auto_compactions(true);
            let database = rocksdb::DB::open(&options, &path).unwrap();
            database.delete(key).unwrap();
            drop(database);
            let verified = Store::open(&path).unwrap().verify().unwrap();
            found += usize::from(verified.faults > 0);
            lost += 1;
            std::fs::remove_dir_all(&path).unwrap();
        }
        println!("{kind}: {found} of {lost}");
        assert!(found >= found_min && lost == 12, "{kind}: {found} of {lost}");
    }
}

// Regression: a query of the time without minutes was planned again and again, without end.
#[test]
fn raw_samples_without_minutes_are_found_and_reported_as_damaged() {
    let store = Store::new();
    let path = store.copy(0);
    let database = rocksdb::DB::open(&rocksdb::Options::default(), &path).unwrap();
    let mut unlogged = rocksdb::WriteOptions::default();
    unlogged.disable_wal(true);
    let of_minutes = store.values.iter().filter(|(kind, _)| kind.starts_with("1m")).flat_map(|(_, values)| values);
    of_minutes.for_each(|(key, _)| database.delete_opt(key, &unlogged).unwrap());
    database.flush().unwrap();
    drop(database);
    let (said, hears) = std::sync::mpsc::channel();
    let asking = std::thread::spawn(move || {
        let engine = Store::open(&path).unwrap();
        said.send(engine.verify().unwrap().faults).unwrap();
        // The loop ends when the other thread drops the receiver.
        let _ended = (store.selections.iter()).try_for_each(|selection| {
            said.send(
                answer(&engine, selection, true)
                    .is_ok_and(|answer| answer.is_some_and(|answer| answer.is_damaged()))
                    .into(),
            )
        });
    });
    let hear = || hears.recv_timeout(std::time::Duration::from_secs(60)).expect("it goes on for ever");
    assert!(hear() > 0, "nothing is found");
    assert_eq!(hear(), 1, "an answer does not report its raw samples as damaged");
    // The thread closes RocksDB. It must end before the process runs its exit handlers.
    drop(hears);
    asking.join().unwrap();
}

/// RocksDB itself would read such a list of files without end.
#[test]
fn a_list_of_files_with_a_record_of_a_recycled_log_is_refused() {
    let store = Store::new();
    let path = store.copy(0);
    let list = path.join(std::fs::read_to_string(path.join("CURRENT")).unwrap().trim());
    let bytes = std::fs::read(&list).unwrap();
    let (mut at, mut records) = (0, 0);
    while at + 7 < bytes.len() && bytes[at + 6] != 0 {
        let mut damaged = bytes.clone();
        damaged[at + 6] ^= 4;
        std::fs::write(&list, damaged).unwrap();
        let error = Store::open(&path).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(&format!("the record at byte {at}"))), "{error:?}");
        at += 7 + usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        records += 1;
    }
    assert!(records > 2, "{records}");
    std::fs::write(&list, bytes).unwrap();
    Store::open(&path).unwrap();
}
