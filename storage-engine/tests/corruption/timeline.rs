//! Damaged timelines: verification must find a timeline that does not fit the chunk's events.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proto::{Command, Entry};
use storage_engine::{Engine, Outcome, Position};
use storage_model::samples::{Drawn, SECOND, T0, batch_of};
use storage_model::world;

/// Bit in a chunk's flags that is set if the chunk has a timeline (`FORMAT.md`).
const HAS_TIMELINE: u8 = 2;

/// Returns samples over four minutes, all of one chunk. Sample number 1000 is moved to the tenth of a second with the
/// number `moved`.
fn samples(moved: i64) -> Vec<Drawn> {
    let first = 600 - T0 / SECOND % 600;
    let drawn = |i: i64| {
        let tenth = if i == 1000 { moved } else { i };
        // Without these irregular times, events would be so small that no timeline would fit beside them.
        let jitter = ((i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i64 * 4;
        Drawn {
            service: 0,
            time: first * SECOND + tenth * SECOND / 10 + 7 + jitter,
            user: (i % 6) as u8,
            kernel: 0,
            value: 52,
            thread: 1,
        }
    };
    (0..2400).map(drawn).collect()
}

/// Creates a store with one sealed chunk. Returns the key and the value of the chunk.
fn store(path: &Path, samples: &[Drawn]) -> (Vec<u8>, Vec<u8>) {
    let engine = Engine::open(world::config(path)).unwrap();
    let command = Command::Append(Arc::new(batch_of(samples, None)));
    let entry = Entry { proposed_at_ns: T0, command };
    let position = Position { index: 1, log_id: Bytes::new() };
    assert_eq!(engine.apply(position, &entry).unwrap(), Outcome::Applied);
    engine.compact().unwrap();
    assert_eq!(engine.verify().unwrap().described, Vec::<String>::new());
    drop(engine);
    let database = rocksdb::DB::open_for_read_only(&rocksdb::Options::default(), path, false).unwrap();
    let items = database.iterator(rocksdb::IteratorMode::Start).map(Result::unwrap);
    let mut chunks = items.filter(|(key, _)| super::store::kind_of(key) == Some("chunk"));
    let (key, value) = chunks.next().unwrap();
    assert!(chunks.next().is_none(), "all samples are in one chunk");
    (key.to_vec(), value.to_vec())
}

fn take(bytes: &mut &[u8]) -> usize {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let number = bytes[..length].iter().rev().fold(0, |number, byte| number << 7 | usize::from(byte & 0x7f));
    *bytes = &bytes[length..];
    number
}

/// Splits the content of a chunk into the part before the timeline, the timeline, and the part after it.
fn parts(value: &[u8]) -> [&[u8]; 3] {
    let content = &value[5..];
    assert_eq!(content[0] & HAS_TIMELINE, HAS_TIMELINE, "there is a timeline");
    let mut rest = &content[1..];
    // Six varints: samples, total, first time, last time, unit, and the length of the sums.
    let sums = (0..6).map(|_| take(&mut rest)).last().unwrap();
    rest = &rest[sums..];
    let before = content.len() - rest.len();
    let length = take(&mut rest);
    let (_, behind) = rest.split_at(length);
    [&content[..before], &content[before..content.len() - behind.len()], behind]
}

#[test]
fn a_timeline_of_other_samples_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (key, value) = store(&path, &samples(1000));
    let (_, other) = store(&folder.path().join("other"), &samples(1500));
    let ([before, timeline, behind], [_, of_other, _]) = (parts(&value), parts(&other));
    assert_ne!(timeline, of_other, "one sample is in another bin");
    for (put, found) in [(timeline, None), (of_other, Some("the timeline differs from that of the events"))] {
        let content = [before, put, behind].concat();
        let sealed = super::damage::in_frame(&key, &content);
        assert_eq!(sealed == value, found.is_none());
        let database = rocksdb::DB::open_default(&path).unwrap();
        database.put(&key, &sealed).unwrap();
        database.flush().unwrap();
        drop(database);
        let verified = Engine::open(world::config(&path)).unwrap().verify().unwrap();
        assert_eq!(verified.faults > 0, found.is_some(), "{:?}", verified.described);
        let is_described = |what: &str| verified.described.iter().any(|fault| fault.contains(what));
        assert!(found.is_none_or(is_described), "{:?}", verified.described);
    }
}
