//! The spool's files: restarts, damage, limits, and foreign files.

use std::os::unix::fs::symlink;

use prometheus_client::registry::Registry;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use tempfile::TempDir;

use super::*;

/// A folder, and the counters of the spools opened in it.
struct Setup {
    folder: TempDir,
    registry: Registry,
    status: Status,
}

impl Setup {
    fn new() -> Self {
        let mut registry = Registry::default();
        let status = Status::new(&mut registry);
        Self { folder: tempfile::tempdir().unwrap(), registry, status }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("made/by/the/agent")
    }

    fn open(&self, bytes_max: u64) -> Spool {
        Spool::open(&SpoolConfig { dir: self.dir(), bytes_max }, self.status.clone()).unwrap()
    }

    /// Returns the names of the request files, the oldest first.
    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<_> = names.filter(|name| name.ends_with(".export")).collect();
        files.sort();
        files
    }

    fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("varve_agent_{name} ")));
        line.map_or(0, |value| value.parse().unwrap())
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.metric(&format!("samples_dropped_total{{reason=\"{reason}\"}}"))
    }
}

const MIB: u64 = 1 << 20;

fn export(number: u64, bytes: usize) -> Export {
    let body = (0..bytes).map(|i| (i as u64 * 7 + number) as u8).collect::<Vec<_>>();
    let key = IdempotencyKey { run: 0xfeed << 64, number };
    Export { key, request: EncodedRequest { bytes: body.into(), profile_samples: [1, number].into() } }
}

fn file_of(export: &Export) -> Vec<u8> {
    [&*encode_head(export), &*export.request.bytes].concat()
}

fn is_same(a: &Export, b: &Export) -> bool {
    (a.key, &a.request.bytes, &a.request.profile_samples) == (b.key, &b.request.bytes, &b.request.profile_samples)
}

/// Removes all requests, the oldest first. Returns the numbers of their keys.
fn drain(spool: &mut Spool) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(export) = spool.start(End::Oldest) {
        numbers.push(export.key.number);
        assert!(spool.finish());
    }
    numbers
}

#[test]
fn requests_are_returned_unchanged_and_in_order_after_a_restart() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=3 {
        spool.push(&export(number, 5000)).unwrap();
    }
    drop(spool);
    let mut spool = setup.open(MIB);
    // This request is newer than those of the earlier run.
    spool.push(&export(4, 0)).unwrap();
    assert_eq!(setup.metric("spool_bytes"), 3 * 8192 + 4096);
    assert!(is_same(&spool.start(End::Newest).unwrap(), &export(4, 0)));
    assert!(spool.put_back());
    assert!(!spool.put_back() && !spool.finish(), "no request is being sent");
    for number in 1..=4 {
        let bytes = if number == 4 { 0 } else { 5000 };
        assert!(is_same(&spool.start(End::Oldest).unwrap(), &export(number, bytes)));
        assert!(spool.finish());
    }
    assert!(spool.start(End::Oldest).is_none());
    assert_eq!((setup.files().len(), setup.metric("spool_bytes")), (0, 0));
    assert_eq!(setup.status.snapshot().dropped, 0);
}

#[test]
fn every_prefix_and_every_flipped_bit_is_detected() {
    let whole = file_of(&export(3, 100));
    assert!(is_same(&decode(whole.clone().into()).unwrap(), &export(3, 100)));
    for len in 0..whole.len() {
        assert!(decode(whole[..len].to_vec().into()).is_err(), "{len}");
    }
    for bit in 0..8 * whole.len() {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(flipped.into()).is_err(), "{bit}");
    }
}

#[test]
fn no_content_with_a_valid_checksum_makes_the_decoder_panic() {
    let mut random = SplitMix64::seed_from_u64(1);
    for len in (0..200).chain([4096, 70_000]) {
        let mut file = [&MAGIC[..], &[0; 8]].concat();
        file.extend((0..len).map(|_| random.next_u64() as u8));
        let checksum = xxh3_64(&file[16..]);
        file[8..16].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(export) = decode(file.clone().into()) {
            let _any = export.request.samples();
        }
    }
}

#[test]
fn torn_files_are_removed_and_counted_by_their_names() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=5 {
        spool.push(&export(number, 100)).unwrap();
    }
    drop(spool);
    let files: Vec<_> = setup.files().iter().map(|name| setup.dir().join(name)).collect();
    // One file is empty and one is cut short, as after a power cut. Another program has overwritten a third.
    fs::write(&files[0], "").unwrap();
    fs::OpenOptions::new().write(true).open(&files[2]).unwrap().set_len(100).unwrap();
    fs::write(&files[3], "not an export at all").unwrap();
    let mut spool = setup.open(MIB);
    assert_eq!(drain(&mut spool), [2, 5]);
    assert_eq!(setup.dropped("spool_damaged"), 2 + 4 + 5);
    assert_eq!(setup.files().len(), 0);
}

#[test]
fn a_removed_or_extended_file_is_counted() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=3 {
        spool.push(&export(number, 100)).unwrap();
    }
    fs::remove_file(setup.dir().join(&setup.files()[0])).unwrap();
    let long = fs::OpenOptions::new().write(true).open(setup.dir().join(&setup.files()[0])).unwrap();
    long.set_len(1 << 40).unwrap();
    assert_eq!(drain(&mut spool), [3]);
    assert_eq!(setup.dropped("spool_damaged"), 2 + 3);
    // A file that is too long when the spool is opened does not displace the others, either.
    spool.push(&export(4, 100)).unwrap();
    spool.push(&export(5, 100)).unwrap();
    drop(spool);
    let long = fs::OpenOptions::new().write(true).open(setup.dir().join(&setup.files()[0])).unwrap();
    long.set_len(1 << 40).unwrap();
    assert_eq!(drain(&mut setup.open(64 * MIB)), [5]);
    assert_eq!(setup.dropped("spool_damaged"), 2 + 3 + 5);
}

#[test]
fn at_the_limit_the_oldest_is_dropped_but_not_the_one_being_sent() {
    let setup = Setup::new();
    // The limit is that of three files of one block each.
    let mut spool = setup.open(3 * BLOCK_BYTES);
    for number in 1..=5 {
        spool.push(&export(number, 1000)).unwrap();
        assert!(setup.files().len() <= 3);
    }
    assert_eq!(setup.dropped("spool_full"), 2 + 3);
    assert_eq!(spool.start(End::Oldest).unwrap().key.number, 3);
    for number in 6..=9 {
        spool.push(&export(number, 1000)).unwrap();
    }
    assert!(spool.finish());
    assert_eq!(setup.dropped("spool_full"), (2 + 3) + (5 + 6 + 7 + 8));
    assert_eq!(drain(&mut spool), [8, 9]);
    assert_eq!(setup.metric("spool_bytes"), 0);
}

#[test]
fn a_lowered_limit_holds_from_the_start() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=6 {
        spool.push(&export(number, 1000)).unwrap();
    }
    drop(spool);
    let mut spool = setup.open(2 * BLOCK_BYTES);
    assert_eq!(setup.files().len(), 2);
    assert_eq!(setup.dropped("spool_full"), 2 + 3 + 4 + 5);
    assert_eq!(drain(&mut spool), [5, 6]);
}

#[test]
fn a_request_that_is_too_large_is_refused_and_drops_no_other() {
    let setup = Setup::new();
    let mut spool = setup.open(2 * BLOCK_BYTES);
    spool.push(&export(1, 1000)).unwrap();
    assert_eq!(spool.push(&export(2, 10_000)).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(drain(&mut spool), [1]);
}

#[test]
fn other_files_are_not_touched() {
    let setup = Setup::new();
    drop(setup.open(MIB));
    let dir = setup.dir();
    let secret = setup.folder.path().join("secret");
    fs::write(&secret, "s").unwrap();
    for name in ["notes.txt", "1-1.export", "000000000000000A-1.export", "0000000000000001-+1.export", "é.export"] {
        fs::write(dir.join(name), "mine").unwrap();
    }
    // A number that the agent never reaches.
    fs::write(dir.join(file_name(u64::MAX, 1)), "mine").unwrap();
    fs::create_dir(dir.join(file_name(7, 1))).unwrap();
    symlink(&secret, dir.join(file_name(8, 1))).unwrap();
    fs::write(dir.join(NEW), "half a request of the last run").unwrap();
    let mut spool = setup.open(MIB);
    assert!(!dir.join(NEW).exists());
    // A link in place of the next file is not followed.
    symlink(&secret, dir.join(NEW)).unwrap();
    spool.push(&export(1, 10)).unwrap();
    assert_eq!(drain(&mut spool), [1]);
    assert_eq!(fs::read(&secret).unwrap(), b"s");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 9, "the lock and the other files");
    assert_eq!(setup.status.snapshot().dropped, 0);
}

#[test]
fn two_agents_cannot_share_a_folder() {
    let setup = Setup::new();
    let spool = setup.open(MIB);
    let second = Spool::open(&SpoolConfig { dir: setup.dir(), bytes_max: MIB }, setup.status.clone());
    assert!(matches!(second, Err(SpoolError::InUse { .. })), "{second:?}");
    drop(spool);
    setup.open(MIB);
}

#[test]
fn an_unusable_folder_is_an_error() {
    let setup = Setup::new();
    let file = setup.folder.path().join("file");
    fs::write(&file, "").unwrap();
    for dir in [file.clone(), file.join("below")] {
        let error = Spool::open(&SpoolConfig { dir, bytes_max: MIB }, setup.status.clone()).unwrap_err();
        assert!(matches!(error, SpoolError::Folder { .. }), "{error:?}");
    }
    // The folder is removed while it is in use.
    let mut spool = setup.open(MIB);
    spool.push(&export(1, 10)).unwrap();
    fs::remove_dir_all(setup.dir()).unwrap();
    assert_eq!(spool.push(&export(2, 10)).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(spool.start(End::Oldest).is_none());
    assert_eq!((setup.dropped("spool_damaged"), spool.bytes), (2, 0));
}
