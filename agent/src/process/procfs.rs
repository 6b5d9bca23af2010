//! Reads of /proc, where every file may be huge, hostile, or gone by the time it is opened.
//!
//! Invariant: every read has a limit. Files that a process chose are opened only by [`host_files::open`], which
//! follows no link out of the process's root directory and opens only regular files.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use host_files::open::{self, Root};

/// Number of clock ticks per second in /proc. It is fixed in the ABI, and independent of the kernel's own tick.
const USER_HZ: u64 = 100;
/// Largest number of bytes that are read from /proc/<pid>/stat, which is one line of 52 numbers and a name.
const STAT_BYTES_MAX: u64 = 4096;

/// Reads the first `bytes_max` bytes of a file.
///
/// # Errors
/// Any error of open(2) or read(2).
pub(crate) fn read_at_most(path: impl AsRef<Path>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// True if `pid` is still the process that started at `start_boottime_ns`, and not another one that got its pid.
pub(crate) fn is_same_process(pid: u32, start_boottime_ns: u64) -> bool {
    read_at_most(format!("/proc/{pid}/stat"), STAT_BYTES_MAX)
        .is_ok_and(|stat| start_ticks(&stat) == Some(start_boottime_ns / (1_000_000_000 / USER_HZ)))
}

/// True if `tid` is a thread of `pid`.
pub(crate) fn is_thread(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// Returns the start of the process in clock ticks, which is field 22 of /proc/<pid>/stat. The second field, a name in
/// parentheses, may contain any bytes, also parentheses.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    // The first field after the name is the third field of the line.
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// Opens the file that `pid` has mapped at `start..end`, even if its path now leads to another file or none.
///
/// # Errors
/// Any error of open(2); [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub(crate) fn open_mapped(pid: u32, start: u64, end: u64) -> io::Result<(File, Metadata)> {
    with_metadata(open::link(&format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?)
}

/// Returns the path of the file that `pid` has mapped at `start..end`, as the process sees it.
///
/// # Errors
/// Any error of readlink(2).
pub(crate) fn mapped_path(pid: u32, start: u64, end: u64) -> io::Result<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?;
    let path = path.to_string_lossy();
    Ok(path.strip_suffix(" (deleted)").unwrap_or(&path).to_owned())
}

/// Returns the memory of this process at `start..end`.
///
/// # Errors
/// Any error of open(2) or pread(2).
pub(crate) fn own_memory(start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

/// Opens `path` as `pid` sees it.
///
/// # Errors
/// Any error of open(2); [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub(crate) fn open_as_seen_by(pid: u32, path: &str) -> io::Result<(File, Metadata)> {
    with_metadata(Root::of_process(pid)?.open(path)?)
}

fn with_metadata(file: File) -> io::Result<(File, Metadata)> {
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn a_name_full_of_parentheses_does_not_shift_the_fields() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(start_ticks(format!("7 (a) b) (c) {tail}").as_bytes()), Some(4711));
        assert_eq!(start_ticks(b"7 (a) S 1 2"), None);
        assert_eq!(start_ticks(b""), None);
    }

    #[test]
    fn this_process_is_not_one_with_another_start_time() {
        let stat = read_at_most("/proc/self/stat", STAT_BYTES_MAX).unwrap();
        let start_ns = start_ticks(&stat).unwrap() * (1_000_000_000 / USER_HZ);
        assert!(is_same_process(std::process::id(), start_ns + 5));
        assert!(!is_same_process(std::process::id(), start_ns + 20_000_000));
        assert!(!is_same_process(u32::MAX, start_ns));
    }

    #[test]
    fn reading_stops_at_the_limit() {
        assert_eq!(read_at_most("/proc/self/maps", 10).unwrap().len(), 10);
    }

    #[test]
    fn a_path_is_resolved_in_the_root_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        File::create(&file).unwrap().write_all(b"x").unwrap();
        symlink(&file, folder.path().join("link")).unwrap();
        let inode = std::fs::metadata(&file).unwrap().ino();
        for name in ["file", "link"] {
            let path = folder.path().join(name);
            let (_, metadata) = open_as_seen_by(std::process::id(), path.to_str().unwrap()).unwrap();
            assert_eq!(metadata.ino(), inode, "{name}");
        }
    }
}
