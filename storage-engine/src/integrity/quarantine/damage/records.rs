//! Damage in the database: one record for each area, and one for each partition that lost batch IDs (`FORMAT.md`).
//!
//! A flush writes a copy of the damage that has changed. What changes meanwhile is written by the next flush.

use std::collections::{BTreeMap, BTreeSet};

use proto::Tier;
use rocksdb::WriteBatch;

use super::Damage;
use crate::database::frame;
use crate::database::key::{self, PartitionKey, StaleKey};
use crate::database::{self, Snapshot};
use crate::error::EngineError;
use crate::integrity::quarantine::area::Area;
use crate::integrity::quarantine::damaged_keys::{Walk, after};

impl Damage {
    /// Returns the damage that is not in the database yet.
    pub(crate) fn unwritten(&self) -> UnwrittenDamage {
        let areas = self.changed.iter().map(|key| (*key, self.areas.get(key).cloned().unwrap_or_default()));
        let without_batch_ids = self.changed.intersection(&self.without_batch_ids).copied();
        UnwrittenDamage {
            areas: areas.collect(),
            without_batch_ids: without_batch_ids.collect(),
            stale: self.unwritten_stale.clone(),
            lost: self.lost.clone(),
        }
    }

    /// Records that damage was written. Damage that changed after `written` was taken stays unwritten.
    pub(crate) fn wrote(&mut self, written: &UnwrittenDamage) {
        let Self { areas, without_batch_ids, changed, unwritten_stale, lost, .. } = self;
        changed.retain(|key| {
            if without_batch_ids.contains(key) != written.without_batch_ids.contains(key) {
                return true;
            }
            let now = areas.get(key);
            written.areas.get(key).is_none_or(|then| now.map_or(!then.is_empty(), |now| now != then))
        });
        unwritten_stale.retain(|key| !written.stale.contains(key));
        lost.retain(|key| !written.lost.contains(key));
    }

    /// Reads the damage from the database. The key of a record holds the area, so a record with a damaged value still
    /// counts. Areas whose keys cannot be read are quarantined anew when the engine is opened.
    pub(crate) fn read(snapshot: &Snapshot<'_>) -> Result<Self, EngineError> {
        let mut damage = Self { replaced: read_replaced(snapshot)?, ..Self::default() };
        let mut walk = Walk::new(snapshot, key::damage().to_vec());
        while let Some(item) = walk.next()? {
            let Ok((at, value)) = item else { continue };
            if let Some((key, [])) = key::read_damage(&at) {
                damage.without_batch_ids.insert(key);
                continue;
            }
            let Some((key, area)) = Area::read_key(&at) else { continue };
            let text = frame::open(&at, &value).unwrap_or_default();
            damage.areas.entry(key).or_default().insert(area, String::from_utf8_lossy(text).into_owned());
        }
        Ok(damage)
    }
}

/// Copy of the damage that is not in the database yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnwrittenDamage {
    areas: BTreeMap<PartitionKey, BTreeMap<Area, String>>,
    without_batch_ids: BTreeSet<PartitionKey>,
    stale: BTreeSet<StaleKey>,
    lost: Vec<Vec<u8>>,
}

impl UnwrittenDamage {
    pub(crate) fn write(&self, batch: &mut WriteBatch) {
        for (key, areas) in &self.areas {
            let records = key::damage_of(*key);
            batch.delete_range(records.clone(), [records.as_slice(), &[0xff; 17]].concat());
            for (area, what) in areas {
                database::put(batch, &area.key(*key), what.as_bytes());
            }
        }
        self.without_batch_ids.iter().for_each(|key| database::put(batch, &key::damage_of(*key), &[]));
        self.stale.iter().for_each(|key| database::put(batch, &key.bytes(), &[]));
        self.lost.iter().for_each(|key| batch.delete(key));
    }
}

/// Reads the replaced partitions ([`Damage::replaced`]) from their markers in the database.
fn read_replaced(snapshot: &Snapshot<'_>) -> Result<BTreeMap<PartitionKey, u64>, EngineError> {
    let mut replaced = BTreeMap::new();
    let mut walk = Walk::new(snapshot, key::quarantined_partitions().to_vec());
    while let Some(item) = walk.next()? {
        let Ok((at, value)) = item else { continue };
        let Some(found) = PartitionKey::of_quarantined(&at) else { continue };
        // A partition's marker is the first of its moved keys. Raw samples have no marker: that of their minutes
        // counts.
        let marked = frame::open(&at, &value).ok().and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
        if found.tier == Tier::Raw {
            replaced.entry(found.in_tier(Tier::Minute)).or_default();
        } else {
            replaced.insert(found, marked.unwrap_or_default());
        }
        walk.seek(key::quarantined(&after(&found.prefix())));
    }
    Ok(replaced)
}
