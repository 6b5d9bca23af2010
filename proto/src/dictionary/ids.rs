//! Hash index of a table, which finds the ID of an entry by the entry's hash.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use hashbrown::HashTable;

/// Random keys of this process, with which 32 bits are derived from each hash. A sender can choose entries with similar
/// hashes, but cannot predict these bits, so it cannot make the index slow. IDs do not depend on the keys.
static KEYS: LazyLock<[u64; 2]> = LazyLock::new(|| [(); 2].map(|()| RandomState::new().build_hasher().finish()));

/// Index from the hashes of entries to their IDs. The entries themselves are in the table that uses the index.
///
/// The index stores 32 bits for each entry, derived from its hash. So it grows without reading entries, and rarely
/// compares unequal entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ids {
    slots: HashTable<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: u32,
}

impl Slot {
    /// Spreads 32 bits over a hash of 64 bits, because the hash table uses the lowest and the highest bits.
    fn spread(hash: u32) -> u64 {
        // The factor is 2^64 divided by the golden ratio, rounded to an odd number.
        u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// Returns the 32 bits that the index stores for a hash. They depend on all bits of the hash.
pub(crate) fn kept(hash: u128) -> u32 {
    let [low, high] = *KEYS;
    let product = u128::from(hash as u64 ^ low) * u128::from((hash >> 64) as u64 ^ high);
    ((product >> 64) as u64 ^ product as u64) as u32
}

impl Ids {
    /// Returns the ID of the entry that has this hash, and for which `is_it` returns true.
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let found = self.slots.find(Slot::spread(hash), |slot| slot.hash == hash && is_it(slot.id));
        found.map(|slot| slot.id)
    }

    /// Adds an entry that is not in the index.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        self.slots.insert_unique(Slot::spread(hash), Slot { hash, id }, |slot| Slot::spread(slot.hash));
    }

    /// Returns the ID of the entry that has this hash, and for which `is_it` returns true. If there is none, adds the
    /// ID `new` and returns it.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, hash: u32, new: u32, mut is_it: impl FnMut(u32) -> bool) -> u32 {
        let slot = self.slots.entry(
            Slot::spread(hash),
            |slot| slot.hash == hash && is_it(slot.id),
            |slot| Slot::spread(slot.hash),
        );
        slot.or_insert(Slot { hash, id: new }).get().id
    }

    /// Allocates memory for additional entries.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.slots.reserve(additional, |slot| Slot::spread(slot.hash));
    }

    /// Size in memory, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size()
    }
}

/// Converts an index of a table to an ID. The limits of a dictionary are far below 2^32 entries.
pub(crate) fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
