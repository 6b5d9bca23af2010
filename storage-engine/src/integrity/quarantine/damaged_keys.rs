//! Reads of the database that skip blocks with a wrong RocksDB checksum.
//!
//! An iterator that reads such a block stops with an error that does not name the block's keys. Seeks to keys inside
//! the block fail, and seeks to keys after the block succeed. So the next readable key is found by seeks at growing
//! distances, then by bisection. Good keys between two damaged blocks may be skipped if the blocks are near each other.

use rocksdb::{DB, DBRawIteratorWithThreadMode, ReadOptions};

use crate::error::{EngineError, is_corruption};

type Snapshot<'a> = rocksdb::SnapshotWithThreadMode<'a, DB>;

/// Key and value of one entry of the database.
type Item = (Box<[u8]>, Box<[u8]>);

/// RocksDB's iterator over keys and values.
pub(crate) type RawIterator<'a> = DBRawIteratorWithThreadMode<'a, DB>;

/// A range of keys, some of which may be unreadable.
#[derive(Debug)]
pub(crate) struct DamagedKeys {
    /// First key of the range.
    pub(crate) from: Vec<u8>,
    /// End of the range, exclusive: the next readable key, or the end of the range that is read.
    pub(crate) to: Vec<u8>,
    /// RocksDB's error, which names the table file.
    pub(crate) error: rocksdb::Error,
}

/// Makes iterators over the keys before `end`. An iterator must be replaced after its first error, because its later
/// seeks into the damaged block seem to succeed.
#[derive(Clone)]
pub(crate) struct Source<'a> {
    of: Of<'a>,
    end: Vec<u8>,
    fill_cache: bool,
}

#[derive(Clone, Copy)]
enum Of<'a> {
    Snapshot(&'a Snapshot<'a>),
    Database(&'a DB),
}

impl<'a> Source<'a> {
    /// Creates a source of the keys before `end` in a snapshot.
    pub(crate) fn new(snapshot: &'a Snapshot<'a>, end: Vec<u8>) -> Self {
        Self { of: Of::Snapshot(snapshot), end, fill_cache: true }
    }

    /// Returns a new iterator without a position.
    pub(crate) fn iterator(&self) -> RawIterator<'a> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(self.end.clone());
        options.fill_cache(self.fill_cache);
        match self.of {
            Of::Snapshot(snapshot) => snapshot.raw_iterator_opt(options),
            Of::Database(database) => database.raw_iterator_opt(options),
        }
    }

    /// Replaces an iterator that failed at or after `from`. Returns an iterator at the first readable key at or after
    /// `from`, and the range of keys before it that cannot be read, if there is one.
    pub(crate) fn after_error(&self, from: &[u8]) -> Result<(RawIterator<'a>, Option<DamagedKeys>), EngineError> {
        // A step to the key may have failed although the key itself can be read.
        let error = match self.sought(from) {
            (iterator, Ok(())) => return Ok((iterator, None)),
            (_, Err(error)) if is_corruption(&error) => error,
            (_, Err(error)) => return Err(error.into()),
        };
        let to = self.first_readable(from);
        let iterator = self.sought(&to).0;
        Ok((iterator, Some(DamagedKeys { from: from.to_vec(), to, error })))
    }

    /// Returns the exclusive end of the keys that the source reads.
    pub(crate) fn end(&self) -> &[u8] {
        &self.end
    }

    fn sought(&self, key: &[u8]) -> (RawIterator<'a>, Result<(), rocksdb::Error>) {
        let mut iterator = self.iterator();
        iterator.seek(key);
        let status = iterator.status();
        (iterator, status)
    }

    /// Returns the first key after `from` to which a seek succeeds, or the end. A seek to `from` must have failed.
    fn first_readable(&self, from: &[u8]) -> Vec<u8> {
        let length = from.len().max(self.end.len());
        let padded = |key: &[u8]| {
            let mut key = key.to_vec();
            key.resize(length, 0);
            key
        };
        let first = padded(from);
        let mut good = padded(&self.end);
        let mut bad = first.clone();
        // The distance doubles each time, so that a damaged block far away is not treated as the same one.
        for bit in 0..length * 8 {
            let Some(probe) = plus(&first, bit).filter(|probe| *probe < good) else { break };
            if self.sought(&probe).1.is_ok() {
                good = probe;
                break;
            }
            bad = probe;
        }
        loop {
            let middle = middle(&bad, &good);
            if middle <= bad {
                break;
            }
            if self.sought(&middle).1.is_ok() {
                good = middle;
            } else {
                bad = middle;
            }
        }
        if good >= padded(&self.end) { self.end.clone() } else { good }
    }
}

/// Iterator over keys and values in order. It continues after keys that cannot be read.
pub(crate) struct Walk<'a> {
    source: Source<'a>,
    iterator: RawIterator<'a>,
    /// Lower bound of the keys that are not visited yet.
    at: Vec<u8>,
    is_sought: bool,
}

impl<'a> Walk<'a> {
    /// Creates a walk over all keys that begin with `prefix`.
    pub(crate) fn new(snapshot: &'a Snapshot<'a>, prefix: Vec<u8>) -> Self {
        let end = after(&prefix);
        Self::between(snapshot, prefix, end, true)
    }

    /// Creates a walk as [`Walk::new`] does, but does not put the blocks that it reads into the cache.
    pub(crate) fn once(snapshot: &'a Snapshot<'a>, prefix: Vec<u8>) -> Self {
        let end = after(&prefix);
        Self::between(snapshot, prefix, end, false)
    }

    /// Creates a walk over the keys from `from`, inclusive, to `end`, exclusive.
    pub(crate) fn between(snapshot: &'a Snapshot<'a>, from: Vec<u8>, end: Vec<u8>, fill_cache: bool) -> Self {
        Self::of(Source { of: Of::Snapshot(snapshot), end, fill_cache }, from)
    }

    /// Creates a walk over keys of a database that nothing writes to. Does not put the blocks that it reads into the
    /// cache.
    pub(crate) fn on(database: &'a DB, from: Vec<u8>, end: Vec<u8>) -> Self {
        Self::of(Source { of: Of::Database(database), end, fill_cache: false }, from)
    }

    fn of(source: Source<'a>, from: Vec<u8>) -> Self {
        let iterator = source.iterator();
        Self { source, iterator, at: from, is_sought: false }
    }

    /// Continues at the first key that is not less than `key`.
    pub(crate) fn seek(&mut self, key: Vec<u8>) {
        self.at = key;
        self.is_sought = false;
    }

    /// Returns the next key and value, or the next range of keys that cannot be read; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Result<Item, DamagedKeys>>, EngineError> {
        if self.at.as_slice() >= self.source.end() {
            return Ok(None);
        }
        if self.is_sought {
            self.iterator.next();
        } else {
            self.iterator.seek(&self.at);
            self.is_sought = true;
        }
        if self.iterator.item().is_none() && self.iterator.status().is_err() {
            let (iterator, damaged) = self.source.after_error(&self.at)?;
            self.iterator = iterator;
            if let Some(damaged) = damaged {
                self.seek(damaged.to.clone());
                return Ok(Some(Err(damaged)));
            }
        }
        let Some((key, value)) = self.iterator.item() else {
            self.at = self.source.end().to_vec();
            return Ok(None);
        };
        self.at.clear();
        self.at.extend_from_slice(key);
        self.at.push(0);
        Ok(Some(Ok((key.into(), value.into()))))
    }
}

/// Returns the end of the range of all keys that begin with a prefix.
pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
    // No key continues with 20 bytes of ones.
    [prefix, &[0xff; 20]].concat()
}

/// Returns the sum of a big-endian number and a power of two; `None` if it overflows.
fn plus(number: &[u8], bit: usize) -> Option<Vec<u8>> {
    let mut sum = number.to_vec();
    let mut place = sum.len().checked_sub(bit / 8 + 1)?;
    let mut added = 1_u16 << (bit % 8);
    loop {
        let digit = u16::from(sum[place]) + added;
        sum[place] = (digit & 0xff) as u8;
        added = digit >> 8;
        if added == 0 {
            return Some(sum);
        }
        place = place.checked_sub(1)?;
    }
}

/// Returns the mean of two big-endian numbers of the same length.
fn middle(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut sum = Vec::with_capacity(a.len() + 1);
    let mut carry = 0_u16;
    for (x, y) in a.iter().rev().zip(b.iter().rev()) {
        let digit = u16::from(*x) + u16::from(*y) + carry;
        sum.push((digit & 0xff) as u8);
        carry = digit >> 8;
    }
    let mut half = Vec::with_capacity(a.len());
    for digit in sum.into_iter().rev() {
        let value = carry << 8 | u16::from(digit);
        half.push((value >> 1) as u8);
        carry = value & 1;
    }
    half
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_two_numbers_is_rounded_down() {
        assert_eq!(middle(&[0, 0], &[1, 0]), [0, 128]);
        assert_eq!(middle(&[255, 254], &[255, 255]), [255, 254]);
        assert_eq!(middle(&[255, 0], &[255, 255]), [255, 127]);
    }

    #[test]
    fn adding_a_power_of_two_carries_and_detects_overflow() {
        assert_eq!(plus(&[0, 0], 0), Some(vec![0, 1]));
        assert_eq!(plus(&[0, 255], 0), Some(vec![1, 0]));
        assert_eq!(plus(&[1, 128], 7), Some(vec![2, 0]));
        assert_eq!(plus(&[128, 0], 15), None);
        assert_eq!(plus(&[0, 0], 16), None);
    }

    /// A walk over a file with one flipped bit in each of two blocks, which are far from each other.
    #[test]
    fn a_walk_passes_damaged_blocks_and_returns_all_other_keys() {
        let folder = tempfile::tempdir().unwrap();
        let key = |number: u32| [&[7_u8], number.to_be_bytes().as_slice()].concat();
        let value = |number: u32| number.to_le_bytes().repeat(50);
        let mut options = rocksdb::Options::default();
        options.create_if_missing(true);
        options.set_compression_type(rocksdb::DBCompressionType::None);
        let database = DB::open(&options, folder.path()).unwrap();
        (0..2000).for_each(|number| database.put(key(number), value(number)).unwrap());
        database.flush().unwrap();
        drop(database);
        let file = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = file.into_iter().find(|path| path.extension().is_some_and(|name| name == "sst")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let quarter = bytes.len() / 4;
        let half = bytes.len() / 2;
        bytes[quarter] ^= 1;
        bytes[half] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let database = DB::open(&options, folder.path()).unwrap();
        let snapshot = database.snapshot();
        let mut walk = Walk::new(&snapshot, vec![7]);
        let mut seen = Vec::new();
        let mut bad = Vec::new();
        while let Some(item) = walk.next().unwrap() {
            match item {
                Ok((at, of)) => {
                    let number = u32::from_be_bytes(at[1..].try_into().unwrap());
                    assert_eq!(*of, *value(number));
                    seen.push(number);
                }
                Err(damaged) => bad.push(damaged),
            }
        }
        assert_eq!(bad.len(), 2);
        assert!(bad[0].error.to_string().contains(".sst"), "{}", bad[0].error);
        // A block has 4 KiB, so about 19 values.
        assert!((1940..2000).contains(&seen.len()), "{}", seen.len());
        let lost = |number: &u32| bad.iter().any(|keys| keys.from <= key(*number) && key(*number) < keys.to);
        let wanted: Vec<u32> = (0..2000).filter(|number| !lost(number)).collect();
        assert_eq!(seen, wanted, "other keys are skipped or returned twice");
    }
}
