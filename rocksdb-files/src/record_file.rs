//! Files of records as RocksDB writes them: its list of files, `MANIFEST-NNNNNN`, and its write-ahead logs.
//!
//! ```text
//! block of 32 KiB:  record ... zeros
//! record:           | CRC-32C, masked, u32 LE | length u16 LE | kind u8 | `length` bytes of data |
//! ```
//!
//! A part of a record never crosses the end of a block: a longer record is split into one part for each block. A header
//! of kind 0 and length 0 is space that was never written.
//!
//! Some record kinds occur only in recycled logs. If any record after the first has such a kind, RocksDB reads the file
//! without end: it takes the record for the end of the log, and tries again. One flipped bit can cause this. varve
//! recycles no logs, so such a kind is damage, and [`check`] finds it before RocksDB reads the file.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;

pub(crate) const BLOCK: usize = 32 << 10;
pub(crate) const HEADER: usize = 7;
const WHOLE: u8 = 1;
/// Kind of the first part of a record that continues in the next block. `MIDDLE` and `LAST` are the kinds of its other
/// parts.
pub(crate) const FIRST: u8 = 2;
pub(crate) const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Header of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    crc: [u8; 4],
    pub(crate) length: usize,
    pub(crate) kind: u8,
}

impl Header {
    /// Returns the header of the record at offset `at`; `None` if the bytes end before the header does.
    pub(crate) fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let [a, b, c, d, low, high, kind] = *bytes.get(at..)?.first_chunk::<HEADER>()?;
        Some(Self { crc: [a, b, c, d], length: usize::from(u16::from_le_bytes([low, high])), kind })
    }

    /// Returns true if the record at offset `at` is complete and has the right checksum.
    pub(crate) fn is_good(&self, bytes: &[u8], at: usize) -> bool {
        let summed = bytes.get(at + HEADER - 1..at + HEADER + self.length);
        summed.is_some_and(|summed| masked(crc32c::crc32c(summed)).to_le_bytes() == self.crc)
    }

    pub(crate) fn is_unwritten(&self) -> bool {
        self.kind == 0 && self.length == 0
    }

    fn is_recycled(&self) -> bool {
        matches!(self.kind, 5..=8 | 11 | 131)
    }
}

/// Masks a CRC as RocksDB does. An unmasked CRC of data that itself contains CRCs would be a weak checksum.
pub(crate) fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends a record after the last record of a list of files, and syncs the list.
///
/// # Errors
/// Errors of open(2), read(2), write(2) and fsync(2).
pub fn append(path: &Path, record: &[u8]) -> io::Result<()> {
    let mut bytes = std::fs::read(path)?;
    // The bytes after the last record are space that was never written.
    bytes.truncate(end_of(&bytes));
    let mut rest = record;
    let mut is_first = true;
    loop {
        let left = BLOCK - bytes.len() % BLOCK;
        if left < HEADER {
            bytes.resize(bytes.len() + left, 0);
            continue;
        }
        let (part, remaining) = rest.split_at(rest.len().min(left - HEADER));
        let kind = match (is_first, remaining.is_empty()) {
            (true, true) => WHOLE,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        let summed = [&[kind], part].concat();
        bytes.extend(masked(crc32c::crc32c(&summed)).to_le_bytes());
        bytes.extend(u16::try_from(part.len()).unwrap_or_default().to_le_bytes());
        bytes.extend(summed);
        if remaining.is_empty() {
            break;
        }
        rest = remaining;
        is_first = false;
    }
    let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    (&file).write_all(&bytes)?;
    file.sync_all()
}

/// Returns the offset of the end of the last record.
fn end_of(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let left = BLOCK - at % BLOCK;
        let next = if left < HEADER { at + left } else { at };
        match Header::read(bytes, next) {
            Some(header) if !header.is_unwritten() => at = next + HEADER + header.length,
            _ => return at.min(bytes.len()),
        }
    }
}

/// Looks for a record that would make RocksDB read the file without end. As RocksDB does, reads each block up to the
/// first bad record.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for such a record; otherwise errors of open(2) and read(2).
pub fn check(path: &Path) -> io::Result<()> {
    check_records(path, File::open(path)?)
}

/// Checks the bytes of the file at `path` as [`check`] does.
pub(crate) fn check_records(path: &Path, mut bytes: impl Read) -> io::Result<()> {
    let mut block = Vec::with_capacity(BLOCK);
    for start in (0_u64..).step_by(BLOCK) {
        block.clear();
        bytes.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
        if let Some((at, kind)) = recycled(&block) {
            let at = start + at as u64;
            let what = format!(
                "{}: the record at byte {at} has kind {kind}, which is never written: it is damaged",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if block.len() < BLOCK {
            break;
        }
    }
    Ok(())
}

/// Returns the offset and the kind of the first record of a kind that only recycled logs have; `None` if there is none.
fn recycled(block: &[u8]) -> Option<(usize, u8)> {
    let mut at = 0;
    while let Some(header) = Header::read(block, at) {
        if header.is_recycled() {
            return Some((at, header.kind));
        }
        if header.is_unwritten() || !header.is_good(block, at) {
            break;
        }
        at += HEADER + header.length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, bytes: &[u8]) -> Vec<u8> {
        let summed = [&[kind], bytes].concat();
        let crc = masked(crc32c::crc32c(&summed)).to_le_bytes();
        [&crc[..], &(bytes.len() as u16).to_le_bytes(), &summed].concat()
    }

    fn check_bytes(bytes: &[u8]) -> io::Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST-000001");
        std::fs::write(&path, bytes).unwrap();
        check(&path)
    }

    #[test]
    fn a_kind_of_recycled_logs_is_found_where_rocksdb_would_read_it() {
        let good = [record(1, b"one"), record(1, b"two"), record(1, b"three")].concat();
        check_bytes(&good).unwrap();
        for (at, of) in [(6, 0), (10 + 6, 10), (20 + 6, 20)] {
            for kind in [5, 6, 7, 8, 11, 131] {
                let mut damaged = good.clone();
                damaged[at] = kind;
                let error = check_bytes(&damaged).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                assert!(
                    error.to_string().contains(&format!("MANIFEST-000001: the record at byte {of} has kind {kind}")),
                    "{error}"
                );
            }
            // RocksDB reports other bad kinds itself.
            let mut damaged = good.clone();
            damaged[at] = 9;
            check_bytes(&damaged).unwrap();
        }
        // After a bad record the rest of the block is not read; the next block is.
        let mut damaged = good.clone();
        damaged[8] ^= 1;
        damaged[20 + 6] = 5;
        check_bytes(&damaged).unwrap();
        damaged.resize(BLOCK, 0);
        damaged.extend(record(5, b"recycled"));
        assert!(check_bytes(&damaged).unwrap_err().to_string().contains(&format!("at byte {BLOCK} has kind 5")));
    }

    #[test]
    fn a_record_is_appended_after_the_last_one_and_across_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("MANIFEST-000001");
        for (first, padding) in [(10, 0), (10, 500), (BLOCK - HEADER - 3, 0), (BLOCK - 2 * HEADER - 4, 3)] {
            std::fs::write(&path, [record(1, &vec![7; first]), vec![0; padding]].concat()).unwrap();
            append(&path, &[9; 100]).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let mut at = HEADER + first;
            let mut payload = Vec::<u8>::new();
            while at < bytes.len() {
                if BLOCK - at % BLOCK < HEADER {
                    at += BLOCK - at % BLOCK;
                }
                let header = Header::read(&bytes, at).unwrap();
                assert!(header.is_good(&bytes, at), "at {at}");
                payload.extend(&bytes[at + HEADER..at + HEADER + header.length]);
                at += HEADER + header.length;
            }
            assert_eq!(payload, [9; 100]);
        }
    }

    #[test]
    fn a_file_may_end_anywhere() {
        let good = [record(1, b"one"), record(1, b"two")].concat();
        (0..good.len()).for_each(|length| check_bytes(&good[..length]).unwrap());
    }
}
