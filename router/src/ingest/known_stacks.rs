//! Which stacks shards hold, as far as this router remembers: what is not defined need not be read, sent and left out again.
//!
//! A cache of hashes, of a fixed size, that is never asked for the truth: a shard refuses a batch that refers to a stack which it
//! does not hold, and gets it again with all definitions. So what is forgotten, or wrong, costs time and nothing else.
//! A stack is held by the partition of a tenant in a shard: each of the three is a part of its key.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::placement::{Placement, Slot};
use proto::tier::interval_of;
use proto::{StackHash, TenantId, Tier};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys in one set, which share a cache line of the processor.
const WAYS: usize = 4;

/// Of four keys: 2^20 in all, 8 MiB.
const SETS: usize = 1 << 18;

/// See the module.
#[derive(Debug)]
pub(crate) struct KnownStacks {
    /// Keys, 0 where there is none. Each stands by itself, so no order is needed between them.
    sets: Box<[[AtomicU64; WAYS]]>,
}

impl Default for KnownStacks {
    fn default() -> Self {
        Self { sets: (0..SETS).map(|_| Default::default()).collect() }
    }
}

/// Keys of one push that are remembered: of more, none, since it would take the room of all others.
const TOLD_MAX: usize = SETS * WAYS / 16;

/// What one stack is in one place; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl KnownStacks {
    fn set(&self, key: Key) -> &[AtomicU64; WAYS] {
        &self.sets[(key.0 >> 32) as usize % SETS]
    }

    fn contains(&self, key: Key) -> bool {
        self.set(key).iter().any(|slot| slot.load(Ordering::Relaxed) == key.0)
    }

    /// Remembers what shards have acknowledged, in place of others where there is no room.
    pub(crate) fn add(&self, keys: &[Key]) {
        if keys.len() > TOLD_MAX {
            return;
        }
        for &key in keys.iter().filter(|key| !self.contains(**key)) {
            let set = self.set(key);
            let free = set.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
            free.unwrap_or(&set[key.0 as usize / 2 % WAYS]).store(key.0, Ordering::Relaxed);
        }
    }
}

/// Where samples of one service and time are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

/// The places of one service's samples, by time.
#[derive(Debug)]
pub(crate) struct Places {
    shard: u32,
    /// Of tenant and shard.
    seed: u64,
    /// The place of the times behind this one, until the next partition begins: nearly always the next one's, too.
    last: Option<(i64, Place)>,
}

impl Places {
    pub(crate) fn at(&mut self, time_ns: i64, knowledge: &mut Knowledge<'_>) -> Place {
        let length = Tier::Raw.partition_ns();
        if let Some((start_ns, place)) = self.last
            && (1..=length).contains(&time_ns.saturating_sub(start_ns))
        {
            return place;
        }
        let interval = interval_of(time_ns, length);
        let place = Place(xxh3_64_with_seed(&interval.to_le_bytes(), self.seed));
        self.last = Some((i64::from(interval) * length, place));
        knowledge.reaches(self.shard, place);
        place
    }
}

/// What the decoder of one push asks, and what it finds that must be told.
#[derive(Debug)]
pub(crate) struct Knowledge<'k> {
    known: Option<&'k KnownStacks>,
    tenant: &'k TenantId,
    placement: &'k Placement,
    /// Defined by the push.
    told: Vec<Key>,
    /// By shard, the partition that the push reaches.
    places: BTreeMap<u32, Place>,
    /// It reaches more than one of a shard.
    is_spread: bool,
}

impl<'k> Knowledge<'k> {
    /// `known`: `None` where everything is to be told.
    pub(crate) fn new(known: Option<&'k KnownStacks>, tenant: &'k TenantId, placement: &'k Placement) -> Self {
        Self { known, tenant, placement, told: Vec::new(), places: BTreeMap::new(), is_spread: false }
    }

    /// Whether everything is told.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_none()
    }

    /// Where a service's samples are held.
    pub(crate) fn places(&self, service_name: &str) -> Places {
        let shard = self.placement.shard(Slot::of(self.tenant, service_name));
        Places { shard, seed: xxh3_64_with_seed(self.tenant.as_str().as_bytes(), shard.into()), last: None }
    }

    fn reaches(&mut self, shard: u32, place: Place) {
        self.is_spread |= *self.places.entry(shard).or_insert(place) != place;
    }

    /// Whether the push reaches several partitions of a shard. Each must hold what is left out of a batch, whichever of them refers
    /// to it, so all is to be told.
    pub(crate) fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// The key of a stack that a place may not hold, if it is one.
    pub(crate) fn unknown(&self, place: Place, stack: StackHash) -> Option<Key> {
        let halves = (stack.0 as u64) ^ (stack.0 >> 64) as u64;
        let key = Key((halves ^ place.0) | 1);
        self.known.is_none_or(|known| !known.contains(key)).then_some(key)
    }

    /// Notes a stack that is defined.
    pub(crate) fn tell(&mut self, key: Key) {
        self.told.push(key);
    }

    /// How many stacks were noted so far, for [`Knowledge::keep_told`].
    pub(crate) fn told_count(&self) -> usize {
        self.told.len()
    }

    /// Drops all notes but the first `count`: the profile that defines the others is refused, so no shard receives them.
    pub(crate) fn keep_told(&mut self, count: usize) {
        self.told.truncate(count);
    }

    /// What the push defines: to be remembered when it is acknowledged.
    pub(crate) fn told(self) -> Vec<Key> {
        self.told
    }
}

/// What is decoded where this much is known, and what it tells.
#[cfg(test)]
pub(crate) fn knowing<T, E>(
    known: Option<&KnownStacks>,
    decode: impl FnOnce(&mut Knowledge<'_>) -> Result<T, E>,
) -> Result<(T, Vec<Key>), E> {
    let (tenant, placement) = (TenantId::default_tenant(), Placement::single_shard());
    let mut knowledge = Knowledge::new(known, &tenant, &placement);
    let decoded = decode(&mut knowledge)?;
    Ok((decoded, knowledge.told()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_known_where_it_was_told_and_nowhere_else() {
        let (known, placement) = (KnownStacks::default(), Placement::single_shard());
        let tenants = ["one", "two"].map(|name| TenantId::new(name).unwrap());
        let stack = StackHash(7 << 64 | 9);
        let hours = |n: i64| n * 3_600_000_000_000;
        let is_new = |tenant, time_ns, told: bool| {
            let mut knowledge = Knowledge::new(Some(&known), tenant, &placement);
            let place = knowledge.places("api").at(time_ns, &mut knowledge);
            let unknown = knowledge.unknown(place, stack);
            if told {
                known.add(unknown.as_slice());
            }
            unknown.is_some()
        };
        assert!(is_new(&tenants[0], hours(1), false));
        assert!(is_new(&tenants[0], hours(1), true));
        assert!(!is_new(&tenants[0], hours(6), false), "the last nanosecond of the same partition");
        assert!(is_new(&tenants[0], hours(6) + 1, false) && is_new(&tenants[1], hours(1), false));
        let mut whole = Knowledge::new(None, &tenants[0], &placement);
        let mut places = whole.places("api");
        let place = places.at(hours(1), &mut whole);
        assert!(whole.unknown(place, stack).is_some() && !whole.is_spread());
        places.at(hours(7), &mut whole);
        assert!(whole.is_spread());
    }

    #[test]
    fn it_never_grows_and_what_came_last_is_there() {
        let known = KnownStacks::default();
        // All of one set.
        let key = |n: u64| Key(n << 1 | 1);
        for n in 0..100 {
            known.add(&[key(n)]);
            assert!(known.contains(key(n)));
        }
        assert_eq!((0..100).filter(|&n| known.contains(key(n))).count(), WAYS);
        let flood: Vec<Key> = (0..=TOLD_MAX as u64).map(|n| Key(n << 32 | 1)).collect();
        known.add(&flood);
        assert!(known.contains(key(99)) && !known.contains(flood[7]), "one push takes not the room of all");
    }
}
