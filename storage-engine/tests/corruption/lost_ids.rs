//! Tests of IDs of batches that a repair lost.

use std::collections::BTreeSet;

use proto::{Command, Entry, Tier};
use storage_engine::{Engine, Outcome};
use storage_model::samples::SECOND;

use super::damage::in_frame;
use super::lost::{after, break_block_of, check_all, compact, database, record_of_lost, write};
use super::store::{Store, Stored, apply};

// Regression: a replica that lost batch IDs was not known to be damaged, so it was not replaced, and counted retries
// twice that other replicas refused.
#[test]
fn lost_batch_ids_are_known_until_their_partition_is_dropped() {
    let store = Store::new();
    let path = store.copy(0);
    let ids: Vec<Vec<u8>> = store.values["batch id"].iter().map(|(key, _)| key.clone()).collect();
    let sections: BTreeSet<&[u8]> = ids.iter().map(|key| &key[..12]).collect();
    let records: Vec<Stored> = sections.iter().map(|section| record_of_lost(section, &after(section))).collect();
    write(&path, &records, &ids);
    let lost = |engine: &Engine| engine.damage_counts().without_batch_ids;
    let partitions = sections.len() as u64;
    let engine = Store::open(&path).unwrap();
    assert_eq!(lost(&engine), partitions, "opened");
    check_all(&store, &engine, &store.answers, "no response is wrong");
    assert_eq!(engine.damage_counts().windows, 0);
    engine.flush().unwrap();
    drop(engine);
    let engine = Store::open(&path).unwrap();
    assert_eq!(lost(&engine), partitions, "opened again");
    let verified = engine.verify().unwrap();
    assert_eq!((verified.faults, verified.described.len() as u64), (0, partitions), "{:?}", verified.described);
    assert!(verified.described.iter().all(|text| text.contains("batch IDs are lost")), "{:?}", verified.described);
    assert_eq!(store.retry(&engine).unwrap(), Outcome::Applied, "the ID is not lost");
    let end = |key: &[u8]| (i64::from(u32::from_be_bytes(key[3..7].try_into().unwrap())) + 1) * 6 * 3600 * SECOND;
    let newest_ns = ids.iter().map(|key| end(key)).max().unwrap();
    let command = Command::Expire { tier: Tier::Minute, retention_class: 0, before_ns: newest_ns };
    let entry = Entry { proposed_at_ns: newest_ns, command };
    apply(&engine, store.last_index() + 2, &Some(entry)).unwrap();
    assert_eq!(lost(&engine), 0, "the partitions are dropped");
    engine.flush().unwrap();
    drop(engine);
    let left = database(&path);
    let from = rocksdb::IteratorMode::From(&[4], rocksdb::Direction::Forward);
    let left = left.iterator(from).map(|item| item.unwrap().0).take_while(|key| key[0] == 4).count();
    assert_eq!(left, 0, "the records of dropped partitions are dropped");
}

/// Regression: a block of batch IDs that could not be read was not reported.
#[test]
fn an_unreadable_block_of_batch_ids_is_known_after_a_lookup() {
    let store = Store::new();
    let path = store.copy(0);
    // Further IDs, in the partition of the batch that is sent again, fill blocks.
    let ids = &store.values["batch id"];
    let sections: BTreeSet<&[u8]> = ids.iter().map(|(key, _)| &key[..12]).collect();
    let further = sections.iter().flat_map(|section| {
        (0..2000_u128).map(|number| {
            let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let key = [section, id.to_be_bytes().as_slice()].concat();
            (key.clone(), in_frame(&key, b""))
        })
    });
    write(&path, &further.collect::<Vec<_>>(), &[]);
    compact(&path);
    let lost = |engine: &Engine| engine.damage_counts().without_batch_ids;
    for id in ids {
        break_block_of(&path, id);
    }
    let engine = Store::open(&path).unwrap();
    assert_eq!((lost(&engine), engine.needs_repair()), (0, false), "nothing has read the blocks");
    assert_eq!(store.retry(&engine).unwrap(), Outcome::Applied);
    assert!(engine.needs_repair() && lost(&engine) > 0, "the lookup does not note the damage");
    engine.flush().unwrap();
    drop(engine);
    let engine = Store::open(&path).unwrap();
    assert!(engine.are_files_repaired() && lost(&engine) > 0, "repaired");
    drop(engine);
    assert!(lost(&Store::open(&path).unwrap()) > 0, "opened again");
}
