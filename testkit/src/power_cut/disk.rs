//! Model of a disk: the files that a power cut may leave.
//!
//! The model loses as much as POSIX permits, except for the promises that RocksDB relies on:
//! - Bytes that were written before the last sync of their file remain. A sector of 512 bytes that was written later
//!   has its content from before these writes, or after any one of them. The length of the file is its length after any
//!   one of the operations. Bytes that were never written are zeros. On a file system that orders data, a prefix of the
//!   writes remains instead, with the last write torn at any byte. Only a write of the first sector is never torn.
//! - Names that a directory had when it was last synced remain. Of the later changes of names, either a prefix over all
//!   directories remains, as with a journal, or any subset. A rename is one step.
//! - A file that was synced has the name with which it was created. POSIX does not promise this, but ext4, XFS, Btrfs
//!   and F2FS do. RocksDB relies on this when it points `CURRENT` to a new `MANIFEST`. `sync_file_range` promises
//!   nothing.
//!
//! The model does not cover sectors with old content of other files, or disks that report syncs falsely as done.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::{fs, io};

use crate::random::Random;

/// Number that identifies a file or a directory.
pub type Inode = u64;
/// Name of a file or directory: the directory that holds it, and the name in that directory.
pub type EntryName = (Inode, OsString);

const SECTOR: usize = 512;

/// A change of files.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are those of the system calls")]
pub enum Operation {
    /// A file or directory gets its first name, or a file gets another name.
    Create { entry: EntryName, inode: Inode, is_directory: bool },
    /// A name is removed.
    Remove { entry: EntryName },
    /// A file or directory gets another name instead of its own. The other name may have been that of another file.
    Rename { from: EntryName, to: EntryName, inode: Inode },
    /// Bytes are written to a file.
    Write { inode: Inode, offset: u64, bytes: Vec<u8> },
    /// A file gets another length.
    Resize { inode: Inode, length: u64 },
    /// A file or directory is synced.
    Sync(Inode),
    /// A change that the model does not support.
    Unknown,
}

/// Draws the number of operations before a power cut. The cut is likely to be near an operation that is not a write.
pub fn draw_cut(operations: &[Operation], random: &mut Random) -> usize {
    let count = operations.len() + 1;
    let at = random.below(count);
    let matters = |operation: &Operation| !matches!(operation, Operation::Write { .. });
    let near = operations[at.min(count - 2)..].iter().position(matters).unwrap_or_default();
    if random.chance(50) { (at + near + random.below(3)).min(count - 1) } else { at }
}

/// Names and contents of the files and directories of a disk.
#[derive(Debug, Default)]
pub struct Disk {
    names: BTreeMap<EntryName, Inode>,
    contents: BTreeMap<Inode, Vec<u8>>,
    directories: BTreeSet<Inode>,
}

/// Kind of a power cut, by the unsynced changes that it loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Everything was written to the disk.
    Nothing,
    /// The last changes of names and the last changes of each file are lost.
    Tails,
    /// The last changes of names and any sectors of each file are lost.
    Sectors,
    /// Any changes of names and any sectors of each file are lost.
    Anything,
}

/// Asserts that the recorded operations produce a directory as it is, so that no operation was missed.
pub fn assert_is_whole(operations: &[Operation], directory: Inode, path: &Path) {
    let is_unknown = |operation: &Operation| matches!(operation, Operation::Unknown);
    assert!(!operations.iter().any(is_unknown), "a file was changed in a way that is not recorded");
    Disk::after(operations, Loss::Nothing, &mut Random::new(0)).assert_equals(directory, path);
    assert!(operations.iter().any(|operation| matches!(operation, Operation::Sync(_))), "no sync was recorded");
}

impl Disk {
    /// Returns the disk after some operations and a power cut.
    pub fn after(operations: &[Operation], loss: Loss, random: &mut Random) -> Self {
        let mut disk = Self::default();
        let mut synced: BTreeMap<Inode, usize> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Sync(inode) => drop(synced.insert(*inode, at)),
                Operation::Create { inode, is_directory: true, .. } => drop(disk.directories.insert(*inode)),
                _ => {}
            }
        }
        let is_synced = |inode: &Inode, at: usize| synced.get(inode).is_some_and(|&sync| at < sync);
        let cut = random.below(operations.len() + 1);
        let percent = [0, 20, 50, 80, 100][random.below(5)];
        let keeps_name = |entry: &EntryName, at: usize, random: &mut Random| match loss {
            _ if is_synced(&entry.0, at) => true,
            Loss::Nothing => true,
            Loss::Tails | Loss::Sectors => at < cut,
            Loss::Anything => random.chance(percent),
        };
        let mut unsynced: BTreeMap<Inode, Vec<&Operation>> = BTreeMap::new();
        for (at, operation) in operations.iter().enumerate() {
            match operation {
                Operation::Create { entry, inode, .. } if is_synced(inode, at) || keeps_name(entry, at, random) => {
                    disk.names.insert(entry.clone(), *inode);
                }
                Operation::Remove { entry } if keeps_name(entry, at, random) => {
                    disk.names.remove(entry);
                }
                Operation::Rename { from, to, inode } if keeps_name(to, at, random) => {
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

    /// Returns the file or directory with this name, if there is one.
    pub fn at(&self, entry: &EntryName) -> Option<Inode> {
        self.names.get(entry).copied()
    }

    /// Returns the names and contents of the files in a directory.
    pub fn files(&self, directory: Inode) -> BTreeMap<&OsString, &[u8]> {
        let of = |inode: &Inode| self.contents.get(inode).map(Vec::as_slice).unwrap_or_default();
        let inside = self.names.range((directory, OsString::new())..(directory + 1, OsString::new()));
        let files = inside.filter(|(_, inode)| !self.directories.contains(inode));
        files.map(|((_, name), inode)| (name, of(inode))).collect()
    }

    /// Returns the names of the directories in a directory.
    fn directories(&self, directory: Inode) -> impl Iterator<Item = (&OsString, Inode)> {
        let inside = self.names.range((directory, OsString::new())..(directory + 1, OsString::new()));
        let directories = inside.filter(|(_, inode)| self.directories.contains(inode));
        directories.map(|((_, name), inode)| (name, *inode))
    }

    /// Writes the files and directories in a directory of the model to the directory `path`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, directory: Inode, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)?;
        self.files(directory).into_iter().try_for_each(|(name, content)| fs::write(path.join(name), content))?;
        self.directories(directory).try_for_each(|(name, inode)| self.write(inode, &path.join(name)))
    }

    /// Asserts that a directory of the model equals the directory `path`.
    pub fn assert_equals(&self, directory: Inode, path: &Path) {
        let files = self.files(directory);
        let directories: BTreeMap<_, _> = self.directories(directory).collect();
        let mut names = 0;
        for found in fs::read_dir(path).unwrap().map(Result::unwrap) {
            names += 1;
            let (name, path) = (found.file_name(), found.path());
            if found.file_type().unwrap().is_dir() {
                self.assert_equals(*directories.get(&name).unwrap_or_else(|| panic!("{}", path.display())), &path);
            } else {
                let content = fs::read(&path).unwrap();
                assert!(files.get(&name).is_some_and(|replayed| *replayed == content), "{}", path.display());
            }
        }
        assert_eq!(names, files.len() + directories.len(), "{}: {:?} {directories:?}", path.display(), files.keys());
    }
}

/// Applies an operation to the content of its file.
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
    if let Some(Operation::Write { inode, offset, bytes }) = operations.get(kept)
        && (*offset > 0 || bytes.len() > SECTOR)
    {
        let torn = bytes[..random.below(bytes.len() + 1)].to_vec();
        if !torn.is_empty() {
            change(content, &Operation::Write { inode: *inode, offset: *offset, bytes: torn });
        }
    }
}

/// Applies operations to a content sector by sector. About `percent` of the sectors get their last content.
fn keep_sectors(content: &mut Vec<u8>, operations: &[&Operation], percent: usize, random: &mut Random) {
    // Content of the whole file after each operation. Each sector is taken from one of these, because the system writes
    // a page of memory with everything that was written to the page by then.
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
