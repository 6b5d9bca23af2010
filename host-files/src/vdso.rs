//! The vDSO: the library that the kernel maps into every process. It contains `clock_gettime`, and is not a file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::open;

/// Largest size of a vDSO that is read, in bytes. Known vDSOs have two to five pages.
const VDSO_BYTES_MAX: u64 = 1 << 20;

/// Copies the vDSO of this process to a file in memory. All processes have the same vDSO. `None` if it cannot be read.
#[must_use]
pub fn read() -> Option<File> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let size = end.checked_sub(start).filter(|size| *size <= VDSO_BYTES_MAX)?;
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    open::in_memory(&bytes)
}
