//! Tests of two kinds of damage: chunks that a repair lost, and damaged blocks of a table file that hold one kind of
//! key. The tests construct this damage, because random damage rarely hits only such keys.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proto::entry::Deletion;
use proto::selection::Operation;
use proto::{Command, Entry, Fold, Matcher, Selection, TenantId, Tier, Window};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Outcome, Position};
use storage_model::samples::{DAY, SECOND, T0, batch_of};
use storage_model::world;

use super::damage::in_frame;
use super::store::{Answered, Store, Stored, answer, apply, check, kind_of, samples};

/// Prefixes of the keys of essential values, without which the engine does not open.
const VITAL_KEYS: [&[u8]; 8] = [b"\0f", b"\0a", b"\0m", b"\0c", b"\0o", b"\0x", &[1], &[2]];

pub(super) fn database(path: &Path) -> rocksdb::DB {
    let mut options = rocksdb::Options::default();
    options.set_disable_auto_compactions(true);
    options.set_compression_type(rocksdb::DBCompressionType::None);
    rocksdb::DB::open(&options, path).unwrap()
}

/// Writes values to the database and deletes keys, without the engine.
pub(super) fn write(path: &Path, put: &[Stored], deleted: &[Vec<u8>]) {
    let database = database(path);
    let mut batch = rocksdb::WriteBatch::default();
    put.iter().for_each(|(key, value)| batch.put(key, value));
    deleted.iter().for_each(|key| batch.delete(key));
    database.write(batch).unwrap();
    database.flush().unwrap();
}

/// Compacts the database into one level, so that each key is in only one block.
pub(super) fn compact(path: &Path) {
    database(path).compact_range(None::<&[u8]>, None::<&[u8]>);
}

/// Flips a bit of a value in its table file, so that the value's block cannot be read. Essential values must stay
/// readable.
pub(super) fn break_block_of(path: &Path, (key, value): &Stored) {
    let is_table = |file: &std::path::PathBuf| file.extension().is_some_and(|extension| extension == "sst");
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(is_table);
    let mut broken = 0;
    for file in files {
        let mut bytes = std::fs::read(&file).unwrap();
        let Some(at) = bytes.windows(value.len()).position(|bytes| bytes == value.as_slice()) else { continue };
        bytes[at + 1] ^= 1;
        // The file may be a hard link that other copies share, so it is replaced.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, bytes).unwrap();
        broken += 1;
    }
    assert_eq!(broken, 1, "the value is in one file");
    let database = database(path);
    assert!(database.get(key).is_err(), "its block is damaged");
    for vital in VITAL_KEYS {
        let from = rocksdb::IteratorMode::From(vital, rocksdb::Direction::Forward);
        let first = database.iterator(from).next().unwrap();
        assert!(first.is_ok_and(|(key, _)| key.starts_with(vital)), "a vital value is in the same block");
    }
}

fn answers(store: &Store, engine: &Engine) -> Vec<Answered> {
    store.selections.iter().map(|selection| answer(engine, selection, true).unwrap()).collect()
}

pub(super) fn check_all(store: &Store, engine: &Engine, wanted: &[Answered], when: &str) {
    for (selection, wanted) in store.selections.iter().zip(wanted) {
        let got = answer(engine, selection, true).unwrap_or_else(|why| panic!("{when}: {selection:?}: {why}"));
        check(selection, wanted.as_ref(), got.as_ref()).unwrap_or_else(|what| panic!("{when}: {what}: {selection:?}"));
    }
}

/// Opens a copy with a damaged file and checks it, then opens it again, which repairs the file, and checks again.
fn check_repaired(store: &Store, path: &Path) {
    let engine = Store::open(path).unwrap();
    check_all(store, &engine, &store.answers, "opened");
    assert!(engine.needs_repair(), "the damaged file is not listed");
    engine.flush().unwrap();
    drop(engine);
    let engine = Store::open(path).unwrap();
    assert!(!engine.has_damaged_files(), "{:?}", engine.repair_failure());
    check_all(store, &engine, &store.answers, "repaired");
    store.retry(&engine).unwrap();
    store.append_more(&engine).unwrap();
    check_all(store, &engine, &store.answers_after, "with new samples");
    engine.compact().unwrap();
    check_all(store, &engine, &store.answers_after, "compacted");
}

/// A time whose windows are sealed. The store's last batch has late samples near this time.
const LATE: i64 = T0 - 8500 * SECOND;

/// Returns the values of a kind in the partition of [`LATE`].
fn late_values(store: &Store, kind: &str) -> Vec<Stored> {
    let start = (LATE / (6 * 3600 * SECOND)) as u32;
    store.values[kind].iter().filter(|(key, _)| key[3..7] == start.to_be_bytes()).cloned().collect()
}

/// Returns an upper bound of all keys with a prefix.
pub(super) fn after(prefix: &[u8]) -> Vec<u8> {
    [prefix, &[0xff; 20]].concat()
}

/// Returns the record that a repair lost the keys from `from`, inclusive, to `to`, exclusive.
pub(super) fn record_of_lost(from: &[u8], to: &[u8]) -> Stored {
    let key = [&[5], from].concat();
    let payload = [(to.len() as u32).to_be_bytes().as_slice(), to, b"lost"].concat();
    (key.clone(), in_frame(&key, &payload))
}

/// Returns the keys of all stale marks.
fn marks(store: &Store) -> Vec<Vec<u8>> {
    store.values["stale window"].iter().map(|(key, _)| key.clone()).collect()
}

/// Removes all chunks of a partition whose windows are sealed, as a repair that lost these chunks would.
fn lose_chunks(store: &Store, path: &Path) {
    let chunks: Vec<Vec<u8>> = late_values(store, "chunk").into_iter().map(|(key, _)| key).collect();
    let section = &chunks[0][..12];
    write(path, &[record_of_lost(section, &after(section))], &chunks);
}

// Regression: sealing treated the chunks as gone with their definitions, and wrote the minutes from late samples only.
#[test]
fn late_samples_do_not_replace_minutes_whose_chunks_were_lost() {
    let store = Store::new();
    let path = store.copy(0);
    lose_chunks(&store, &path);
    let engine = Store::open(&path).unwrap();
    check_all(&store, &engine, &store.answers, "opened");
    store.retry(&engine).unwrap();
    store.append_more(&engine).unwrap();
    engine.compact().unwrap();
    check_all(&store, &engine, &store.answers_after, "compacted");
}

// Regression: a deletion found no chunks to delete, and left the minutes that were made from them.
#[test]
fn minutes_whose_chunks_were_lost_are_deleted() {
    let store = Store::new();
    let paths = [store.copy(0), store.copy(1)];
    lose_chunks(&store, &paths[1]);
    let engines = paths.map(|path| Store::open(&path).unwrap());
    let matcher = Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value: "s1".to_owned() };
    let window = Window { start_ns: T0 - 20_000 * SECOND, end_ns: T0 + DAY };
    let deletion = Deletion { tenant: TenantId::default_tenant(), matchers: vec![matcher], window };
    let entry = Entry { proposed_at_ns: T0 + 1200 * SECOND, command: Command::Delete(deletion) };
    for engine in &engines {
        store.retry(engine).unwrap();
        let outcome = apply(engine, store.last_index() + 2, &Some(entry.clone())).unwrap();
        assert!(matches!(outcome, Outcome::Deleted { .. }), "{outcome:?}");
        engine.compact().unwrap();
    }
    check_all(&store, &engines[1], &answers(&store, &engines[0]), "deleted");
}

// Regression: an engine with unreadable stale marks did not open.
#[test]
fn stale_marks_in_a_damaged_block_are_restored() {
    let store = Store::new();
    let path = store.copy(0);
    // Stale marks of the same window, of series that do not exist: enough marks to fill several blocks.
    let (mark, _) = store.values["stale window"].iter().find(|(key, _)| key[1] == 2).unwrap();
    let filler = |series: u32| {
        let key = [&mark[..11], &series.to_be_bytes()].concat();
        (key.clone(), in_frame(&key, &[]))
    };
    let fillers: Vec<Stored> = (1000..5000).map(filler).collect();
    write(&path, &fillers, &[]);
    compact(&path);
    break_block_of(&path, &fillers[2000]);
    check_repaired(&store, &path);
}

// Regression: a restored mark was written again after its deletion in the same write, and all chunks were written anew.
#[test]
fn only_minutes_that_may_be_wrong_are_made_again_if_marks_are_lost() {
    let store = Store::new();
    let path = store.copy(0);
    // Windows with late samples in the head. Without their minutes, they look like windows that were evicted.
    let minutes_of = |head: &[u8]| [&[0x10, 1], &head[2..11], b"w", &head[16..20], &head[12..16]].concat();
    let evicted: BTreeSet<Vec<u8>> = late_values(&store, "head").iter().map(|(key, _)| minutes_of(key)).collect();
    let is_evicted = |chunk: &[u8]| evicted.contains(&[&[0x10, 1], &chunk[2..11], b"w", &chunk[12..20]].concat());
    let (removed, intact): (Vec<Stored>, Vec<Stored>) =
        late_values(&store, "chunk").into_iter().partition(|(key, _)| is_evicted(key));
    assert!(!removed.is_empty() && !intact.is_empty());
    let deleted = [marks(&store), evicted.iter().cloned().collect()].concat();
    write(&path, &[record_of_lost(&[3], &[4])], &deleted);
    let engine = Store::open(&path).unwrap();
    check_all(&store, &engine, &store.answers, "opened");
    engine.compact().unwrap();
    check_all(&store, &engine, &store.answers, "compacted");
    drop(engine);
    let database = database(&path);
    for (chunk, _) in &intact {
        assert!(database.get(chunk).unwrap().is_some(), "an intact chunk was written anew");
    }
    for (chunk, _) in &removed {
        let minutes = [&[0x10, 1], &chunk[2..11], b"w", &chunk[12..20]].concat();
        assert!(database.get(minutes).unwrap().is_some(), "the minutes are missing");
    }
    let from = rocksdb::IteratorMode::From(&[3, 1], rocksdb::Direction::Forward);
    let left = database.iterator(from).map(|item| item.unwrap().0).take_while(|key| key.starts_with(&[3, 1]));
    assert_eq!(left.count(), 0, "marks of sealed windows are left");
}

// Regression: the hours were summed again from the minutes that were left, so samples were missing without a report.
#[test]
fn hours_of_damaged_minutes_stay_if_stale_marks_are_lost() {
    let store = Store::new();
    // Raw samples of this time have expired, so these minutes cannot be made again.
    let (minutes, _) = &store.values["1m windows"][0];
    let chunk = u32::from_be_bytes(minutes[16..20].try_into().unwrap());
    let is_made_of = |key: &[u8]| key[16..20] == (chunk / 6).to_be_bytes();
    let hours: Vec<&Stored> = store.values["1h windows"].iter().filter(|(key, _)| is_made_of(key)).collect();
    assert!(!hours.is_empty());
    let lost_marks = record_of_lost(&[3], &[4]);
    let lost_minutes = record_of_lost(minutes, &[minutes.as_slice(), &[0]].concat());
    let deleted = [marks(&store), vec![minutes.clone()]].concat();
    let damaged = (minutes.clone(), vec![0; 20]);
    let copies = [
        (store.copy(0), vec![lost_marks.clone(), lost_minutes], deleted),
        (store.copy(1), vec![lost_marks, damaged], marks(&store)),
    ];
    for (path, put, deleted) in copies {
        write(&path, &put, &deleted);
        let engine = Store::open(&path).unwrap();
        check_all(&store, &engine, &store.answers, "opened");
        engine.compact().unwrap();
        check_all(&store, &engine, &store.answers, "compacted");
        drop(engine);
        let database = database(&path);
        for (key, value) in &hours {
            assert_eq!(database.get(key).unwrap().as_ref(), Some(value), "it was summed again");
        }
    }
}

// Regression: such an hour was neither marked stale nor reported as damaged.
#[test]
fn an_hour_whose_mark_and_minutes_are_all_lost_is_reported() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let engine = Engine::open(world::config(&path)).unwrap();
    let append = Command::Append(Arc::new(batch_of(&samples(-8000, 0, 10), None)));
    // The entry advances the clock, so that all samples are sealed. The last hour is not over then.
    let expire = Command::Expire { tier: Tier::Raw, retention_class: 0, before_ns: T0 - DAY };
    for (index, (after, command)) in (1..).zip([(0, append), (700, expire)]) {
        let entry = Entry { proposed_at_ns: T0 + after * SECOND, command };
        assert_eq!(apply(&engine, index, &Some(entry)).unwrap(), Outcome::Applied);
    }
    engine.flush().unwrap();
    let wanted = answers(&store, &engine);
    drop(engine);
    let stored = database(&path);
    let keys: Vec<Vec<u8>> =
        stored.iterator(rocksdb::IteratorMode::Start).map(|item| item.unwrap().0.into_vec()).collect();
    drop(stored);
    assert!(!keys.iter().any(|key| kind_of(key) == Some("head")), "the head would be reported");
    let mark = keys.iter().find(|key| key.starts_with(&[3, 2])).unwrap();
    let start = u32::from_be_bytes(mark[3..7].try_into().unwrap()) / 6;
    let is_source = |key: &&Vec<u8>| key.starts_with(&[0x10, 1]) && key[3..7] == start.to_be_bytes();
    let source = &keys.iter().find(is_source).unwrap()[..11];
    let is_lost = |key: &&Vec<u8>| key[0] == 3 || key.starts_with(source);
    let lost: Vec<Vec<u8>> = keys.iter().filter(is_lost).cloned().collect();
    write(&path, &[record_of_lost(&[3], &[4]), record_of_lost(source, &after(source))], &lost);
    let engine = Engine::open(world::config(&path)).unwrap();
    check_all(&store, &engine, &wanted, "opened");
    engine.compact().unwrap();
    check_all(&store, &engine, &wanted, "compacted");
}

// Regression: areas that could not be read were forgotten, and no repair succeeded.
#[test]
fn areas_in_a_damaged_block_are_replaced_by_larger_ones() {
    let store = Store::new();
    let path = store.copy(0);
    // The sums of this hour are lost, and no other tier shows that.
    let hour = ((T0 - 140_000 * SECOND) / (3600 * SECOND)) as u32;
    let hours = &store.values["1h windows"];
    let (hour, _) = hours.iter().find(|(key, _)| key[12..20] == [0_u32, hour].map(u32::to_be_bytes).concat()).unwrap();
    let area = |series: u32, window: &[u8]| {
        let series = series.to_be_bytes();
        let key = [&[4], &hour[1..11], &series, &series, window, window].concat();
        (key.clone(), in_frame(&key, b"damaged"))
    };
    let lost = area(0, &hour[16..20]);
    // Records of areas that do not exist are stored before and after it, so that they fill blocks.
    let earlier = (0..1000_u32).map(|window| area(0, &window.to_be_bytes()));
    let later = (1000..2000).map(|series| area(series, &[0; 4]));
    let areas: Vec<Stored> = earlier.chain([lost.clone()]).chain(later).collect();
    write(&path, &areas, std::slice::from_ref(hour));
    compact(&path);
    break_block_of(&path, &lost);
    check_repaired(&store, &path);
}

// Regression: such records were ignored if the damaged keys began before them. Otherwise, the engine did not open.
#[test]
fn records_of_lost_keys_in_a_damaged_block_are_replaced_by_areas() {
    let store = Store::new();
    // The sums of this hour are lost, and no other tier shows that.
    let hour = ((T0 - 140_000 * SECOND) / (3600 * SECOND)) as u32;
    let hours = store.values["1h windows"].iter().map(|(key, _)| key.clone());
    let hours: Vec<Vec<u8>> = hours.filter(|key| key[16..20] == hour.to_be_bytes()).collect();
    let lost = record_of_lost(&hours[0], &[hours[0].as_slice(), &[0]].concat());
    let path = store.copy(0);
    // Records about partitions that do not exist are stored before and after it, so that they fill blocks.
    let filler = |tier: u8, number: u32| {
        let key = [[0x10, tier].as_slice(), &[0xff], &number.to_be_bytes()].concat();
        record_of_lost(&key, &[key.as_slice(), &[0]].concat())
    };
    let fillers = (0..1000).flat_map(|number| [filler(1, number), filler(3, number)]);
    let records: Vec<Stored> = fillers.chain([lost.clone()]).collect();
    write(&path, &records, &hours[..1]);
    compact(&path);
    break_block_of(&path, &lost);
    check_repaired(&store, &path);
    let path = store.copy(1);
    write(&path, &[record_of_lost(&[4, 0xff], &[0x10])], &hours[..1]);
    check_all(&store, &Store::open(&path).unwrap(), &store.answers, "the damage begins before the records");
}

// Regression: partitions were looked for only at the times of readable partitions, so samples were missing silently.
#[test]
fn partitions_that_lost_the_keys_of_all_tiers_are_reported() {
    let store = Store::new();
    let raw: BTreeSet<Vec<u8>> = store.values["chunk"].iter().map(|(key, _)| key[..11].to_vec()).collect();
    let minutes = store.values["1m windows"].iter().map(|(key, _)| key[..11].to_vec()).next().unwrap();
    for (number, from) in raw.iter().chain([&minutes]).enumerate() {
        let path = store.copy(number);
        let start = rocksdb::IteratorMode::From(from, rocksdb::Direction::Forward);
        let keys = database(&path).iterator(start).map(|item| item.unwrap().0.into_vec()).collect::<Vec<_>>();
        let lost: Vec<Vec<u8>> = keys.into_iter().filter(|key| key[0] == 0x10).collect();
        assert!([1, 2, 3].iter().all(|tier| lost.iter().any(|key| key[1] == *tier)), "all tiers lose keys");
        write(&path, &[record_of_lost(from, &[0x11])], &lost);
        let engine = Store::open(&path).unwrap();
        check_all(&store, &engine, &store.answers, "opened");
        drop(engine);
        check_all(&store, &Store::open(&path).unwrap(), &store.answers, "opened again");
    }
}

// Regression: if samples were newer than the log's time, the reported area of the partition was only one window.
#[test]
fn damaged_partitions_ahead_of_the_time_of_the_log_are_reported() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let engine = Engine::open(world::config(&path)).unwrap();
    let command = Command::Append(Arc::new(batch_of(&samples(-8000, 0, 10), None)));
    let position = Position { index: 1, log_id: Bytes::new() };
    engine.apply(position, &Entry { proposed_at_ns: T0 - 10 * DAY, command }).unwrap();
    engine.compact().unwrap();
    let wanted = answers(&store, &engine);
    drop(engine);
    let definitions = database(&path);
    let items = definitions.iterator(rocksdb::IteratorMode::Start).map(Result::unwrap);
    let broken: Vec<_> = items.filter(|(key, _)| kind_of(key) == Some("1m series")).collect();
    drop(definitions);
    let broken: Vec<Stored> = broken.into_iter().map(|(key, _)| (key.to_vec(), vec![0; 20])).collect();
    write(&path, &broken, &[]);
    let engine = Engine::open(world::config(&path)).unwrap();
    check_all(&store, &engine, &wanted, "opened");
}

/// The replacement of a partition is evicted and read again, while the damaged block of the old one still exists.
#[test]
fn a_replaced_partition_keeps_its_new_samples() {
    let store = Store::new();
    let path = store.copy(0);
    compact(&path);
    break_block_of(&path, late_values(&store, "1m dictionary").last().unwrap());
    // Such a small budget evicts every unused partition after each flush.
    let budgets = Budgets::new(BudgetSizes { dictionary_bytes_max: 1, ..world::BUDGETS });
    let config = Config { budgets, ..world::config(&path) };
    let engine = Engine::open(config).unwrap();
    let append = |after: i64, from: i64| {
        let batch = batch_of(&samples(from, from + 100, 3), None);
        let command = Command::Append(Arc::new(batch));
        let index = store.last_index() + after as usize;
        let entry = Entry { proposed_at_ns: T0 + (1200 + after) * SECOND, command };
        assert_eq!(apply(&engine, index, &Some(entry)).unwrap(), Outcome::Applied);
        // The samples are sealed, because a partition with samples in memory is not evicted.
        engine.compact().unwrap();
    };
    for i in 1..5 {
        append(i, -8900 + i * 100);
        // Reading other partitions evicts those that are not used.
        let _read = answers(&store, &engine);
    }
    assert!(engine.needs_repair(), "the damaged file is not listed");
    let window = Window { start_ns: T0 - 8801 * SECOND, end_ns: T0 - 8300 * SECOND };
    let new = engine.select(&Selection { fold: Fold::Points(window), ..store.selections[0].clone() }).unwrap();
    assert_eq!(new.samples, 4 * samples(0, 100, 3).len() as u64, "new samples are lost");
}
