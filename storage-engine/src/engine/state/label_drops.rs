//! Labels that the sums of each tenant drop, and the time from which they do.
//!
//! Time is divided into periods of eight days, those of the partitions of hours. A change holds from the first period
//! after all those in which the tenant had samples when the change was applied. No replica can have summed up hours or
//! days of such a period before, so all replicas drop the same labels from the same windows, whenever they sum them up.
//!
//! | key                         | value                                                                       |
//! |-----------------------------|-----------------------------------------------------------------------------|
//! | 01, tenant u32              | first period after those with samples, u32; revision of the last change, u64 |
//! | 01, tenant u32, period u32  | from this period on: names that hours drop, then names that days drop       |

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;

use proto::Tier;
use proto::tier::interval_of;

use crate::database::key;
use crate::database::{self, Snapshot, frame};
use crate::encoding::varint::{put, put_bytes, take_bytes, take_length};
use crate::error::{Corruption, CorruptionCheck, EngineError};

/// Length of a period, in nanoseconds.
pub(crate) const PERIOD_NS: i64 = Tier::Hour.partition_ns();

/// Names of labels: first those that hours drop, then those that days drop. Each list is sorted.
pub(crate) type Names = [Vec<String>; 2];

/// Labels that the sums of each tenant drop.
#[derive(Debug, Default)]
pub(crate) struct LabelDrops {
    tenants: BTreeMap<u32, OfTenant>,
    /// Keys and values that are not in the database yet.
    unwritten: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug, Default)]
struct OfTenant {
    /// First period after those with samples.
    unused: u32,
    /// Revision of the state of the meta group from which the last change is.
    revision: u64,
    /// Names by the period from which they hold.
    changes: BTreeMap<u32, Arc<Names>>,
}

impl OfTenant {
    fn encode(&self) -> Vec<u8> {
        [self.unused.to_be_bytes().as_slice(), &self.revision.to_be_bytes()].concat()
    }
}

impl LabelDrops {
    pub(crate) fn read(snapshot: &Snapshot<'_>) -> Result<Self, EngineError> {
        let mut drops = Self::default();
        for item in database::scan(snapshot, &key::label_drops()) {
            let (at, value) = item?;
            let corrupt = || Corruption { key: at.to_vec(), check: CorruptionCheck::Content };
            let payload = frame::open(&at, &value)?;
            let (tenant, period) = key::read_label_drops(&at).ok_or_else(corrupt)?;
            let of_tenant = drops.tenants.entry(tenant).or_default();
            match period {
                None => {
                    let (unused, revision) = payload.split_first_chunk().ok_or_else(corrupt)?;
                    let revision = revision.try_into().map_err(|_length| corrupt())?;
                    (of_tenant.unused, of_tenant.revision) =
                        (u32::from_be_bytes(*unused), u64::from_be_bytes(revision));
                }
                Some(period) => {
                    of_tenant.changes.insert(period, Arc::new(decode(payload).ok_or_else(corrupt)?));
                }
            }
        }
        Ok(drops)
    }

    /// Returns the names that a tenant's sums of new periods drop, and the revision of the state of the meta group from
    /// which they are.
    pub(crate) fn newest(&self, tenant: u32) -> (Arc<Names>, u64) {
        let revision = self.tenants.get(&tenant).map(|of_tenant| of_tenant.revision).unwrap_or_default();
        (self.of_period(tenant, u32::MAX), revision)
    }

    /// Returns the names that the windows of a tier drop in the period of a time, in nanoseconds since 1970.
    pub(crate) fn of(&self, tenant: u32, tier: Tier, time_ns: i64) -> Vec<String> {
        let [hours, days] = &*self.of_period(tenant, period_of(time_ns));
        match tier {
            Tier::Raw | Tier::Minute => Vec::new(),
            Tier::Hour => hours.clone(),
            Tier::Day => days.clone(),
        }
    }

    /// Returns the names that some of the windows from one period to another lack. Days also lack what hours drop.
    pub(crate) fn between(&self, tenant: u32, tier: Tier, [first, last]: [u32; 2]) -> BTreeSet<String> {
        let Some(OfTenant { changes, .. }) = self.tenants.get(&tenant) else { return BTreeSet::new() };
        let later = changes.iter().filter(|(period, _)| (first..=last).contains(*period));
        let names = iter::once(self.of_period(tenant, first)).chain(later.map(|(_, names)| Arc::clone(names)));
        let of_tier = |names: &Names| match (tier, names) {
            (Tier::Raw | Tier::Minute, _) => Vec::new(),
            (Tier::Hour, [hours, _]) => hours.clone(),
            (Tier::Day, [hours, days]) => [hours.as_slice(), days].concat(),
        };
        names.flat_map(|names| of_tier(&names)).collect()
    }

    fn of_period(&self, tenant: u32, period: u32) -> Arc<Names> {
        let changes = self.tenants.get(&tenant).map(|of_tenant| &of_tenant.changes);
        let change = changes.and_then(|changes| changes.range(..=period).next_back());
        change.map(|(_, names)| Arc::clone(names)).unwrap_or_default()
    }

    /// Records that a tenant has samples up to the end of a partition.
    pub(crate) fn note_samples(&mut self, tenant: u32, end_ns: i64) {
        let of_tenant = self.tenants.entry(tenant).or_default();
        let unused = period_of(end_ns).saturating_add(1);
        if of_tenant.unused < unused {
            of_tenant.unused = unused;
            self.unwritten.insert(key::label_drops_of(tenant, None), of_tenant.encode());
        }
    }

    /// Sets the names that a tenant's sums drop from the first period without samples on. An older revision than that
    /// of the last change is ignored.
    pub(crate) fn change(&mut self, tenant: u32, names: &Names, revision: u64) {
        let (newest, newest_revision) = self.newest(tenant);
        if revision < newest_revision || *newest == *names {
            return;
        }
        let of_tenant = self.tenants.entry(tenant).or_default();
        of_tenant.revision = revision;
        of_tenant.changes.insert(of_tenant.unused, Arc::new(names.clone()));
        self.unwritten.insert(key::label_drops_of(tenant, None), of_tenant.encode());
        self.unwritten.insert(key::label_drops_of(tenant, Some(of_tenant.unused)), encode(names));
    }

    /// Returns the keys and values that are not in the database yet.
    pub(crate) fn unwritten(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.unwritten.clone()
    }

    /// Records that keys were written with these values.
    pub(crate) fn wrote(&mut self, written: &BTreeMap<Vec<u8>, Vec<u8>>) {
        self.unwritten.retain(|key, value| written.get(key) != Some(value));
    }
}

/// Returns the number of the period of a time in nanoseconds since 1970.
pub(crate) fn period_of(time_ns: i64) -> u32 {
    interval_of(time_ns, PERIOD_NS)
}

/// Encodes two lists: the length of each, then the length and the bytes of each name.
fn encode(names: &Names) -> Vec<u8> {
    let mut out = Vec::new();
    for names in names {
        put(&mut out, names.len() as u64);
        names.iter().for_each(|name| put_bytes(&mut out, name.as_bytes()));
    }
    out
}

fn decode(mut bytes: &[u8]) -> Option<Names> {
    let mut names = Names::default();
    for names in &mut names {
        for _ in 0..take_length(&mut bytes)? {
            names.push(std::str::from_utf8(take_bytes(&mut bytes)?).ok()?.to_owned());
        }
    }
    bytes.is_empty().then_some(names)
}
