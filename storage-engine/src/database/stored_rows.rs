//! Stored windows, decoded into rows that can be changed and written again.

use proto::Tier;

use crate::database::frame;
use crate::encoding::windows::{self, StoredWindow, WindowRows};
use crate::error::{Corruption, CorruptionCheck};

/// Returns the windows that a value holds, each with its sums by stack. `window` is the window number in the value's
/// key, which counts windows of tier `values`.
///
/// # Errors
/// [`Corruption`]: the value fails a check.
pub(crate) fn read_rows(key: &[u8], value: &[u8], values: Tier, window: u32) -> Result<Vec<WindowRows>, Corruption> {
    let corrupt = || Corruption { key: key.to_vec(), check: CorruptionCheck::Content };
    let stored = windows::decode(frame::open(key, value)?, values, window).ok_or_else(corrupt)?;
    stored.iter().map(|stored| rows(stored).ok_or_else(corrupt)).collect()
}

/// Decodes one window, with its sums in ascending order of stacks; `None` if the sums cannot be read.
pub(crate) fn rows(stored: &StoredWindow<'_>) -> Option<WindowRows> {
    let mut rows = Vec::new();
    stored.sums.for_each(|pair, sum| {
        rows.push((pair, sum));
        Some(())
    })?;
    rows.sort_unstable_by_key(|row| row.0);
    let last_ns = stored.last_ns.unwrap_or_default();
    Some(WindowRows { slot: stored.slot, samples: stored.samples, last_ns, rows })
}
