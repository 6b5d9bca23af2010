//! Every file that BPF reported, by its number and by its content.
//!
//! A file is opened only through a process that has it mapped, and identified once. Files are remembered by device,
//! inode, modification time and size, so a file that is replaced or rewritten counts as another file. If no process has
//! the file mapped any more, it is described by BPF's report.
//!
//! Two files with the same name, build IDs and segments, such as one image in two containers, have the same [`FileId`],
//! so that nothing is sent twice. A file that was reported with its GNU build ID also keeps its [`FileId`] when it is
//! opened later.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ebpf::{FILE_NUMBERS, NewFile, VDSO_KEY};
use foldhash::fast::RandomState;
use host_files::open;
use indexmap::IndexSet;

use super::{FileId, FileOrigin, MappedFile, VDSO};
use crate::process::maps::{Backing, Maps, ProcessMapping};
use crate::process::procfs;
use crate::process::sys;

/// Number of files at which all files are forgotten. A host with hundreds of containers has a few thousand.
const FILES_MAX: usize = 8192;
/// Number of reports at which all files are forgotten. BPF gives a number again after twice as many reports.
const REPORTS_MAX: u32 = FILE_NUMBERS / 2;
/// Limit on the remembered files that could not be opened. BPF reports fewer files between two exports.
const UNOPENED_MAX: usize = 8192;

/// Identity of a file in one state, as its file system reports it. A changed file has another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl FileKey {
    pub(crate) fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len(),
        }
    }
}

/// Reason why a file that BPF reported could not be opened or described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// The process that had it mapped has ended.
    Exited,
    /// The file cannot be opened or read.
    Unreadable,
}

/// A file that was opened through a process that has it mapped.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) id: FileId,
    pub(crate) file: File,
    /// Process through which the file was opened, with the file's path; `None` for the vdso.
    pub(crate) origin: Option<FileOrigin>,
    /// True if no file of the same device, inode, time and size was opened before.
    pub(crate) is_new: bool,
}

/// Result of [`FileTable::report`].
#[derive(Debug)]
pub(crate) enum Reported {
    /// The file was opened before.
    Known,
    /// The file is open: its unwind table can be made.
    Opened(OpenedFile),
    /// The file cannot be opened. BPF should report it again when another process runs it.
    Unopened,
}

/// Every file that was reported so far.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: IndexSet<MappedFile, RandomState>,
    by_key: HashMap<FileKey, FileId, RandomState>,
    /// Files that were never opened: they are known only from the reports of BPF.
    unopened: HashSet<FileId, RandomState>,
    /// Files by the numbers that BPF gives.
    by_number: HashMap<u32, Result<FileId, Unopened>, RandomState>,
    /// Numbers of files that could not be opened, oldest first. Such a file gets another number when BPF reports it the
    /// next time.
    unopened_numbers: VecDeque<u32>,
    reports: u32,
}

impl FileTable {
    /// Opens a file that BPF reports. BPF may report a file twice, the second time with more details.
    pub(crate) fn report(&mut self, new: &NewFile<'_>) -> Reported {
        self.reports = self.reports.saturating_add(1);
        if let Some(Ok(id)) = self.by_number.get(&new.number)
            && !self.is_unopened(*id)
        {
            return Reported::Known;
        }
        match self.open(new) {
            Ok(opened) => {
                // The file could not be opened when it was reported first.
                if self.by_number.insert(new.number, Ok(opened.id)).is_some() {
                    self.unopened_numbers.retain(|number| *number != new.number);
                }
                Reported::Opened(opened)
            }
            Err(_) => {
                if !self.by_number.contains_key(&new.number) {
                    self.unopened_numbers.push_back(new.number);
                }
                if UNOPENED_MAX < self.unopened_numbers.len()
                    && let Some(oldest) = self.unopened_numbers.pop_front()
                {
                    self.by_number.remove(&oldest);
                }
                let has_process = Path::new(&format!("/proc/{}", new.pid)).exists();
                let reason = if has_process { Unopened::Unreadable } else { Unopened::Exited };
                let found = MappedFile::of_report(new).map(|file| self.insert_unopened(file)).ok_or(reason);
                self.by_number.insert(new.number, found);
                Reported::Unopened
            }
        }
    }

    /// Opens the file that BPF reports.
    ///
    /// # Errors
    /// The process has ended, the file cannot be opened, or another file is mapped there by now.
    pub(crate) fn open(&mut self, new: &NewFile<'_>) -> io::Result<OpenedFile> {
        let NewFile { key, pid, start, end, .. } = *new;
        if key == VDSO_KEY {
            let file = own_vdso()?;
            let id = self.insert(MappedFile::identify(VDSO, &file)?);
            return Ok(OpenedFile { id, file, origin: None, is_new: false });
        }
        match procfs::open_mapped(pid, start, end) {
            Ok((file, metadata)) => {
                check(new, &file, &metadata)?;
                let path = procfs::mapped_path(pid, start, end)?;
                let (id, is_new) = self.identify(&path, &file, &metadata)?;
                Ok(OpenedFile { id, file, origin: Some(FileOrigin { pid, path }), is_new })
            }
            // map_files needs CAP_CHECKPOINT_RESTORE. A path needs no capability, and proves less.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let maps = Maps::of_process(pid)?;
                let Some(ProcessMapping { backing: Backing::File { device, inode, path }, .. }) = maps.find(start)
                else {
                    return Err(io::Error::from(io::ErrorKind::NotFound));
                };
                let (file, metadata) = open_by_path(pid, *device, *inode, path)?;
                check(new, &file, &metadata)?;
                let (id, is_new) = self.identify(path, &file, &metadata)?;
                Ok(OpenedFile { id, file, origin: Some(FileOrigin { pid, path: path.to_string() }), is_new })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the file that BPF reported with `number`; `None` if BPF has not reported the number yet.
    pub(crate) fn of_number(&self, number: u32) -> Option<Result<FileId, Unopened>> {
        self.by_number.get(&number).copied()
    }

    /// Returns the id of an open file, and true if the file was not identified before.
    fn identify(&mut self, path: &str, file: &File, metadata: &Metadata) -> io::Result<(FileId, bool)> {
        let key = FileKey::new(metadata);
        if let Some(id) = self.by_key.get(&key) {
            return Ok((*id, false));
        }
        let id = self.insert(MappedFile::identify(path, file)?);
        self.by_key.insert(key, id);
        Ok((id, true))
    }

    /// True if the file was never opened, so that more may become known about it later.
    pub(crate) fn is_unopened(&self, id: FileId) -> bool {
        self.unopened.contains(&id)
    }

    /// Returns the path of the file of a number, if it is known.
    pub(crate) fn path_of_number(&self, number: u32) -> Option<&str> {
        let file = self.get(self.of_number(number)?.ok()?)?;
        Some(&file.name)
    }

    /// Returns the id of `file`. Equal files have equal ids.
    pub(crate) fn insert(&mut self, file: MappedFile) -> FileId {
        let is_same = |id: &FileId| self.get(*id).is_some_and(|reported| file.includes(reported));
        if let Some(id) = self.unopened.iter().copied().find(is_same) {
            self.unopened.remove(&id);
            // If the file already has another id, the reported entry stays as it is.
            let _same = self.files.replace_index(id.0 as usize, file.clone());
        }
        let (index, _) = self.files.insert_full(file);
        FileId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Returns the id of a file that was never opened.
    fn insert_unopened(&mut self, reported: MappedFile) -> FileId {
        if let Some(index) = self.files.iter().position(|file| file.includes(&reported)) {
            return FileId(u32::try_from(index).unwrap_or(u32::MAX));
        }
        let id = self.insert(reported);
        self.unopened.insert(id);
        id
    }

    pub(crate) fn get(&self, id: FileId) -> Option<&MappedFile> {
        self.files.get_index(id.0 as usize)
    }

    /// True if the table has reached its limit. The caller must then clear it, which makes every [`FileId`] void.
    pub(crate) fn is_full(&self) -> bool {
        REPORTS_MAX <= self.reports
            || FILES_MAX
                <= self
                    .files
                    .len()
                    .max(self.by_key.len())
                    .max(self.by_number.len().saturating_sub(self.unopened_numbers.len()))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Checks that an opened file is the one that BPF reported: another file may be mapped there by now.
fn check(new: &NewFile<'_>, file: &File, metadata: &Metadata) -> io::Result<()> {
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    let is_it = |inode| new.is(inode, metadata.len(), modified);
    // A file system of two layers, such as overlayfs, may show user space other inode numbers than the kernel has.
    if is_it(metadata.ino()) || open::has_two_devices(file)? && is_it(new.inode()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "another file is mapped there"))
}

/// Returns the vdso of this process, which all 64-bit processes share.
fn own_vdso() -> io::Result<File> {
    let maps = Maps::of_process(std::process::id())?;
    let vdso = maps.iter().find(|mapping| mapping.backing == Backing::Vdso).ok_or(io::ErrorKind::NotFound)?;
    sys::memory_file(&procfs::own_memory(vdso.start, vdso.end)?)
}

/// Opens the file of a mapping of process `pid`.
///
/// # Errors
/// The process has ended, the mapping has no file, or the file cannot be opened.
pub(crate) fn open_mapping(pid: u32, mapping: &ProcessMapping) -> io::Result<File> {
    let Backing::File { device, inode, path } = &mapping.backing else {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    };
    let opened = match procfs::open_mapped(pid, mapping.start, mapping.end) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => open_by_path(pid, *device, *inode, path),
        opened => opened,
    };
    opened.map(|(file, _)| file)
}

/// Opens `path` as process `pid` sees it. Fails if it no longer leads to the file that was mapped.
fn open_by_path(pid: u32, device: (u32, u32), inode: u64, path: &str) -> io::Result<(File, Metadata)> {
    let (file, metadata) = procfs::open_as_seen_by(pid, path)?;
    let found = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    if metadata.ino() != inode || found != device && !open::has_two_devices(&file)? {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the path leads to another file"));
    }
    Ok((file, metadata))
}

#[cfg(test)]
impl FileTable {
    /// Adds so many files that the table is full.
    pub(crate) fn fill(&mut self) {
        for number in 0..FILES_MAX {
            self.insert(MappedFile::pseudo(&number.to_string(), None));
        }
    }

    /// Gives number 1 to the file that this process has mapped at `address`. Returns the frame of that address.
    pub(crate) fn number_own(&mut self, address: u64) -> u64 {
        let maps = Maps::of_process(std::process::id()).unwrap();
        let mapping = maps.find(address).unwrap();
        let (_, metadata) = procfs::open_mapped(std::process::id(), mapping.start, mapping.end).unwrap();
        let new = NewFile { key: tests::key_of(&metadata), ..tests::new_file(mapping, std::process::id()) };
        let opened = self.open(&new).unwrap();
        self.by_number.insert(1, Ok(opened.id));
        1 << 63 | 1 << 40 | (address - new.start + new.offset)
    }
}

#[cfg(test)]
pub(super) mod tests;
