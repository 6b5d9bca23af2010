//! Finds and truncates the torn end that a power cut leaves in RocksDB's list of files (`MANIFEST-NNNNNN`).
//!
//! RocksDB appends the records of one change, syncs the file, and only then relies on the records. If a sector of a
//! record never reached the disk, neither that record nor any later one is needed. RocksDB can open a list that ends
//! early. But a file system that writes a file's new length before the data may leave a list of full length in which a
//! sector is missing. RocksDB refuses such a list, or skips a record that begins in the missing sector.
//!
//! Invariant: a list is truncated only at a record with a sector of zeros, so the remaining list describes the database
//! at an earlier moment. A record with other damage is kept, and RocksDB refuses the list. RocksDB later deletes the
//! files that only the truncated records name, so the caller must first decide if those files are needed.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::record_file::{self, BLOCK, FIRST, HEADER, Header, MIDDLE};

/// Size, in bytes, of the smallest unit that a disk writes as a whole.
const SECTOR: usize = 512;

/// The torn end of RocksDB's list of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Path of the list of files.
    pub path: PathBuf,
    /// Length of the list of files without its torn end, in bytes.
    pub length: u64,
}

impl TornTail {
    /// Finds the torn end of the list of files of the database in `directory`; `None` if the list has no torn end.
    ///
    /// # Errors
    /// The list cannot be read, or has a record that would make RocksDB read without end ([`record_file::check`]).
    pub fn find(directory: &Path) -> io::Result<Option<Self>> {
        let current = match fs::read_to_string(directory.join("CURRENT")) {
            // The directory has no database yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let path = directory.join(current.trim_end());
        let bytes = fs::read(&path)?;
        record_file::check_records(&path, bytes.as_slice())?;
        // An end of only zeros is space that was never written, and is not torn.
        let torn = torn_at(&bytes).filter(|&length| bytes[length..].iter().any(|&byte| byte != 0));
        Ok(torn.map(|length| Self { path, length: length as u64 }))
    }

    /// Truncates the list of files to `length`, and syncs it.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn truncate(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_len(self.length)?;
        file.sync_all()
    }
}

/// Returns the offset of the first record that has a sector of zeros or consists of zeros; `None` if there is none.
fn torn_at(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    // A record that does not fit into one block continues in the next. The whole record is torn if one of its parts is.
    let mut start = 0;
    let mut goes_on = false;
    loop {
        let left = BLOCK - at % BLOCK;
        if left < HEADER {
            at += left;
        }
        let header = Header::read(bytes, at)?;
        if header.is_unwritten() {
            return Some(if goes_on { start } else { at });
        }
        if !goes_on {
            start = at;
        }
        if !header.is_good(bytes, at) {
            return misses_a_sector(bytes, at).then_some(start);
        }
        at += HEADER + header.length;
        goes_on = header.kind == FIRST || header.kind == MIDDLE;
    }
}

/// Returns true if one sector, from the record at `start` to the end of the file, has only zeros. Of the first sector,
/// only the bytes from `start` on count.
fn misses_a_sector(bytes: &[u8], start: usize) -> bool {
    let (first, rest) = bytes.split_at(bytes.len().min((start / SECTOR + 1) * SECTOR));
    let mut parts = rest.chunks(SECTOR).chain(first.get(start..));
    parts.any(|part| part.iter().all(|&byte| byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_file::masked;

    /// Returns the bytes of a MANIFEST with records of these lengths, and the offset of each record.
    fn manifest(lengths: &[usize]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for &length in lengths {
            starts.push(bytes.len());
            let mut left = vec![7_u8; length];
            let mut is_first = true;
            loop {
                let left_of_block = BLOCK - bytes.len() % BLOCK;
                if left_of_block < HEADER {
                    bytes.extend(vec![0; left_of_block]);
                    continue;
                }
                let rest = left.split_off(left.len().min(left_of_block - HEADER));
                let is_last = rest.is_empty();
                let kind = match (is_first, is_last) {
                    (true, true) => 1,
                    (true, false) => FIRST,
                    (false, false) => MIDDLE,
                    (false, true) => 4,
                };
                let of = [&[kind], left.as_slice()].concat();
                bytes.extend(masked(crc32c::crc32c(&of)).to_le_bytes());
                bytes.extend((left.len() as u16).to_le_bytes());
                bytes.extend(of);
                if is_last {
                    break;
                }
                (left, is_first) = (rest, false);
            }
        }
        (bytes, starts)
    }

    #[test]
    fn a_missing_sector_is_a_tear_and_a_flipped_bit_is_not() {
        for lengths in [&[100, 3000][..], &[100, 30_000, 50_000]] {
            let (bytes, starts) = manifest(lengths);
            let last = starts[starts.len() - 1];
            assert_eq!(torn_at(&bytes), None, "it is whole");
            for sector in last / SECTOR + 1..=bytes.len() / SECTOR {
                let mut torn = bytes.clone();
                torn[sector * SECTOR..bytes.len().min((sector + 1) * SECTOR)].fill(0);
                assert_eq!(torn_at(&torn), Some(last), "sector {sector}");
            }
            for at in (0..bytes.len()).step_by(37) {
                let mut flipped = bytes.clone();
                flipped[at] ^= 4;
                assert_eq!(torn_at(&flipped), None, "byte {at}");
            }
        }
    }

    fn truncate(directory: &Path) {
        TornTail::find(directory).unwrap().expect("a torn end").truncate().unwrap();
        assert_eq!(TornTail::find(directory).unwrap(), None);
    }

    #[test]
    fn a_torn_list_ends_before_the_record_with_the_missing_sector() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("CURRENT"), "MANIFEST-000007\n").unwrap();
        let path = folder.path().join("MANIFEST-000007");
        for lengths in [&[100, 3000, 10][..], &[100, 50_000, 40_000]] {
            let (bytes, starts) = manifest(lengths);
            for sector in starts[1] / SECTOR + 1..starts[2] / SECTOR {
                let mut torn = bytes.clone();
                torn[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
                std::fs::write(&path, &torn).unwrap();
                truncate(folder.path());
                assert_eq!(std::fs::read(&path).unwrap(), bytes[..starts[1]]);
            }
        }
        // The missing sector contains whole records, and is followed by another record.
        let (mut bytes, starts) = manifest(&[SECTOR - HEADER, 100, SECTOR - HEADER - 107, 10]);
        assert_eq!((starts[1], starts[3]), (SECTOR, 2 * SECTOR));
        bytes[SECTOR..2 * SECTOR].fill(0);
        std::fs::write(&path, &bytes).unwrap();
        truncate(folder.path());
        assert_eq!(std::fs::read(&path).unwrap().len(), SECTOR);
        // Zeros after the last record are space that was never written.
        let padded = [manifest(&[100]).0, vec![0; 5000]].concat();
        std::fs::write(&path, &padded).unwrap();
        assert_eq!(TornTail::find(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_record_without_the_sector_of_its_header_is_torn() {
        let (mut bytes, starts) = manifest(&[SECTOR - HEADER - 3, 100]);
        bytes[starts[1]..SECTOR].fill(0);
        assert_eq!((starts[1], torn_at(&bytes)), (SECTOR - 3, Some(SECTOR - 3)));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut state = 1_u64;
        for length in 0..600 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
            assert!(torn_at(&bytes).is_none_or(|at| at <= length));
        }
    }
}
