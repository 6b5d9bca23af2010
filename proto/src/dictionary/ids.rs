//! Where the entries of a table are, by hash.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use hashbrown::HashTable;

/// Another one in each process: who sends entries can make their hashes alike, but not what is kept of them. No id depends on it.
static KEYS: LazyLock<[u64; 2]> = LazyLock::new(|| [(); 2].map(|()| RandomState::new().build_hasher().finish()));

/// Ids by the hashes of their entries; the entries are elsewhere.
///
/// It keeps 32 bits of each hash, so that it grows without asking for any entry, and seldom asks for one that is another.
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
    /// All bits of a hash of 64, of which tables use both ends.
    fn spread(hash: u32) -> u64 {
        // 2^64 divided by the golden ratio, odd.
        u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

/// What is kept of a hash: something of all its bits.
pub(crate) fn kept(hash: u128) -> u32 {
    let [low, high] = *KEYS;
    let product = u128::from(hash as u64 ^ low) * u128::from((hash >> 64) as u64 ^ high);
    ((product >> 64) as u64 ^ product as u64) as u32
}

impl Ids {
    /// The id of the entry with this hash for which `is_it`.
    pub(crate) fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let found = self.slots.find(Slot::spread(hash), |slot| slot.hash == hash && is_it(slot.id));
        found.map(|slot| slot.id)
    }

    /// Adds an entry that is not here yet.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        self.slots.insert_unique(Slot::spread(hash), Slot { hash, id }, |slot| Slot::spread(slot.hash));
    }

    /// The id of the entry with this hash for which `is_it`; if there is none, `new`, which is the id of it from now on.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, hash: u32, new: u32, mut is_it: impl FnMut(u32) -> bool) -> u32 {
        let slot = self.slots.entry(
            Slot::spread(hash),
            |slot| slot.hash == hash && is_it(slot.id),
            |slot| Slot::spread(slot.hash),
        );
        slot.or_insert(Slot { hash, id: new }).get().id
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.slots.reserve(additional, |slot| Slot::spread(slot.hash));
    }

    /// Bytes that it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.slots.allocation_size()
    }
}

/// Ids are dense u32: a dictionary is bounded (`limits`) long before it holds 2^32 entries.
pub(crate) fn dense(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
