//! Every file met so far, by the numbers that BPF gives and by content.
//!
//! A file is opened only through the process that mapped it, identified once, and remembered by (device, inode,
//! modification time, size): a file that is replaced or rewritten is another file. Where nobody has it mapped any more, what BPF
//! read of it tells who it is. Two files with the same name, build IDs and segments (one image in two containers) are one
//! [`FileId`], so that nothing is sent twice; so are one that was told with its GNU build ID and the same one opened later.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ebpf::{NewFile, VDSO_KEY};
use foldhash::fast::RandomState;
use indexmap::IndexSet;
use symbol_store::open;

use super::{FileId, MappedFile, VDSO};
use crate::go::Call;
use crate::go::programs::GoPrograms;
use crate::location::Marker;
use crate::maps::{Backing, Mapping, Maps};
use crate::procfs;
use crate::sys;
use crate::unwind::resident::{Place, Resident};

/// Files remembered before all is forgotten: a host with hundreds of containers has a few thousand.
const FILES_MAX: usize = 8192;
/// Numbers of files that could not be opened, each given once: more than are met in the time until an export.
const UNOPENED_MAX: usize = 8192;

/// What a file system says to tell one file, and one state of it, from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl FileKey {
    fn new(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            bytes: metadata.len(),
        }
    }
}

/// Every file met so far.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: IndexSet<MappedFile, RandomState>,
    by_key: HashMap<FileKey, FileId, RandomState>,
    /// Of them, those that nobody has opened yet.
    told: HashSet<FileId, RandomState>,
    /// By the numbers that BPF gives.
    by_number: HashMap<u32, Result<FileId, Marker>, RandomState>,
    /// Of them, those of files that could not be opened, oldest first: met again, such a file has another number.
    unopened: VecDeque<u32>,
    go_programs: GoPrograms,
}

impl FileTable {
    /// Opens a file that BPF has given a number, and has its unwind table made. BPF may tell of it twice, the second time more.
    pub(crate) fn number(&mut self, new: &NewFile<'_>, tables: &Resident) {
        if let Some(Ok(id)) = self.by_number.get(&new.number)
            && !self.is_told(*id)
        {
            return;
        }
        let found = match self.numbered(new) {
            Ok((file, id, place)) => {
                let parts = self.get(id).map(|file| file.parts.clone()).unwrap_or_default();
                tables.unwind(new.key, new.number, file, parts, place);
                // The first time, it could not be opened.
                if self.by_number.contains_key(&new.number) {
                    self.unopened.retain(|number| *number != new.number);
                }
                Ok(id)
            }
            Err(_) => {
                // The next process that runs it may live longer.
                tables.forget(new.key);
                if !self.by_number.contains_key(&new.number) {
                    self.unopened.push_back(new.number);
                }
                if UNOPENED_MAX < self.unopened.len()
                    && let Some(oldest) = self.unopened.pop_front()
                {
                    self.by_number.remove(&oldest);
                }
                let is_there = Path::new(&format!("/proc/{}", new.pid)).exists();
                let reason = if is_there { Marker::FileUnreadable } else { Marker::ProcessExited };
                MappedFile::told(new).map(|file| self.insert_told(file)).ok_or(reason)
            }
        };
        self.by_number.insert(new.number, found);
    }

    /// The file that BPF has given a number, opened.
    ///
    /// # Errors
    /// Its process is gone, it cannot be opened, or is another by now.
    pub(crate) fn numbered(&mut self, new: &NewFile<'_>) -> io::Result<(File, FileId, Option<Place>)> {
        let NewFile { key, pid, start, end, .. } = *new;
        if key == VDSO_KEY {
            let file = own_vdso()?;
            let id = self.insert(MappedFile::identify(VDSO, &file)?);
            return Ok((file, id, None));
        }
        match procfs::open_mapped(pid, start, end) {
            Ok((file, metadata)) => {
                check(new, &file, &metadata)?;
                let path = procfs::mapped_path(pid, start, end)?;
                let id = self.identified(&path, &file, &metadata)?;
                Ok((file, id, Some(Place { pid, path })))
            }
            // map_files takes CAP_CHECKPOINT_RESTORE; a path takes nothing, and proves less.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let maps = Maps::of_process(pid)?;
                let Some(Mapping { backing: Backing::File { device, inode, path }, .. }) = maps.find(start) else {
                    return Err(io::Error::from(io::ErrorKind::NotFound));
                };
                let (file, metadata) = open_by_path(pid, *device, *inode, path)?;
                check(new, &file, &metadata)?;
                let id = self.identified(path, &file, &metadata)?;
                Ok((file, id, Some(Place { pid, path: path.to_string() })))
            }
            Err(error) => Err(error),
        }
    }

    /// The file of a number; `None`: BPF has not told of it yet.
    pub(crate) fn of_number(&self, number: u32) -> Option<Result<FileId, Marker>> {
        self.by_number.get(&number).copied()
    }

    fn identified(&mut self, path: &str, file: &File, metadata: &Metadata) -> io::Result<FileId> {
        let key = FileKey::new(metadata);
        if let Some(id) = self.by_key.get(&key) {
            return Ok(*id);
        }
        let id = self.insert(MappedFile::identify(path, file)?);
        self.by_key.insert(key, id);
        self.go_programs.insert(id, file);
        Ok(id)
    }

    /// Whether more may be known of a file later.
    pub(crate) fn is_told(&self, id: FileId) -> bool {
        self.told.contains(&id)
    }

    /// The path of the file of a number, if it is known.
    pub(crate) fn path_of_number(&self, number: u32) -> Option<&str> {
        let file = self.get(self.of_number(number)?.ok()?)?;
        Some(&file.name)
    }

    /// The id of `file`, the same for the same content.
    pub(crate) fn insert(&mut self, file: MappedFile) -> FileId {
        let was_told = |id: &FileId| self.get(*id).is_some_and(|told| file.includes(told));
        if let Some(id) = self.told.iter().copied().find(was_told) {
            self.told.remove(&id);
            // Where it is there already, under another id, the one that was told stays as it is.
            let _same = self.files.replace_index(id.0 as usize, file.clone());
        }
        let (index, _) = self.files.insert_full(file);
        FileId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The id of a file that nobody has opened.
    fn insert_told(&mut self, told: MappedFile) -> FileId {
        if let Some(index) = self.files.iter().position(|file| file.includes(&told)) {
            return FileId(u32::try_from(index).unwrap_or(u32::MAX));
        }
        let id = self.insert(told);
        self.told.insert(id);
        id
    }

    pub(crate) fn get(&self, id: FileId) -> Option<&MappedFile> {
        self.files.get_index(id.0 as usize)
    }

    /// The calls of Go code at an address of a file, innermost first; none if it is no Go code, or cannot be named.
    pub(crate) fn go_calls(&mut self, id: FileId, address: u64) -> Vec<Call> {
        self.go_programs.lookup(id, address)
    }

    /// Whether it is time to forget everything, which also makes every [`FileId`] void.
    pub(crate) fn is_full(&self) -> bool {
        FILES_MAX
            <= self.files.len().max(self.by_key.len()).max(self.by_number.len().saturating_sub(self.unopened.len()))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Checks that a file that was opened is the one that BPF has met: another may have come to where it was mapped.
fn check(new: &NewFile<'_>, file: &File, metadata: &Metadata) -> io::Result<()> {
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    let is_it = |inode| new.is(inode, metadata.len(), modified);
    // A file system of two layers may have a number of its own.
    if is_it(metadata.ino()) || open::has_two_devices(file)? && is_it(new.inode()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "another file is mapped there"))
}

/// The vdso of this process, which is that of all 64-bit ones.
fn own_vdso() -> io::Result<File> {
    let maps = Maps::of_process(std::process::id())?;
    let vdso = maps.iter().find(|mapping| mapping.backing == Backing::Vdso).ok_or(io::ErrorKind::NotFound)?;
    sys::memory_file(&procfs::own_memory(vdso.start, vdso.end)?)
}

/// Opens `path` as `pid` sees it, as long as it still leads to the file that was mapped.
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
    /// Gives the file that this process has mapped at `address` the number 1, and returns the frame of that address.
    pub(crate) fn number_own(&mut self, address: u64) -> u64 {
        let maps = Maps::of_process(std::process::id()).unwrap();
        let mapping = maps.find(address).unwrap();
        let (_, metadata) = procfs::open_mapped(std::process::id(), mapping.start, mapping.end).unwrap();
        let new = NewFile { key: tests::key_of(&metadata), ..tests::new_file(mapping, std::process::id()) };
        let (_, id, _) = self.numbered(&new).unwrap();
        self.by_number.insert(1, Ok(id));
        1 << 63 | 1 << 40 | (address - new.start + new.offset)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write as _;

    use ebpf::FileSegment;
    use symbol_store::elf::ElfImage;

    use super::super::{BuildIdKind, LoadedPart};
    use super::*;

    /// As BPF has it, as far as it tells a file from others.
    pub(super) fn key_of(metadata: &Metadata) -> ebpf::FileKey {
        let mut key = [0; 40];
        key[..8].copy_from_slice(&metadata.ino().to_ne_bytes());
        key[8..16].copy_from_slice(&metadata.len().to_ne_bytes());
        key[16..24].copy_from_slice(&metadata.mtime().to_ne_bytes());
        key[24..28].copy_from_slice(&u32::try_from(metadata.mtime_nsec()).unwrap().to_ne_bytes());
        key
    }

    #[test]
    fn a_file_that_came_to_where_another_was_is_not_taken_for_it() {
        let address = key_of as *const () as u64;
        let maps = Maps::of_process(std::process::id()).unwrap();
        let mapping = maps.find(address).unwrap();
        let (file, metadata) = procfs::open_mapped(std::process::id(), mapping.start, mapping.end).unwrap();
        let mut new = NewFile { key: key_of(&metadata), ..new_file(mapping, std::process::id()) };
        assert!(check(&new, &file, &metadata).is_ok());
        assert!(FileTable::default().numbered(&new).is_ok());
        new.key[8] ^= 1;
        assert_eq!(FileTable::default().numbered(&new).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// What BPF says of a file whose headers it could not read.
    pub(in crate::file) fn new_file(mapping: &Mapping, pid: u32) -> NewFile<'static> {
        let &Mapping { start, end, offset, .. } = mapping;
        NewFile { key: [1; 40], number: 1, pid, start, end, offset, segment: None, build_id: &[], names: &[] }
    }

    #[test]
    fn a_file_that_is_told_and_the_same_one_opened_later_are_one() {
        let segment = FileSegment { offset: 0x1000, address: 0x2000, bytes: 0x500 };
        let mapping = Mapping { start: 0x7000, end: 0x8000, offset: 0x1000, backing: Backing::Anonymous };
        let of_bpf = NewFile {
            segment: Some(segment),
            build_id: &[0xab, 0xcd],
            names: b"run\0tmp\0",
            ..new_file(&mapping, u32::MAX)
        };
        let told = MappedFile::told(&of_bpf).unwrap();
        assert_eq!((&*told.name, told.address(0x1234)), ("/tmp/run", Some(0x2234)));
        assert_eq!(told.build_ids, [(BuildIdKind::Gnu, "abcd".into())]);
        let mut parts = told.parts.clone();
        parts.push(LoadedPart { offset: 0, address: 0, size: 0x1000 });
        let mut opened = MappedFile { parts, ..told.clone() };
        opened.build_ids.push((BuildIdKind::Go, "go".into()));
        let another = MappedFile { parts: vec![LoadedPart { offset: 0, address: 0, size: 0x900 }], ..told.clone() };
        for first_told in [true, false] {
            let mut table = FileTable::default();
            assert_eq!(table.insert(another.clone()), FileId(0));
            let (first, second) = if first_told {
                (table.insert_told(told.clone()), table.insert(opened.clone()))
            } else {
                (table.insert(opened.clone()), table.insert_told(told.clone()))
            };
            assert_eq!((first, second), (FileId(1), FileId(1)), "{first_told}");
            assert_eq!((table.get(first), table.files.len(), table.told.len()), (Some(&opened), 2, 0));
            assert_eq!(table.insert(opened.clone()), first, "it is found by its content");
        }
    }

    fn identified(table: &mut FileTable, path: &std::path::Path) -> FileId {
        let file = File::open(path).unwrap();
        let metadata = file.metadata().unwrap();
        table.identified(path.to_str().unwrap(), &file, &metadata).unwrap()
    }

    #[test]
    fn the_running_test_is_found_through_its_own_mapping() {
        let address = the_running_test_is_found_through_its_own_mapping as *const () as u64;
        let mut table = FileTable::default();
        let frame = table.number_own(address);
        let file = table.get(table.of_number(1).unwrap().unwrap()).unwrap();
        let image = ElfImage::read(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        let offset = frame & ((1 << 40) - 1);
        assert_eq!(file.address(offset), image.virtual_address(offset));
        let part = file.part(file.address(offset).unwrap()).unwrap();
        assert!((part.address..part.address + part.size).contains(&file.address(offset).unwrap()));
        assert_eq!(file.build_ids[0].0, BuildIdKind::Gnu);
    }

    #[test]
    fn a_path_that_leads_to_another_file_by_now_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libc.so");
        std::fs::write(&path, b"old").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let (device, inode) = ((libc::major(metadata.dev()), libc::minor(metadata.dev())), metadata.ino());
        let (pid, text) = (std::process::id(), path.to_str().unwrap());
        assert_eq!(open_by_path(pid, device, inode, text).unwrap().1.ino(), inode);
        // Every file system has an inode of that number.
        let elsewhere = open_by_path(pid, (device.0, device.1 + 1), inode, text);
        let has_two = open::has_two_devices(&File::open(&path).unwrap()).unwrap();
        assert_eq!(elsewhere.is_ok(), has_two);
        // The old file still exists, as it does while it is mapped; its name is another's.
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::write(&path, b"new").unwrap();
        assert_eq!(open_by_path(pid, device, inode, text).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_that_is_no_elf_file_has_its_hash_and_its_offsets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.jsa");
        std::fs::write(&path, b"not an ELF file").unwrap();
        let mut table = FileTable::default();
        let id = identified(&mut table, &path);
        let file = table.get(id).unwrap();
        assert_eq!((file.build_ids[0].0, file.build_ids[0].1.len()), (BuildIdKind::Htlhash, 32));
        assert_eq!((file.address(77), file.part(77)), (Some(77), None));
    }

    #[test]
    fn a_rewritten_file_is_another_file_and_an_equal_one_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"one").unwrap();
        let mut table = FileTable::default();
        let first = identified(&mut table, &path);
        assert_eq!(identified(&mut table, &path), first);
        File::options().append(true).open(&path).unwrap().write_all(b"two").unwrap();
        assert_ne!(identified(&mut table, &path), first);
        // Another inode with the content and the name of the first.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"one").unwrap();
        assert_eq!(identified(&mut table, &path), first);
    }
}
