//! Files that wait for their unwind tables.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use ebpf::FileKey;

use crate::process::file::{FileOrigin, LoadedPart};

/// Largest number of files that wait, each with an open descriptor.
pub(super) const WAITING_MAX: usize = 256;
/// Largest number of skipped files: as many as BPF knows.
const SKIPPED_MAX: usize = 8192;

/// A file that is to have an unwind table.
pub(super) struct WaitingFile {
    pub(super) key: FileKey,
    pub(super) number: u32,
    pub(super) file: File,
    pub(super) parts: Vec<LoadedPart>,
    pub(super) origin: Option<FileOrigin>,
    /// Reference to the counter of waiting files, held for as long as this file waits.
    pub(super) counted: Arc<()>,
}

/// Files that are to have unwind tables.
#[derive(Default)]
pub(super) struct Waiting {
    /// Files by length and number, so that the smallest file is next. On a busy host the largest files take seconds,
    /// and all others would wait for them.
    files: BTreeMap<(u64, u32), WaitingFile>,
    /// Files that are unwound by frame pointers for now, because too many files wait or no table fits.
    skipped: HashSet<FileKey>,
}

impl Waiting {
    /// Adds a file. If BPF has reported it before, under another number, the last report counts.
    pub(super) fn push(&mut self, waiting: WaitingFile) {
        self.skipped.remove(&waiting.key);
        self.files.retain(|_, of| of.key != waiting.key);
        let bytes = waiting.file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        self.files.insert((bytes, waiting.number), waiting);
    }

    /// Removes and returns the smallest file.
    pub(super) fn pop(&mut self) -> Option<WaitingFile> {
        self.files.pop_first().map(|(_, waiting)| waiting)
    }

    /// True if a file waits.
    pub(super) fn has(&self, key: &FileKey) -> bool {
        self.files.values().any(|waiting| waiting.key == *key)
    }

    /// Remembers that a file has no table for now, unless it waits.
    pub(super) fn skip(&mut self, key: FileKey) {
        if self.skipped.len() < SKIPPED_MAX && !self.has(&key) {
            self.skipped.insert(key);
        }
    }

    /// Removes and returns as many skipped files as may wait.
    pub(super) fn take_skipped(&mut self) -> Vec<FileKey> {
        let fit = WAITING_MAX.saturating_sub(self.files.len());
        let taken: Vec<_> = self.skipped.iter().take(fit).copied().collect();
        for key in &taken {
            self.skipped.remove(key);
        }
        taken
    }

    /// Number of files that wait.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Number of skipped files.
    pub(super) fn skipped(&self) -> usize {
        self.skipped.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting_file(number: u32, bytes: u64) -> WaitingFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        let key = [number as u8; 40];
        WaitingFile { key, number, file, parts: Vec::new(), origin: None, counted: Arc::new(()) }
    }

    #[test]
    fn small_files_do_not_wait_for_large_ones() {
        let mut waiting = Waiting::default();
        for (number, bytes) in [(1, 1 << 20), (2, 100), (3, 1 << 30), (4, 100)] {
            waiting.push(waiting_file(number, bytes));
        }
        waiting.push(WaitingFile { key: [2; 40], ..waiting_file(5, 200) });
        let order: Vec<u32> = std::iter::from_fn(|| waiting.pop()).map(|waiting| waiting.number).collect();
        assert_eq!(order, [4, 5, 1, 3], "file 2 was reported again");
    }

    #[test]
    fn skipped_files_are_taken_again_but_no_more_than_may_wait() {
        let mut waiting = Waiting::default();
        for number in 0..=WAITING_MAX {
            waiting.skip(std::array::from_fn(|index| (number >> (8 * (index % 4))) as u8));
        }
        waiting.skip([1; 40]);
        waiting.push(waiting_file(1, 1));
        waiting.skip([1; 40]);
        assert!(waiting.has(&[1; 40]) && !waiting.has(&[2; 40]));
        assert_eq!(waiting.skipped(), WAITING_MAX + 1, "file 1 waits");
        assert_eq!((waiting.take_skipped().len(), waiting.skipped()), (WAITING_MAX - 1, 2));
        waiting.pop();
        assert_eq!((waiting.take_skipped().len(), waiting.skipped()), (2, 0));
    }
}
