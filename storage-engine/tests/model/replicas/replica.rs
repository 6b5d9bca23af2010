//! A replica: an engine that applies the entries of a log, and upkeep at times of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proto::answer::Missing;
use proto::{Command, Dictionary, LabelSet, Selection, SeriesQuery, Tier};
use storage_engine::{BudgetSizes, Budgets, Engine, Outcome, Position, SelectError, stored_position};
use storage_model::answers::{Sums, sums_of};
use storage_model::samples::{SECOND, T0};
use storage_model::world::{config, copy_of, directory};

use super::counts::Counts;
use super::history::Logged;

/// Work that a replica does between two entries, at a time of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Upkeep {
    Nothing,
    Flush,
    Compact,
    /// Advances the clock to this many seconds after [`T0`], and flushes.
    PassTime(i64),
    /// Evicts dictionaries that nobody uses.
    EvictIdle,
    /// Frees the space of what the last expiry dropped.
    Reclaim,
    /// Closes the engine, opens it, and applies the entries again that are not in the state.
    Reopen,
    /// Loses everything that was not written, and opens the engine again.
    Crash,
}

impl Upkeep {
    /// Generates upkeep. The larger `idle` is, the more often a replica does nothing.
    pub(super) fn any(idle: u32) -> impl Strategy<Value = Self> {
        prop_oneof![
            4 * idle => Just(Self::Nothing),
            2 => Just(Self::Flush),
            2 => Just(Self::Compact),
            2 => (0..400_000_i64).prop_map(Self::PassTime),
            1 => (0..2_000_000_i64).prop_map(Self::PassTime),
            1 => Just(Self::EvictIdle),
            1 => Just(Self::Reclaim),
            1 => Just(Self::Reopen),
            1 => Just(Self::Crash),
        ]
    }
}

/// Properties of a replica that may differ between the replicas of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// True if the replica applies entries as the leader has them in memory, and not as its log holds them. After a
    /// restart, it applies them from the log.
    pub(super) leads: bool,
    pub(super) budgets: BudgetSizes,
}

pub(super) struct Replica {
    // The engine is dropped before its directory, because closing writes.
    engine: Option<Engine>,
    directory: tempfile::TempDir,
    traits: Traits,
}

impl Replica {
    pub(super) fn new(traits: Traits) -> Self {
        let mut replica = Self { engine: None, directory: directory(), traits };
        replica.open(&[]);
        replica
    }

    /// Returns a replica that starts from a snapshot of this one.
    pub(super) fn snapshot(&self, traits: Traits) -> Self {
        let directory = directory();
        let files = directory.path().join("files");
        let taken = self.engine().checkpoint(&files).unwrap();
        assert_eq!(taken.position, self.engine().applied());
        // A node checks the position in the same way before it installs a snapshot.
        assert_eq!(stored_position(&files).unwrap(), taken);
        for file in std::fs::read_dir(&files).unwrap().map(Result::unwrap) {
            std::fs::rename(file.path(), directory.path().join(file.file_name())).unwrap();
        }
        std::fs::remove_dir(&files).unwrap();
        let mut replica = Self { engine: None, directory, traits };
        replica.open(&[]);
        assert_eq!(replica.engine().applied(), taken.position);
        assert_eq!(replica.engine().membership(), taken.membership);
        replica
    }

    fn open(&mut self, log: &[Logged]) {
        let mut config = config(self.directory.path());
        config.budgets = Budgets::new(self.traits.budgets);
        self.engine = None;
        self.engine = Some(Engine::open(config).unwrap());
        let applied = self.engine().applied().map_or(0, |position| position.index as usize);
        (applied..log.len()).for_each(|i| {
            self.apply(log, i, false);
        });
    }

    pub(super) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// Applies the last entry of the log.
    pub(super) fn apply_last(&self, log: &[Logged]) -> Option<Outcome> {
        self.apply(log, log.len() - 1, self.traits.leads)
    }

    fn apply(&self, log: &[Logged], i: usize, from_memory: bool) -> Option<Outcome> {
        let position = Position { index: i as u64 + 1, log_id: Bytes::from(format!("id {i}")) };
        match &log[i] {
            Logged::Command { entry, .. } if from_memory => Some(self.engine().apply(position, entry).unwrap()),
            Logged::Command { encoded, .. } => Some(self.engine().apply(position, &Logged::decoded(encoded)).unwrap()),
            Logged::Consensus(membership) => {
                self.engine().skip(position, membership.clone()).unwrap();
                None
            }
        }
    }

    pub(super) fn keep(&mut self, upkeep: Upkeep, log: &[Logged], counts: &Counts) {
        match upkeep {
            Upkeep::Nothing => return,
            Upkeep::Flush => drop(self.engine().flush().unwrap()),
            Upkeep::Compact => drop(self.engine().compact().unwrap()),
            Upkeep::PassTime(seconds) => {
                self.engine().pass_time(T0 + seconds * SECOND);
                self.engine().flush().unwrap();
            }
            Upkeep::EvictIdle => self.engine().evict_idle(),
            Upkeep::Reclaim => {
                let Some((tier, class, before_ns)) = log.iter().rev().find_map(expiry) else { return };
                self.engine().flush().unwrap();
                self.engine().reclaim(tier, class, before_ns);
            }
            Upkeep::Reopen => self.open(log),
            Upkeep::Crash => {
                let left = copy_of(self.directory.path());
                self.engine = None;
                self.directory = left;
                self.open(log);
            }
        }
        counts.add(match upkeep {
            Upkeep::Nothing | Upkeep::Flush => "flush",
            Upkeep::Compact => "compaction",
            Upkeep::PassTime(_) => "time without entries",
            Upkeep::EvictIdle => "clean-up of idle dictionaries",
            Upkeep::Reclaim => "reclaim",
            Upkeep::Reopen => "restart",
            Upkeep::Crash => "crash",
        });
    }

    /// Returns the signature of all windows, after everything was sealed and rolled up.
    pub(super) fn sealed_signature(&self) -> u128 {
        self.engine().pass_time(T0 + 4_000_000 * SECOND);
        self.engine().compact().unwrap();
        let verified = self.engine().verify().unwrap();
        assert_eq!(verified.described, Vec::<String>::new());
        verified.signature
    }

    /// Returns the responses to a query for sums and to one for series.
    pub(super) fn responses(&self, selection: &Selection, counts: &Counts) -> (Summed, Listed) {
        let summed = match self.engine().select(selection) {
            Ok(answer) => {
                let sums = sums_of(&answer, selection, &Dictionary::default());
                counts.add_if(!sums.is_empty(), "query with sums");
                counts.add_if(!answer.missing.is_empty(), "query of expired data");
                Ok((sums, answer.missing, answer.samples))
            }
            Err(error) => Err(refusal(&error)),
        };
        let Selection { tenant, matchers, .. } = selection.clone();
        let query = SeriesQuery { tenant, matchers, window: selection.fold.window(), label: None };
        let listed = match self.engine().series(&query) {
            Ok(answer) => {
                let labels = |series: &Arc<LabelSet>| {
                    series.iter().map(|label| (label.name.to_string(), label.value.to_string())).collect()
                };
                Ok((answer.series.iter().map(labels).collect(), answer.missing))
            }
            Err(error) => Err(refusal(&error)),
        };
        (summed, listed)
    }
}

/// Response to a query for sums: the sums, the missing times and the number of samples, or the refusal.
pub(super) type Summed = Result<(Sums, Vec<Missing>, u64), String>;
/// Response to a query for series: their labels and the missing times, or the refusal.
pub(super) type Listed = Result<(BTreeSet<Vec<(String, String)>>, Vec<Missing>), String>;

/// Refusal of a query that sums a gauge.
pub(super) const OF_GAUGE: &str = "a gauge does not add up";

/// Describes the refusal of a query, without the tier that it names: the first one that has been summed up.
fn refusal(error: &SelectError) -> String {
    match error {
        SelectError::Engine(error) => panic!("{error}"),
        SelectError::DroppedName { name, .. } => format!("a tier lacks {name}"),
        SelectError::GaugeSummed { .. } => OF_GAUGE.to_owned(),
        other => other.to_string(),
    }
}

fn expiry(logged: &Logged) -> Option<(Tier, u8, i64)> {
    match logged {
        Logged::Command { entry, .. } => match entry.command {
            Command::Expire { tier, retention_class, before_ns } => Some((tier, retention_class, before_ns)),
            _ => None,
        },
        Logged::Consensus(_) => None,
    }
}
