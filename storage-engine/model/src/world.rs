//! An engine, its log, and the plain list of samples that the engine's answers are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use proto::entry::Deletion;
use proto::limits::PARTITION_SERIES_MAX;
use proto::selection::Operation;
use proto::{Batch, Command, Entry, LabelDrops, Matcher, TenantId, Tier, Window, wire};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Outcome, Position};

use crate::rows::{Horizons, Row, row_of};
use crate::samples::{Drawn, SECOND, T0, batch_of};
use crate::steps::{CLASSES, Step};

/// Budgets of an engine for tests.
pub const BUDGETS: BudgetSizes =
    BudgetSizes { engines: 1, head_bytes_max: 1 << 20, dictionary_bytes_max: 1 << 30, cache_bytes: 1 << 20 };

/// Names of the labels that hours drop, then of those that days drop.
pub type Dropped = [&'static [&'static str]; 2];

/// An engine, its log, and the samples that it must hold.
#[derive(Debug)]
pub struct World {
    /// The open engine. It is dropped before its directory is, because closing the engine writes to the directory.
    pub engine: Option<Engine>,
    /// Directory of the engine.
    pub directory: tempfile::TempDir,
    /// Log entries that were proposed, in order.
    pub log: Vec<Entry>,
    /// Samples that the engine must hold in at least one tier.
    pub rows: Vec<Row>,
    now_ns: i64,
    /// Retention class of new samples.
    pub class: u8,
    /// For each batch ID, the raw partitions, with their class, that hold the newest stored samples of the batches with
    /// this ID.
    ids: BTreeMap<u8, BTreeSet<(i64, u8)>>,
    /// Partitions of minutes that exist, with their class.
    minutes: BTreeSet<(i64, u8)>,
    /// Times up to which data was dropped.
    pub horizons: Horizons,
    /// Budgets of the engine, which other worlds may share.
    budgets: Budgets,
    dropped: Dropped,
}

impl Default for World {
    fn default() -> Self {
        Self::with(false, [&[], &[]])
    }
}

impl World {
    /// Creates a world with an empty engine. With `small_head`, the head's budget is so small that nearly every flush
    /// evicts all samples into chunks.
    pub fn with(small_head: bool, dropped: Dropped) -> Self {
        let head_bytes_max = if small_head { 200 } else { BUDGETS.head_bytes_max };
        Self::sharing(Budgets::new(BudgetSizes { head_bytes_max, ..BUDGETS }), dropped)
    }

    /// Creates a world whose engine has these budgets.
    pub fn sharing(budgets: Budgets, dropped: Dropped) -> Self {
        let directory = directory();
        let mut world = Self {
            directory,
            engine: None,
            log: Vec::new(),
            rows: Vec::new(),
            now_ns: T0,
            class: 0,
            ids: BTreeMap::new(),
            minutes: BTreeSet::new(),
            horizons: Horizons::default(),
            budgets,
            dropped,
        };
        world.open();
        if dropped != Dropped::default() {
            world.propose(drop_labels(&TenantId::default_tenant(), dropped, 1));
        }
        world
    }

    fn open(&mut self) {
        let mut config = config(self.directory.path());
        config.budgets = self.budgets.clone();
        self.engine = Some(Engine::open(config).unwrap());
    }

    /// Returns the engine, which must be open.
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// Returns the time up to which a tier's data was dropped in any class; `i64::MIN` if nothing was dropped.
    pub fn horizon_ns(&self, tier: Tier) -> i64 {
        self.horizons.latest(tier)
    }

    /// Applies the entry at offset `i` of the log. The entry's log index is `i + 1`.
    pub fn apply(&self, i: usize) -> Outcome {
        self.apply_at(i, &self.log[i])
    }

    fn apply_at(&self, i: usize, entry: &Entry) -> Outcome {
        let position = Position { index: i as u64 + 1, log_id: Bytes::from(format!("id {i}")) };
        self.engine().apply(position, entry).unwrap()
    }

    /// Appends a command to the log and applies it.
    pub fn propose(&mut self, command: Command) -> Outcome {
        // A node logs the encoded command. It then applies either the command itself, or the one that it decodes from
        // the log.
        self.now_ns += 1;
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let wire = wire::Entry { proposed_at_ns: self.now_ns as u64, ..wire::Entry::decode(bytes.as_slice()).unwrap() };
        self.log.push(Entry::from_wire(wire).unwrap());
        let i = self.log.len() - 1;
        if self.now_ns % 2 == 0 {
            self.apply(i)
        } else {
            self.apply_at(i, &Entry { proposed_at_ns: self.now_ns, command })
        }
    }

    /// Proposes a batch as it is, without adding its samples to the model's rows.
    pub fn append_whole(&mut self, batch: Batch) -> Outcome {
        self.propose(Command::Append(Arc::new(batch)))
    }

    /// Replaces the directory by a copy of the files as they are now, as a power cut would leave them.
    pub fn lose_memory(&mut self) {
        let left = copy_of(self.directory.path());
        self.engine = None;
        self.directory = left;
    }

    /// Runs a step, and checks its outcome.
    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Append(samples, id) => self.append(samples, *id),
            Step::Wait(seconds) => self.now_ns += seconds * SECOND,
            Step::PassTime(seconds) => self.engine().pass_time(self.now_ns + seconds * SECOND),
            Step::Flush => {
                let flushed = self.engine().flush().unwrap();
                assert_eq!(flushed.position.map_or(0, |position| position.index), self.log.len() as u64);
            }
            Step::Compact => {
                self.engine().compact().unwrap();
                assert_eq!(self.engine().head_bytes(), 0);
            }
            Step::Checkpoint => {
                *self = self.at_checkpoint();
                self.reopen();
            }
            Step::Restart | Step::Crash => {
                if matches!(step, Step::Crash) {
                    self.lose_memory();
                }
                self.reopen();
            }
            Step::Class(class) => self.class = *class,
            Step::Expire(tier, class, second) => self.expire_class(*tier, *class, T0 + second * SECOND),
            Step::Delete(label, start, end) => {
                let window = Window { start_ns: T0 + start * SECOND, end_ns: T0 + end * SECOND };
                self.delete(*label, window);
            }
        }
    }

    /// Returns the world as of now, whose engine is not open yet, and is that of a checkpoint.
    pub fn at_checkpoint(&self) -> Self {
        let directory = directory();
        let checkpoint = directory.path().join("checkpoint");
        let position = self.engine().checkpoint(&checkpoint).unwrap().position;
        assert_eq!(position.map_or(0, |position| position.index), self.log.len() as u64);
        for (name, _) in listing(&checkpoint) {
            std::fs::rename(checkpoint.join(&name), directory.path().join(&name)).unwrap();
        }
        std::fs::remove_dir(&checkpoint).unwrap();
        Self {
            engine: None,
            directory,
            log: self.log.clone(),
            rows: self.rows.clone(),
            now_ns: self.now_ns,
            class: self.class,
            ids: self.ids.clone(),
            minutes: self.minutes.clone(),
            horizons: self.horizons.clone(),
            budgets: self.budgets.clone(),
            dropped: self.dropped,
        }
    }

    /// Closes the engine, if it is open, and opens it. Then applies the entries of the log that it does not have.
    pub fn reopen(&mut self) {
        self.engine = None;
        self.open();
        let applied = self.engine().applied().map_or(0, |position| position.index);
        assert_eq!(self.engine().flushed().map_or(0, |position| position.index), applied);
        (applied as usize..self.log.len()).for_each(|i| {
            self.apply(i);
        });
    }

    /// Applies the entries that another world has in addition, and takes its model.
    pub fn continue_as(&mut self, other: &Self) {
        let applied = self.log.len();
        self.log.clone_from(&other.log);
        self.rows.clone_from(&other.rows);
        self.now_ns = other.now_ns;
        self.class = other.class;
        self.ids.clone_from(&other.ids);
        self.minutes.clone_from(&other.minutes);
        self.horizons.clone_from(&other.horizons);
        (applied..self.log.len()).for_each(|i| {
            self.apply(i);
        });
    }

    fn append(&mut self, samples: &[Drawn], id: Option<u8>) {
        let class = self.class;
        let mut batch = Batch { retention_class: class, ..batch_of(samples, id) };
        self.engine().strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
        let outcome = self.append_whole(batch);
        let of_batch = || samples.iter().map(|drawn| Row { class, ..row_of(drawn) });
        // Samples are too old if the raw samples of their time have expired, in this class or in another one in which
        // the tenant has minutes of this time.
        let is_too_old = |row: &Row| {
            let has_minutes = |other: u8| other == class || self.minutes.contains(&(partition_of(row.time_ns), other));
            CLASSES.into_iter().any(|other| has_minutes(other) && row.time_ns <= self.horizons.of(Tier::Raw, other))
        };
        let rows: Vec<Row> = of_batch().filter(|row| !is_too_old(row)).collect();
        let samples_too_old = (samples.len() - rows.len()) as u64;
        let partitions: BTreeSet<i64> = of_batch().map(|row| partition_of(row.time_ns)).collect();
        let newest_stored = rows.iter().map(|row| partition_of(row.time_ns)).max();
        let counted = id.zip(newest_stored).is_some_and(|(id, _)| {
            // A retry of a push without times has later times. An ID is therefore also looked up in the four partitions
            // before.
            let newest = partitions.last().copied().unwrap_or_default();
            let may_have = |at: &i64| partitions.contains(at) || (newest - 4..=newest).contains(at);
            self.ids.get(&id).is_some_and(|known| known.iter().any(|(at, _)| may_have(at)))
        });
        match (counted, samples_too_old) {
            (true, _) => return assert_eq!(outcome, Outcome::Duplicate),
            (false, 0) => assert_eq!(outcome, Outcome::Applied),
            (false, samples_too_old) => assert_eq!(outcome, Outcome::Partial { samples_too_old }),
        }
        self.minutes.extend(rows.iter().map(|row| (partition_of(row.time_ns), class)));
        self.rows.extend(rows);
        if let Some((id, newest)) = id.zip(newest_stored) {
            self.ids.entry(id).or_default().insert((newest, class));
        }
    }

    /// Drops the partitions of a tier and of class 0 that end at or before a time.
    pub fn expire(&mut self, tier: Tier, before_ns: i64) {
        self.expire_class(tier, 0, before_ns);
    }

    fn expire_class(&mut self, tier: Tier, class: u8, before_ns: i64) {
        self.propose(Command::Expire { tier, retention_class: class, before_ns });
        let tiers: &[Tier] = if tier == Tier::Minute { &[Tier::Raw, Tier::Minute] } else { &[tier] };
        for &tier in tiers {
            self.horizons.expire(tier, class, before_ns);
        }
        // IDs are dropped with the raw samples.
        let kept = |tier| self.horizons.of(tier, class).div_euclid(Tier::Raw.partition_ns());
        let (raw, minutes) = (kept(Tier::Raw), kept(Tier::Minute));
        let is_kept = |from: i64, (partition, of): (i64, u8)| of != class || partition >= from;
        self.ids.values_mut().for_each(|known| known.retain(|&one| is_kept(raw, one)));
        self.minutes.retain(|&one| is_kept(minutes, one));
        // Samples that no tier holds are gone.
        self.rows.retain(|row| self.horizons.holder(row).is_some());
    }

    fn delete(&mut self, (name, value): (u8, u8), window: Window) {
        let name = ["service_name", "region", "zone"][usize::from(name)];
        let value = match name {
            "service_name" => format!("s{value}"),
            "region" => ["eu", "us"][usize::from(value) % 2].to_owned(),
            _ => ["a", "b"][usize::from(value) % 2].to_owned(),
        };
        let matchers = vec![Matcher { name: name.to_owned(), operation: Operation::Equal, value: value.clone() }];
        let deletion = Deletion { tenant: TenantId::default_tenant(), matchers, window };
        storage_engine::check_deletion(&deletion).unwrap();
        let outcome = self.propose(Command::Delete(deletion));
        if let Outcome::Undecidable { tier, matcher: 0 } = outcome {
            // The deletion is refused only if the finer tier of the time is gone, and the remaining tier drops the
            // label.
            let finer = Tier::from_number(tier.number() - 1).unwrap();
            let dropped = self.dropped[usize::from(tier.number() - 2)];
            assert!(dropped.contains(&name) && window.start_ns < self.horizon_ns(finer), "{outcome:?} {window:?}");
            return;
        }
        let mut samples = 0;
        let mut windows = 0;
        self.rows.retain(|row| {
            // If the finer tiers are dropped, the whole remaining window is deleted.
            let time = row.time_ns;
            let finest = self.horizons.holder(row).unwrap_or(Tier::Day);
            let (start_ns, end_ns) = match finest {
                Tier::Raw => (time - 1, time),
                tier => (tier.window_start_ns(tier.window_of(time)), tier.window_end_ns(tier.window_of(time))),
            };
            let goes = row.labels[name] == value && start_ns < window.end_ns && window.start_ns < end_ns;
            *if finest == Tier::Raw { &mut samples } else { &mut windows } += u64::from(goes);
            !goes
        });
        let Outcome::Deleted { samples: deleted, windows: of_windows } = outcome else { panic!("{outcome:?}") };
        assert_eq!(deleted, samples);
        // The engine counts days as well as the hours that they are summed from, so the numbers differ.
        assert_eq!(of_windows > 0, windows > 0, "{of_windows} windows, {windows} samples");
    }
}

/// Creates a temporary directory, in memory if possible, because no test case depends on the disk.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir()).unwrap()
}

/// Copies the files of an open engine as they are now, as the end of its process would leave them.
pub fn copy_of(engine: &Path) -> tempfile::TempDir {
    // The copy is repeated if RocksDB changed a file in the meantime.
    loop {
        let before = listing(engine);
        let left = directory();
        let copy = |(name, _): &(OsString, u64)| std::fs::copy(engine.join(name), left.path().join(name)).is_ok();
        if before.iter().all(copy) && listing(engine) == before {
            return left;
        }
    }
}

/// Returns the number of the raw partition that holds a time, which is also that of the partition of minutes.
fn partition_of(time_ns: i64) -> i64 {
    (time_ns - 1).div_euclid(Tier::Raw.partition_ns())
}

/// Returns the name and the length of each file in a directory.
pub fn listing(directory: &Path) -> BTreeSet<(OsString, u64)> {
    let file = |file: std::fs::DirEntry| (file.file_name(), file.metadata().map_or(0, |metadata| metadata.len()));
    std::fs::read_dir(directory).unwrap().map(|entry| file(entry.unwrap())).collect()
}

/// Returns the command after which the sums of a tenant drop these labels, with a revision of the meta group.
pub fn drop_labels(tenant: &TenantId, dropped: Dropped, revision: u64) -> Command {
    let sorted = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let names = dropped.map(|names| sorted(names).into_iter().collect());
    Command::DropLabels(LabelDrops { tenant: tenant.clone(), names, revision })
}

/// Returns the configuration of an engine for tests.
pub fn config(directory: &Path) -> Config {
    Config { directory: directory.to_owned(), budgets: Budgets::new(BUDGETS), barrier: Default::default() }
}
