//! What a power cut may leave of files.
//!
//! The model of the file system, as hard as POSIX permits and no harder than what RocksDB is written for:
//! - What was written to a file before the last sync of this file is there. Of what was written later, each sector of 512 bytes is
//!   as it was after any of the writes to it, or before them; the file ends where it ended after any of the operations on it. What was
//!   never written is zeros. Or, as where a file system orders data: a prefix of the writes, the last one torn at any byte.
//! - Names that a directory had when it was last synced are there. Later ones: a prefix of what happened to the names of all
//!   directories, as journals keep them; or, of all that is not synced, any subset. To move a name is one step.
//! - A file that was synced has the name with which it was made: POSIX does not promise that, ext4, XFS, Btrfs and F2FS do, and RocksDB
//!   relies on it where it moves `CURRENT` to a new `MANIFEST`. `sync_file_range` promises nothing.
//!
//! Not modelled: sectors that come back with what another file had there, and disks that break their promise.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use testkit::random::Random;

/// Of a file or a directory.
pub(crate) type Inode = u64;
/// A directory, and a name in it.
pub(crate) type Place = (Inode, OsString);

const SECTOR: usize = 512;

/// What happened to files, and between.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Enter {
        place: Place,
        inode: Inode,
        is_directory: bool,
    },
    Leave {
        place: Place,
    },
    Move {
        from: Place,
        to: Place,
        inode: Inode,
    },
    Write {
        inode: Inode,
        offset: u64,
        bytes: Vec<u8>,
    },
    Resize {
        inode: Inode,
        length: u64,
    },
    Sync(Inode),
    /// Something that a disk here does not do.
    Unknown,
    /// The engine said that everything up to this log index is durable.
    Told(usize),
    /// There is a snapshot at this place, as of this log index.
    Snapshot {
        place: Place,
        index: usize,
    },
}

/// Files and directories.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    names: BTreeMap<Place, Inode>,
    contents: BTreeMap<Inode, Vec<u8>>,
    directories: BTreeSet<Inode>,
}

/// What is lost beside what POSIX lets no file system lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loss {
    Nothing,
    /// What came last: of the names, and of each file.
    Tails,
    /// What came last of the names; any sectors of each file.
    Sectors,
    /// Any names, and any sectors.
    Anything,
}

impl Disk {
    /// What is left after some operations and a power cut.
    pub(crate) fn after(operations: &[Operation], loss: Loss, random: &mut Random) -> Self {
        let mut disk = Self::default();
        let mut synced: BTreeMap<Inode, usize> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Sync(inode) => drop(synced.insert(*inode, at)),
                Operation::Enter { inode, is_directory: true, .. } => drop(disk.directories.insert(*inode)),
                _ => {}
            }
        }
        let is_synced = |inode: &Inode, at: usize| synced.get(inode).is_some_and(|&sync| at < sync);
        let cut = random.below(operations.len() + 1);
        let percent = [0, 20, 50, 80, 100][random.below(5)];
        let keeps_name = |place: &Place, at: usize, random: &mut Random| match loss {
            _ if is_synced(&place.0, at) => true,
            Loss::Nothing => true,
            Loss::Tails | Loss::Sectors => at < cut,
            Loss::Anything => random.chance(percent),
        };
        let mut unsynced: BTreeMap<Inode, Vec<&Operation>> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Enter { place, inode, .. } if is_synced(inode, at) || keeps_name(place, at, random) => {
                    disk.names.insert(place.clone(), *inode);
                }
                Operation::Leave { place } if keeps_name(place, at, random) => {
                    disk.names.remove(place);
                }
                Operation::Move { from, to, inode } if keeps_name(to, at, random) => {
                    disk.names.remove(from);
                    disk.names.insert(to.clone(), *inode);
                }
                Operation::Write { inode, .. } | Operation::Resize { inode, .. } => {
                    if is_synced(inode, at) || loss == Loss::Nothing {
                        change(disk.contents.entry(*inode).or_default(), operation);
                    } else {
                        unsynced.entry(*inode).or_default().push(operation);
                    }
                }
                _ => {}
            }
        }
        for (inode, operations) in unsynced {
            let content = disk.contents.entry(inode).or_default();
            match loss {
                Loss::Tails => keep_prefix(content, &operations, random),
                _ => keep_sectors(content, &operations, percent, random),
            }
        }
        disk
    }

    /// What is at a place.
    pub(crate) fn at(&self, place: &Place) -> Option<Inode> {
        self.names.get(place).copied()
    }

    /// The names and contents of the files of a directory.
    pub(crate) fn files(&self, directory: Inode) -> BTreeMap<&OsString, &[u8]> {
        let of = |inode: &Inode| self.contents.get(inode).map(Vec::as_slice).unwrap_or_default();
        let inside = self.names.range((directory, OsString::new())..(directory + 1, OsString::new()));
        let files = inside.filter(|(_, inode)| !self.directories.contains(inode));
        files.map(|((_, name), inode)| (name, of(inode))).collect()
    }

    /// Makes a directory what this one is.
    pub(crate) fn write(&self, directory: Inode, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(path)?;
        self.files(directory).into_iter().try_for_each(|(name, content)| std::fs::write(path.join(name), content))
    }
}

/// Changes a content as an operation does.
fn change(content: &mut Vec<u8>, operation: &Operation) {
    match operation {
        Operation::Write { offset, bytes, .. } => {
            let start = *offset as usize;
            let end = start + bytes.len();
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(bytes);
        }
        Operation::Resize { length, .. } => content.resize(*length as usize, 0),
        _ => {}
    }
}

fn keep_prefix(content: &mut Vec<u8>, operations: &[&Operation], random: &mut Random) {
    let kept = random.below(operations.len() + 1);
    operations[..kept].iter().for_each(|operation| change(content, operation));
    if let Some(Operation::Write { inode, offset, bytes }) = operations.get(kept) {
        let torn = bytes[..random.below(bytes.len() + 1)].to_vec();
        if !torn.is_empty() {
            change(content, &Operation::Write { inode: *inode, offset: *offset, bytes: torn });
        }
    }
}

/// `percent`: of the sectors that are as they were last.
fn keep_sectors(content: &mut Vec<u8>, operations: &[&Operation], percent: usize, random: &mut Random) {
    // Contents after each operation: a sector on disk was a page in memory, with all that had been written to it by then.
    let mut versions = vec![content.clone()];
    for operation in operations {
        let mut next = versions[versions.len() - 1].clone();
        change(&mut next, operation);
        versions.push(next);
    }
    let last = versions.len() - 1;
    let mut any = |percent: usize| if random.chance(percent) { last } else { random.below(last + 1) };
    content.resize(versions[any(50)].len(), 0);
    for (number, sector) in content.chunks_mut(SECTOR).enumerate() {
        let version = &versions[any(percent)];
        for (i, byte) in sector.iter_mut().enumerate() {
            *byte = version.get(number * SECTOR + i).copied().unwrap_or_default();
        }
    }
}
