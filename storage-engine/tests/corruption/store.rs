//! A test store with every kind of key, the expected responses of its engine, and functions to copy it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use proto::limits::PARTITION_SERIES_MAX;
use proto::{Command, Entry, Fold, Selection, StackDetail, TenantId, Tier, Window};
use storage_engine::{Engine, EngineError, Outcome, Position};
use storage_model::answers::{Sums, sums_of};
use storage_model::samples::{DAY, Drawn, SECOND, T0, batch_of};
use storage_model::world;

/// Kinds of keys that are damaged. Each kind in `FORMAT.md` is one of them, and windows have one kind for each tier.
pub(crate) const KINDS: [&str; 24] = [
    "format",
    "position",
    "membership",
    "clock",
    "oldest",
    "dropped",
    "batch id",
    "tenant",
    "first period without samples",
    "labels to drop",
    "stale window",
    "chunk",
    "events",
    "head",
    "1m series",
    "1m dictionary",
    "1m windows",
    "1m left out",
    "1h series",
    "1h dictionary",
    "1h windows",
    "1h left out",
    "1d windows",
    "1d dictionary",
];

/// Returns the kind of a key; `None` if the kind is not tested separately.
pub(crate) fn kind_of(key: &[u8]) -> Option<&'static str> {
    let section = |key: &[u8]| key.get(11).copied();
    Some(match (key, section(key)) {
        ([0, b'f'], _) => "format",
        ([0, b'a'], _) => "position",
        ([0, b'm'], _) => "membership",
        ([0, b'c'], _) => "clock",
        ([0, b'o'], _) => "oldest",
        ([0, b'x', ..], _) => "dropped",
        ([1, ..], _) if key.len() == 5 => "first period without samples",
        ([1, ..], _) => "labels to drop",
        ([0x10, 0, ..], Some(b'i')) => "batch id",
        ([2, ..], _) => "tenant",
        ([3, ..], _) => "stale window",
        ([0x10, 0, ..], Some(b'c')) => "chunk",
        ([0x10, 0, ..], Some(b'e')) => "events",
        ([0x10, 0, ..], Some(b'h')) => "head",
        ([0x10, 1, ..], Some(b's')) => "1m series",
        ([0x10, 1, ..], Some(b'd')) => "1m dictionary",
        ([0x10, 1, ..], Some(b'w')) => "1m windows",
        ([0x10, 1, ..], Some(b'n')) => "1m left out",
        ([0x10, 2, ..], Some(b's')) => "1h series",
        ([0x10, 2, ..], Some(b'd')) => "1h dictionary",
        ([0x10, 2, ..], Some(b'w')) => "1h windows",
        ([0x10, 2, ..], Some(b'n')) => "1h left out",
        ([0x10, 3, ..], Some(b'w')) => "1d windows",
        ([0x10, 3, ..], Some(b'd')) => "1d dictionary",
        _ => return None,
    })
}

/// A response without the statistics of the values that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    sums: Sums,
    samples: u64,
    /// Times that the response reports as damaged.
    damaged: Vec<Window>,
}

impl Answer {
    pub(crate) fn is_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }
}

/// Outcome of a query: its response; `None` if the query is refused.
pub(crate) type Answered = Option<Answer>;

/// Checks a response of a damaged store. It must be exact outside the times that it reports as damaged. Inside these
/// times, sums may be too small, but not too large.
pub(crate) fn check(selection: &Selection, wanted: Option<&Answer>, got: Option<&Answer>) -> Result<(), String> {
    let (Some(wanted), Some(got)) = (wanted, got) else {
        return if wanted.is_none() { Ok(()) } else { Err("it is refused".to_owned()) };
    };
    if got.damaged.is_empty() {
        let differs = |key: &&_| got.sums.get(*key) != wanted.sums.get(*key);
        let first = got.sums.keys().chain(wanted.sums.keys()).find(differs);
        let what = || format!("{first:?} has changed, and no damage is reported");
        return if got == wanted { Ok(()) } else { Err(what()) };
    }
    let is_damaged = |bucket: i64| {
        let (start_ns, end_ns) = match &selection.fold {
            Fold::Sum(windows) => (windows[bucket as usize].start_ns, windows[bucket as usize].end_ns),
            _ => (bucket - 1, bucket),
        };
        got.damaged.iter().any(|window| window.start_ns < end_ns && start_ns < window.end_ns)
    };
    let is_last = matches!(selection.fold, Fold::Last(_));
    for (key, sum) in &wanted.sums {
        if !is_damaged(key.1) && got.sums.get(key) != Some(sum) {
            return Err(format!("{key:?} is {:?} and not {sum}, and no damage is reported", got.sums.get(key)));
        }
    }
    for (key, sum) in got.sums.iter().filter(|_| !is_last) {
        // No sum can be too small because of negative values: all values are positive.
        if wanted.sums.get(key).is_none_or(|wanted| sum > wanted) {
            return Err(format!("{key:?} is {sum} and not {:?}", wanted.sums.get(key)));
        }
    }
    Ok(())
}

/// A key and its value.
pub(crate) type Stored = (Vec<u8>, Vec<u8>);

/// A store with every kind of key, and the expected responses.
pub(crate) struct Store {
    folder: tempfile::TempDir,
    /// Keys of each kind, with their values.
    pub(crate) values: BTreeMap<&'static str, Vec<Stored>>,
    pub(crate) selections: Vec<Selection>,
    pub(crate) answers: Vec<Answered>,
    /// Expected responses after [`Store::append_more`].
    pub(crate) answers_after: Vec<Answered>,
    log: Vec<Logged>,
}

/// Returns samples of all services between two times, with several stacks and threads.
pub(crate) fn samples(from: i64, to: i64, step: i64) -> Vec<Drawn> {
    let drawn = |(i, second): (usize, i64)| Drawn {
        service: (i % 4) as u8,
        time: second * SECOND + i as i64,
        user: (i % 7) as u8 + 1,
        kernel: (i % 3) as u8,
        value: (i % 5) as i64 * 1000 + 7,
        thread: (i % 4) as u8,
    };
    (from..to).step_by(step as usize).enumerate().map(drawn).collect()
}

/// Entry of the log; `None` for an entry of the Raft group itself, which the engine skips.
pub(crate) type Logged = Option<Entry>;

fn position(index: usize) -> Position {
    Position { index: index as u64, log_id: Bytes::from_static(b"id") }
}

/// Applies or skips one entry.
pub(crate) fn apply(engine: &Engine, index: usize, entry: &Logged) -> Result<Outcome, EngineError> {
    match entry {
        Some(entry) => engine.apply(position(index), entry),
        None => {
            engine.skip(position(index), Some(Bytes::from_static(b"members of the shard"))).map(|()| Outcome::Applied)
        }
    }
}

/// Returns the log of the store: labels to drop, two days of samples, an entry that drops the old raw samples, samples
/// that stay in the head, and late samples.
fn log() -> Vec<Logged> {
    let append = |after: i64, samples: &[Drawn], id| {
        let command = Command::Append(Arc::new(batch_of(samples, id)));
        Some(Entry { proposed_at_ns: T0 + after * SECOND, command })
    };
    // No series has this label.
    let drops = world::drop_labels(&TenantId::default_tenant(), [&[], &["pod"]], 1);
    let mut log = vec![Some(Entry { proposed_at_ns: T0, command: drops })];
    let part = |part: i64| append(0, &samples(-200_000 + part * 50_000, -150_000 + part * 50_000, 97), None);
    log.extend((0..4).map(part));
    // One window of this batch has so many samples that its events are a separate value.
    log.push(append(1, &samples(-3000, -1800, 1), None));
    log.push(None);
    let before_ns = T0 - 150_000 * SECOND;
    let command = Command::Expire { tier: Tier::Raw, retention_class: 0, before_ns };
    log.push(Some(Entry { proposed_at_ns: T0 + 700 * SECOND, command }));
    log.push(append(901, &samples(500, 900, 3), Some(1)));
    // The samples are late, so their hours become stale.
    log.push(append(902, &samples(-9000, -8000, 50), Some(2)));
    log.push(append(1001, &samples(900, 1000, 3), Some(3)));
    log
}

/// Log index of a batch that tests apply again. The retry must not count again.
const KNOWN: usize = 9;

impl Store {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir()).unwrap();
        let path = folder.path().join("state");
        let engine = Engine::open(world::config(&path)).unwrap();
        let log = log();
        for (index, entry) in (1..).zip(&log) {
            assert_eq!(apply(&engine, index, entry).unwrap(), Outcome::Applied);
            if [6, 9, 11].contains(&index) {
                engine.flush().unwrap();
            }
        }
        let selections = selections();
        let ask = |engine: &Engine| {
            selections.iter().map(|selection| answer(engine, selection, true).unwrap()).collect::<Vec<Answered>>()
        };
        let answers = ask(&engine);
        drop(engine);
        let values = values(&path);
        let mut store = Self { folder, values, selections: Vec::new(), answers, answers_after: Vec::new(), log };
        let copy = store.copy(usize::MAX);
        let engine = Self::open(&copy).unwrap();
        store.retry(&engine).unwrap();
        store.append_more(&engine).unwrap();
        store.answers_after = ask(&engine);
        store.selections = selections;
        store
    }

    /// Returns the log index of the last entry of [`Store::append_more`].
    pub(crate) fn last_index_after(&self) -> usize {
        self.log.len() + 3
    }

    /// Applies entries with new samples, at the positions after that of [`Store::retry`], and flushes. Some samples are
    /// of windows that are sealed already.
    pub(crate) fn append_more(&self, engine: &Engine) -> Result<(), String> {
        let entries = [(1200, samples(1000, 1200, 3)), (1201, samples(-8990, -8000, 60))];
        for (index, (after, samples)) in (self.log.len() + 2..).zip(entries) {
            let mut batch = batch_of(&samples, None);
            // Known definitions are stripped, as in production.
            let _removed = engine.strip(&mut batch, PARTITION_SERIES_MAX).map_err(|error| error.to_string())?;
            let entry = Entry { proposed_at_ns: T0 + after * SECOND, command: Command::Append(Arc::new(batch)) };
            let outcome = apply(engine, index, &Some(entry)).map_err(|error| error.to_string())?;
            if outcome != Outcome::Applied {
                return Err(format!("{outcome:?}"));
            }
        }
        engine.flush().map(drop).map_err(|error| error.to_string())
    }

    pub(crate) fn last_index(&self) -> usize {
        self.log.len()
    }

    /// Applies the log entries after the engine's position again.
    pub(crate) fn replay(&self, engine: &Engine) -> Result<(), EngineError> {
        let applied = engine.applied().map_or(0, |position| position.index as usize);
        (1..).zip(&self.log).skip(applied).try_for_each(|(index, entry)| apply(engine, index, entry).map(drop))
    }

    /// Applies a batch of the log again, as the entry after the last one. Returns the outcome.
    pub(crate) fn retry(&self, engine: &Engine) -> Result<Outcome, EngineError> {
        apply(engine, self.log.len() + 1, &self.log[KNOWN - 1])
    }

    /// Copies the store to another directory. Table files are hard links, because RocksDB only reads them.
    pub(crate) fn copy(&self, number: usize) -> PathBuf {
        let to = self.folder.path().join(format!("copy-{number}"));
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(self.folder.path().join("state")).unwrap().map(Result::unwrap) {
            let name = file.file_name();
            let is_table = Path::new(&name).extension().is_some_and(|extension| extension == "sst");
            if is_table {
                std::fs::hard_link(file.path(), to.join(&name)).unwrap();
            } else if !name.to_string_lossy().starts_with("LOG") {
                std::fs::copy(file.path(), to.join(&name)).unwrap();
            }
        }
        to
    }

    /// Opens the engine of a copy.
    pub(crate) fn open(path: &Path) -> Result<Engine, String> {
        Engine::open(world::config(path)).map_err(|error| error.to_string())
    }
}

/// Returns the outcome of a query, or the engine's error. If `is_looked_at` is false, a response is read but not
/// returned.
pub(crate) fn answer(engine: &Engine, selection: &Selection, is_looked_at: bool) -> Result<Answered, String> {
    match engine.select(selection) {
        Ok(answer) => {
            let damaged = answer.missing.iter().filter(|missing| missing.is_damaged).map(|missing| missing.window);
            Ok(is_looked_at.then(|| Answer {
                sums: sums_of(&answer, selection, &proto::Dictionary::default()),
                samples: answer.samples,
                damaged: damaged.collect(),
            }))
        }
        Err(storage_engine::SelectError::Engine(error)) => Err(error.to_string()),
        Err(_refused) => Ok(None),
    }
}

fn values(path: &Path) -> BTreeMap<&'static str, Vec<Stored>> {
    let database = rocksdb::DB::open_for_read_only(&rocksdb::Options::default(), path, false).unwrap();
    let mut values: BTreeMap<&'static str, Vec<Stored>> = BTreeMap::new();
    for item in database.iterator(rocksdb::IteratorMode::Start) {
        let (key, value) = item.unwrap();
        if let Some(kind) = kind_of(&key) {
            values.entry(kind).or_default().push((key.to_vec(), value.to_vec()));
        }
    }
    values
}

/// Returns selections that together read every stored value that any query can read.
fn selections() -> Vec<Selection> {
    let whole = Window { start_ns: T0 - 4 * DAY, end_ns: T0 + DAY };
    let of = |fold: Fold, group_by: &[&str], stacks| Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold,
        group_by: group_by.iter().map(|&name| name.to_owned()).collect(),
        group_by_series: true,
        stacks,
        locations: proto::LocationSets::default(),
    };
    let day = T0 / DAY * DAY;
    let hours: Vec<i64> = (0..30).map(|hour| day - 2 * DAY + hour * DAY / 24).collect();
    let minutes: Vec<i64> = (0..90).map(|minute| T0 - 4000 * SECOND + minute * 60 * SECOND).collect();
    let no_gauge = |mut selection: Selection| {
        selection.matchers = vec![proto::Matcher {
            name: "service_name".to_owned(),
            operation: proto::selection::Operation::NotEqual,
            value: "s3".to_owned(),
        }];
        selection
    };
    vec![
        of(Fold::Points(whole), &["thread_name"], StackDetail::Full),
        of(Fold::Last(whole), &[], StackDetail::Full),
        no_gauge(of(Fold::Sum(vec![whole]), &[], StackDetail::Full)),
        no_gauge(of(Fold::Sum(Window::between(&[day - 2 * DAY, day - DAY, day])), &[], StackDetail::Full)),
        no_gauge(of(Fold::Sum(Window::between(&hours)), &[], StackDetail::Full)),
        no_gauge(of(Fold::Sum(Window::between(&minutes)), &[], StackDetail::None)),
    ]
}
