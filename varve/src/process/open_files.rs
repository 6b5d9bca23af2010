//! The limit of open files of this process.

use std::io;
use std::mem::MaybeUninit;

/// Raises the limit of open files to the largest that is permitted. Each shard of a node has a database with some open
/// files, and the usual limit of 1024 is enough for a few busy shards only.
#[allow(unsafe_code, reason = "the standard library has no limits of resources")]
pub(crate) fn raise_limit() -> io::Result<()> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` is large enough for what getrlimit writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: getrlimit returned 0, so it has written all of `limit`.
    let mut limit = unsafe { limit.assume_init() };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: setrlimit only reads `limit`.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raised_limit_is_the_largest_permitted() {
        raise_limit().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(columns[3], columns[4], "{line}");
    }
}
