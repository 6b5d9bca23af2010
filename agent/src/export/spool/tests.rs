use std::os::unix::fs::symlink;

use prometheus_client::registry::Registry;
use tempfile::TempDir;

use super::*;

/// A folder, and the counters of whatever is opened in it.
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

    /// Names of the files of requests, the oldest first.
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

/// Takes all there is, from the oldest end; the numbers of their keys.
fn drain(spool: &mut Spool) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(export) = spool.start(End::Oldest) {
        numbers.push(export.key.number);
        assert!(spool.finish());
    }
    numbers
}

#[test]
fn what_is_pushed_comes_back_as_it_was_oldest_first_also_after_a_restart() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=3 {
        spool.push(&export(number, 5000)).unwrap();
    }
    drop(spool);
    let mut spool = setup.open(MIB);
    // Newer than what an earlier run left.
    spool.push(&export(4, 0)).unwrap();
    assert_eq!(setup.metric("spool_bytes"), 3 * 8192 + 4096);
    assert!(is_same(&spool.start(End::Newest).unwrap(), &export(4, 0)));
    assert!(spool.put_back());
    assert!(!spool.put_back() && !spool.finish(), "none is on its way");
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
fn no_bytes_with_a_right_checksum_make_it_fail() {
    let mut state = 1_u64;
    for len in (0..200).chain([4096, 70_000]) {
        let mut file = [&MAGIC[..], &[0; 8]].concat();
        file.extend((0..len).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        }));
        let checksum = xxh3_64(&file[16..]);
        file[8..16].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(export) = decode(file.clone().into()) {
            let _any = export.request.samples();
        }
    }
}

#[test]
fn torn_files_are_passed_over_removed_and_counted_by_their_names() {
    let setup = Setup::new();
    let mut spool = setup.open(MIB);
    for number in 1..=5 {
        spool.push(&export(number, 100)).unwrap();
    }
    drop(spool);
    let files: Vec<_> = setup.files().iter().map(|name| setup.dir().join(name)).collect();
    // As after a power cut: nothing of it, or a part; and what another program wrote.
    fs::write(&files[0], "").unwrap();
    fs::OpenOptions::new().write(true).open(&files[2]).unwrap().set_len(100).unwrap();
    fs::write(&files[3], "not an export at all").unwrap();
    let mut spool = setup.open(MIB);
    assert_eq!(drain(&mut spool), [2, 5]);
    assert_eq!(setup.dropped("spool_damaged"), 2 + 4 + 5);
    assert_eq!(setup.files().len(), 0);
}

#[test]
fn a_file_that_somebody_removed_or_made_far_too_long_is_counted() {
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
    // Also when it is found at the start: it does not push all others out.
    spool.push(&export(4, 100)).unwrap();
    spool.push(&export(5, 100)).unwrap();
    drop(spool);
    let long = fs::OpenOptions::new().write(true).open(setup.dir().join(&setup.files()[0])).unwrap();
    long.set_len(1 << 40).unwrap();
    assert_eq!(drain(&mut setup.open(64 * MIB)), [5]);
    assert_eq!(setup.dropped("spool_damaged"), 2 + 3 + 5);
}

#[test]
fn at_the_limit_the_oldest_goes_but_never_the_one_on_its_way() {
    let setup = Setup::new();
    // Three files of one block each.
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
fn a_limit_that_was_lowered_holds_from_the_start() {
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
fn a_request_that_is_too_large_is_refused_and_costs_no_other() {
    let setup = Setup::new();
    let mut spool = setup.open(2 * BLOCK_BYTES);
    spool.push(&export(1, 1000)).unwrap();
    assert_eq!(spool.push(&export(2, 10_000)).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    assert_eq!(drain(&mut spool), [1]);
}

#[test]
fn what_is_not_the_agents_is_left_alone() {
    let setup = Setup::new();
    drop(setup.open(MIB));
    let dir = setup.dir();
    let secret = setup.folder.path().join("secret");
    fs::write(&secret, "s").unwrap();
    for name in ["notes.txt", "1-1.export", "000000000000000A-1.export", "0000000000000001-+1.export", "é.export"] {
        fs::write(dir.join(name), "mine").unwrap();
    }
    // Above what is ever counted to.
    fs::write(dir.join(file_name(u64::MAX, 1)), "mine").unwrap();
    fs::create_dir(dir.join(file_name(7, 1))).unwrap();
    symlink(&secret, dir.join(file_name(8, 1))).unwrap();
    fs::write(dir.join(NEW), "half a request of the last run").unwrap();
    let mut spool = setup.open(MIB);
    assert!(!dir.join(NEW).exists());
    // Whoever plants a link where the next file is written gets nothing written through it.
    symlink(&secret, dir.join(NEW)).unwrap();
    spool.push(&export(1, 10)).unwrap();
    assert_eq!(drain(&mut spool), [1]);
    assert_eq!(fs::read(&secret).unwrap(), b"s");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 9, "the lock and what was there");
    assert_eq!(setup.status.snapshot().dropped, 0);
}

#[test]
fn two_agents_never_share_a_folder() {
    let setup = Setup::new();
    let spool = setup.open(MIB);
    let second = Spool::open(&SpoolConfig { dir: setup.dir(), bytes_max: MIB }, setup.status.clone());
    assert!(matches!(second, Err(SpoolError::InUse { .. })), "{second:?}");
    drop(spool);
    setup.open(MIB);
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error() {
    let setup = Setup::new();
    let file = setup.folder.path().join("file");
    fs::write(&file, "").unwrap();
    for dir in [file.clone(), file.join("below")] {
        let error = Spool::open(&SpoolConfig { dir, bytes_max: MIB }, setup.status.clone()).unwrap_err();
        assert!(matches!(error, SpoolError::Folder { .. }), "{error:?}");
    }
    // It goes away while it is in use.
    let mut spool = setup.open(MIB);
    spool.push(&export(1, 10)).unwrap();
    fs::remove_dir_all(setup.dir()).unwrap();
    assert_eq!(spool.push(&export(2, 10)).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(spool.start(End::Oldest).is_none());
    assert_eq!((setup.dropped("spool_damaged"), spool.bytes), (2, 0));
}
