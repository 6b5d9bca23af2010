//! What is known without touching the disk: mapped tables, and build IDs for which there is none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::BuildId;
use sha2::{Digest as _, Sha256};

use super::directory::Origin;
use crate::limits::{self, Limits};
use crate::reason::Reason;
use crate::table::Table;

/// The mapped tables, the least recently used of which go when they are too many bytes.
#[derive(Debug)]
pub(crate) struct Mapped {
    tables: HashMap<BuildId, Entry>,
    bytes: u64,
    bytes_max: u64,
    /// Counts uses, to order them.
    uses: u64,
    /// Counts removals: what was read from disk before one may have been replaced there.
    removals: u64,
}

#[derive(Debug)]
struct Entry {
    table: Arc<Table>,
    origin: Origin,
    used: u64,
    /// When a better file was last looked for; `None` if it has to be done at once.
    looked: Option<Instant>,
}

impl Mapped {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { tables: HashMap::new(), bytes: 0, bytes_max, uses: 0, removals: 0 }
    }

    /// The table for `id`, and whether a better file is to be looked for now: true at most once in an interval, for
    /// host-made tables that are not as good as can be.
    pub(crate) fn get(&mut self, id: &BuildId, limits: &Limits) -> Option<(Arc<Table>, bool)> {
        self.uses += 1;
        let entry = self.tables.get_mut(id)?;
        entry.used = self.uses;
        let header = entry.table.header();
        // A file without symbols is looked for as often as one that is missing.
        let interval = if header.is_nameless() { limits.failure_remembered } else { limits.improvement_interval };
        let may_improve = entry.origin == Origin::Host && !header.is_best();
        let improve = may_improve && entry.looked.is_none_or(|looked| looked.elapsed() >= interval);
        if improve {
            entry.looked = Some(Instant::now());
        }
        Some((Arc::clone(&entry.table), improve))
    }

    /// How many removals there were; taken before a table is read from disk.
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Adds a table that was read when there had been `removals`, if there was none since. It stays even if it alone is
    /// over the budget, since somebody is about to use it.
    pub(crate) fn insert(&mut self, id: &BuildId, table: &Arc<Table>, origin: Origin, removals: u64) {
        if removals != self.removals {
            return;
        }
        self.drop_table(id);
        self.uses += 1;
        self.bytes += table.mapped_bytes();
        let looked = (!table.header().is_old()).then(Instant::now);
        let entry = Entry { table: Arc::clone(table), origin, used: self.uses, looked };
        self.tables.insert(id.clone(), entry);
        while self.bytes > self.bytes_max && self.tables.len() > 1 {
            let oldest = self.tables.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone());
            let Some(oldest) = oldest else { break };
            self.drop_table(&oldest);
        }
    }

    /// Forgets the table for `id`: there is a better one on disk.
    pub(crate) fn remove(&mut self, id: &BuildId) {
        self.removals += 1;
        self.drop_table(id);
    }

    fn drop_table(&mut self, id: &BuildId) {
        if let Some(entry) = self.tables.remove(id) {
            self.bytes = self.bytes.saturating_sub(entry.table.mapped_bytes());
        }
    }
}

/// Why there is no table, for a while.
#[derive(Debug)]
pub(crate) struct Failures {
    reasons: HashMap<Question, (Instant, Reason)>,
    remembered: Duration,
    /// When expired ones were last forgotten.
    swept: Instant,
}

/// What was looked for without success, as SHA-256: profiles may come with very long names, and whoever chooses two of
/// one hash would hide another's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Question {
    id: [u8; 32],
    /// Another path may lead to the file.
    path: [u8; 32],
}

impl Question {
    fn new(id: &BuildId, path: &str) -> Self {
        Self { id: hash_of(id), path: Sha256::digest(path).into() }
    }
}

fn hash_of(id: &BuildId) -> [u8; 32] {
    Sha256::digest(id.to_string()).into()
}

impl Failures {
    pub(crate) fn new(remembered: Duration) -> Self {
        Self { reasons: HashMap::new(), remembered, swept: Instant::now() }
    }

    pub(crate) fn get(&self, id: &BuildId, path: &str) -> Option<Reason> {
        let (since, reason) = self.reasons.get(&Question::new(id, path))?;
        (since.elapsed() < self.remembered).then(|| reason.clone())
    }

    pub(crate) fn insert(&mut self, id: &BuildId, path: &str, reason: Reason) {
        if self.swept.elapsed() >= self.remembered || self.reasons.len() >= limits::FAILURES_MAX {
            self.swept = Instant::now();
            self.reasons.retain(|_, (since, _)| since.elapsed() < self.remembered);
        }
        if self.reasons.len() >= limits::FAILURES_MAX {
            // All are fresh. What is forgotten is looked for again: slower, never wrong.
            self.reasons.clear();
        }
        self.reasons.insert(Question::new(id, path), (Instant::now(), reason));
    }

    /// Forgets what is known of `id`: its file has come.
    pub(crate) fn remove(&mut self, id: &BuildId) {
        let id = hash_of(id);
        self.reasons.retain(|question, _| question.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_expire_and_are_then_forgotten() {
        let mut failures = Failures::new(Duration::from_millis(50));
        let id = BuildId::Go("a".repeat(60_000));
        failures.insert(&id, "/one", Reason::Stripped);
        assert_eq!(failures.get(&id, "/one"), Some(Reason::Stripped));
        assert_eq!((failures.get(&id, "/other"), failures.get(&BuildId::Go("b".into()), "/one")), (None, None));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(failures.get(&id, "/one"), None);
        failures.insert(&BuildId::Gnu(vec![1]), "/one", Reason::NoDebugFile);
        assert_eq!(failures.reasons.len(), 1, "what expired takes no memory any more");
    }

    #[test]
    fn a_remembered_failure_is_small_whatever_was_asked_for() {
        let entry = size_of::<(Question, (Instant, Reason))>();
        assert!(entry <= 150, "{entry} bytes, all in place");
        let mut failures = Failures::new(Duration::from_secs(60));
        for i in 0..=limits::FAILURES_MAX {
            failures.insert(&BuildId::Gnu(i.to_le_bytes().to_vec()), "", Reason::NoDebugFile);
        }
        assert!(failures.reasons.len() <= limits::FAILURES_MAX);
    }
}
