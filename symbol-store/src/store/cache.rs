//! Caches in memory: mapped tables, and build IDs without a table.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::{BuildId, TenantId};
use sha2::{Digest as _, Sha256};

use super::directory::Origin;
use crate::bucket::index::Wanted;
use crate::limits::{self, Limits};
use crate::reason::Reason;
use crate::table::Table;

/// Key of a table in memory: a tenant, and the SHA-256 of a build ID or of the names of objects.
///
/// Hashes are used because profiles may have very long build IDs. With a weaker hash, a sender could choose a build ID
/// with the same hash as another one, and so hide that file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TableKey {
    tenant: TenantId,
    hash: [u8; 32],
}

impl TableKey {
    /// Returns the key of the table that a tenant gets for a build ID.
    pub(crate) fn of(tenant: &TenantId, id: &BuildId) -> Self {
        Self { tenant: tenant.clone(), hash: hash_of(id) }
    }

    /// Returns the key of the table that consists of these objects of a bucket.
    pub(crate) fn of_objects(tenant: &TenantId, wanted: &Wanted) -> Self {
        let mut hash = Sha256::new();
        for stored in [Some(&wanted.table), wanted.segments.as_ref()].into_iter().flatten() {
            hash.update(format!("object {}/{} {}\n", stored.file, stored.table, stored.bytes));
        }
        Self { tenant: tenant.clone(), hash: hash.finalize().into() }
    }
}

/// The mapped tables. If their total size exceeds `bytes_max`, the least recently used ones are evicted.
#[derive(Debug)]
pub(crate) struct Mapped {
    tables: HashMap<TableKey, Entry>,
    bytes: u64,
    bytes_max: u64,
    /// Number of uses of all tables since the start. Each use of a table stores this number in its [`Entry::used`],
    /// which thus orders tables by last use.
    uses: u64,
    /// Number of removals since the start. A table that was read from disk before a removal may have been replaced on
    /// disk.
    removals: u64,
}

#[derive(Debug)]
struct Entry {
    table: Arc<Table>,
    origin: Origin,
    used: u64,
    /// Time of the last search for a better file; `None` if a search is due at once.
    searched: Option<Instant>,
}

impl Mapped {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { tables: HashMap::new(), bytes: 0, bytes_max, uses: 0, removals: 0 }
    }

    /// Returns the table for `key`, and whether the caller should search for a better file. The second value is true at
    /// most once in an interval, and only for tables of files of this host that can be improved.
    pub(crate) fn get(&mut self, key: &TableKey, limits: &Limits) -> Option<(Arc<Table>, bool)> {
        self.uses += 1;
        let entry = self.tables.get_mut(key)?;
        entry.used = self.uses;
        let header = entry.table.header();
        // If the table has no names, a better file is searched for as often as a missing one.
        let interval = if header.is_nameless() { limits.failure_remembered } else { limits.improvement_interval };
        let may_improve = entry.origin == Origin::Host && !header.is_best();
        let improve = may_improve && entry.searched.is_none_or(|searched| searched.elapsed() >= interval);
        if improve {
            entry.searched = Some(Instant::now());
        }
        Some((Arc::clone(&entry.table), improve))
    }

    /// Returns the number of removals since the start. A caller gets this number before it reads a table from disk, and
    /// passes it to [`Mapped::insert`].
    pub(crate) fn removals(&self) -> u64 {
        self.removals
    }

    /// Adds a table. `removals` is the number of removals before the table was read from disk. Does nothing if the
    /// number has changed since. The table stays even if it alone exceeds the limit, because a caller is about to use
    /// it.
    pub(crate) fn insert(&mut self, key: &TableKey, table: &Arc<Table>, origin: Origin, removals: u64) {
        if removals != self.removals {
            return;
        }
        self.drop_table(key);
        self.uses += 1;
        self.bytes += table.mapped_bytes();
        let searched = (!table.header().is_old()).then(Instant::now);
        let entry = Entry { table: Arc::clone(table), origin, used: self.uses, searched };
        self.tables.insert(key.clone(), entry);
        while self.bytes > self.bytes_max && self.tables.len() > 1 {
            let oldest = self.tables.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.drop_table(&oldest);
        }
    }

    /// Removes the tables for `id` of all tenants. Called when there is a better table on disk.
    pub(crate) fn remove(&mut self, id: &BuildId) {
        self.removals += 1;
        let hash = hash_of(id);
        let old: Vec<TableKey> = self.tables.keys().filter(|key| key.hash == hash).cloned().collect();
        old.iter().for_each(|key| self.drop_table(key));
    }

    /// Removes all tables. Called when tables were deleted from disk.
    pub(crate) fn clear(&mut self) {
        self.removals += 1;
        self.tables.clear();
        self.bytes = 0;
    }

    fn drop_table(&mut self, key: &TableKey) {
        if let Some(entry) = self.tables.remove(key) {
            self.bytes = self.bytes.saturating_sub(entry.table.mapped_bytes());
        }
    }
}

/// Failed searches, with the reasons why they found no usable file. Each is remembered for a limited time.
#[derive(Debug)]
pub(crate) struct Failures {
    reasons: HashMap<SearchKey, (Instant, Reason)>,
    remembered: Duration,
    /// Time at which expired failures were last dropped.
    swept: Instant,
}

/// Key of a failed search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchKey {
    table: TableKey,
    /// SHA-256 of the path. It is part of the key because the file may still be found at another path.
    path: [u8; 32],
}

impl SearchKey {
    fn new(table: &TableKey, path: &str) -> Self {
        Self { table: table.clone(), path: Sha256::digest(path).into() }
    }
}

fn hash_of(id: &BuildId) -> [u8; 32] {
    Sha256::digest(id.to_string()).into()
}

impl Failures {
    pub(crate) fn new(remembered: Duration) -> Self {
        Self { reasons: HashMap::new(), remembered, swept: Instant::now() }
    }

    pub(crate) fn get(&self, key: &TableKey, path: &str) -> Option<Reason> {
        let (since, reason) = self.reasons.get(&SearchKey::new(key, path))?;
        (since.elapsed() < self.remembered).then(|| reason.clone())
    }

    pub(crate) fn insert(&mut self, key: &TableKey, path: &str, reason: Reason) {
        if self.swept.elapsed() >= self.remembered || self.reasons.len() >= limits::FAILURES_MAX {
            self.swept = Instant::now();
            self.reasons.retain(|_, (since, _)| since.elapsed() < self.remembered);
        }
        if self.reasons.len() >= limits::FAILURES_MAX {
            // No failure has expired, so all are dropped. Their files are searched for again, which is slower but never
            // wrong.
            self.reasons.clear();
        }
        self.reasons.insert(SearchKey::new(key, path), (Instant::now(), reason));
    }

    /// Drops the failures for `id` of all tenants. Called when a table for `id` has been made.
    pub(crate) fn remove(&mut self, id: &BuildId) {
        let hash = hash_of(id);
        self.reasons.retain(|key, _| key.table.hash != hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_expire_and_then_take_no_memory() {
        let mut failures = Failures::new(Duration::from_millis(50));
        let key = |id: BuildId| TableKey::of(&TenantId::default_tenant(), &id);
        let id = key(BuildId::Go("a".repeat(60_000)));
        failures.insert(&id, "/one", Reason::Stripped);
        assert_eq!(failures.get(&id, "/one"), Some(Reason::Stripped));
        assert_eq!((failures.get(&id, "/other"), failures.get(&key(BuildId::Go("b".into())), "/one")), (None, None));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(failures.get(&id, "/one"), None);
        failures.insert(&key(BuildId::Gnu(vec![1])), "/one", Reason::NoDebugFile);
        assert_eq!(failures.reasons.len(), 1, "the expired failure was dropped");
    }

    #[test]
    fn a_remembered_failure_is_small_whatever_the_name() {
        let entry = size_of::<(SearchKey, (Instant, Reason))>();
        assert!(entry <= 150, "{entry} bytes, all in place");
        let mut failures = Failures::new(Duration::from_secs(60));
        for i in 0..=limits::FAILURES_MAX {
            let key = TableKey::of(&TenantId::default_tenant(), &BuildId::Gnu(i.to_le_bytes().to_vec()));
            failures.insert(&key, "", Reason::NoDebugFile);
        }
        assert!(failures.reasons.len() <= limits::FAILURES_MAX);
    }
}
