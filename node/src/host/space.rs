//! Free space of the file system that holds the data directory, and the reserve that appends may not touch.
//!
//! Compaction and expiry need the reserve to free space, because RocksDB cannot free space on a completely full disk.
//! In addition, unflushed entries need space twice: in the state, and in a file of the log until the log is purged.

#![allow(unsafe_code, reason = "statvfs is not in the standard library")]

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The largest reserve, in bytes. A compaction may write this much before it frees space.
const RESERVE_BYTES_MAX: u64 = 256 << 20;
/// The smallest reserve, in bytes: enough for one write buffer of each database and the database's files.
const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// The reserve is the size of the file system divided by this number, within the two bounds above.
const RESERVE_PART: u64 = 20;

/// Space of a file system at one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    /// Free space that this process may use.
    pub(crate) free_bytes: u64,
    /// Size of the file system.
    pub(crate) total_bytes: u64,
}

impl Space {
    /// Reads the space of the file system that holds `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut result = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: `path` ends with a zero byte, and `result` is large enough for what statvfs writes.
        if unsafe { libc::statvfs(path.as_ptr(), result.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: statvfs returned 0, so it has written all of `result`.
        let result = unsafe { result.assume_init() };
        let unit = result.f_frsize;
        Ok(Self { free_bytes: result.f_bavail.saturating_mul(unit), total_bytes: result.f_blocks.saturating_mul(unit) })
    }

    /// Returns the space that appends must leave free, in bytes.
    pub(crate) fn reserve_bytes(self) -> u64 {
        (self.total_bytes / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
    }

    /// Returns true if appends must be refused, so that space remains to flush `unflushed_bytes` of earlier entries.
    pub(crate) fn is_full(self, unflushed_bytes: u64) -> bool {
        self.free_bytes < self.reserve_bytes().saturating_add(unflushed_bytes.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_grows_with_the_disk_up_to_a_bound() {
        let reserve = |total_bytes| Space { free_bytes: 0, total_bytes }.reserve_bytes();
        assert_eq!(reserve(64 << 20), 16 << 20);
        assert_eq!(reserve(2000 << 20), 100 << 20);
        assert_eq!(reserve(1 << 40), 256 << 20);
    }

    #[test]
    fn unflushed_bytes_need_space_in_addition_to_the_reserve() {
        let space = Space { free_bytes: 300 << 20, total_bytes: 1 << 40 };
        assert!(!space.is_full(22 << 20));
        assert!(space.is_full(23 << 20));
    }

    #[test]
    fn the_space_of_a_folder_is_that_of_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::of(folder.path()).unwrap();
        assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0, "{space:?}");
        assert!(Space::of(&folder.path().join("absent")).is_err());
    }
}
