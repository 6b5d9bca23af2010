//! A cursor over one section of one partition.
//!
//! Keys ascend by series, and most reads do, too: the next key to read is usually the next key of the database or a few
//! keys later. The cursor seeks only for keys that are earlier or farther away, and one database iterator serves all
//! series.

use crate::database::Snapshot;
use crate::error::EngineError;
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, RawIterator, Source, after};

/// Number of steps with which the cursor tries to reach a later key before it seeks.
const STEPS_MAX: usize = 6;

/// Key and value of one entry of the database.
type Item<'a> = (&'a [u8], &'a [u8]);

/// Position in a section that moves by steps where possible, because a step is cheaper than a seek.
pub(crate) struct Cursor<'a> {
    source: Source<'a>,
    iterator: RawIterator<'a>,
    /// Lower bound of the cursor's position: the key of the last seek, or the smallest key after the last item; `None`
    /// before the first seek.
    floor: Option<Vec<u8>>,
    /// True if the section has no readable key at or after `floor`.
    is_at_end: bool,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor over all keys that begin with `prefix`.
    pub(crate) fn new(snapshot: &'a Snapshot<'a>, prefix: Vec<u8>) -> Self {
        let source = Source::new(snapshot, after(&prefix));
        let iterator = source.iterator();
        Self { source, iterator, floor: None, is_at_end: false }
    }

    /// Moves to the first key that is not less than `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        let mut steps = match &self.floor {
            Some(floor) if floor.as_slice() <= key => STEPS_MAX,
            _ => 0,
        };
        while steps > 0 && self.iterator.key().is_some_and(|at| at < key) {
            self.iterator.next();
            steps -= 1;
        }
        if steps == 0 {
            self.iterator.seek(key);
        }
        self.is_at_end = false;
        let floor = self.floor.get_or_insert_default();
        floor.clear();
        floor.extend_from_slice(key);
    }

    /// Moves to the next key.
    pub(crate) fn next(&mut self) {
        if let (Some(at), Some(floor)) = (self.iterator.key(), &mut self.floor) {
            floor.clear();
            floor.extend_from_slice(at);
            floor.push(0);
            self.iterator.next();
        }
    }

    /// Moves the cursor behind the keys that [`Cursor::item`] failed to read. Returns the range of these keys; `None`
    /// if the key at the cursor can be read after all.
    pub(crate) fn skip_damaged_keys(&mut self) -> Result<Option<DamagedKeys>, EngineError> {
        let floor = self.floor.take().unwrap_or_default();
        let (iterator, damaged) = self.source.after_error(&floor)?;
        self.iterator = iterator;
        self.is_at_end = damaged.as_ref().is_some_and(|keys| keys.to.as_slice() >= self.source.end());
        self.floor = Some(damaged.as_ref().map_or(floor, |keys| keys.to.clone()));
        Ok(damaged)
    }

    /// Returns the key and value at the cursor; `None` at the end of the section.
    pub(crate) fn item(&self) -> Result<Option<Item<'_>>, EngineError> {
        if self.is_at_end {
            return Ok(None);
        }
        let item = self.iterator.item();
        if item.is_none() {
            self.iterator.status()?;
        }
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rocksdb::DB;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn seek_finds_the_first_key_not_less_from_any_position(
            keys in prop::collection::btree_set(0..60_u8, 0..40),
            moves in prop::collection::vec((0..64_u8, 0..3_usize), 1..40),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let database = DB::open_default(folder.path()).unwrap();
            keys.iter().for_each(|&key| database.put([1, key], [key]).unwrap());
            database.put([2, 0], []).unwrap();
            let snapshot = database.snapshot();
            let mut cursor = Cursor::new(&snapshot, vec![1]);
            for (key, steps) in moves {
                cursor.seek(&[1, key]);
                (0..steps).for_each(|_| cursor.next());
                let wanted = keys.range(key..).nth(steps).map(|&key| vec![1, key]);
                prop_assert_eq!(cursor.item().unwrap().map(|item| item.0.to_vec()), wanted);
            }
        }
    }
}
