//! Recorder of the file operations of a process.
//!
//! A test defines the C library's functions that change files with [`crate::record_file_operations!`]. The linker
//! resolves all calls of these functions, including those of RocksDB, to the test program instead of the shared
//! library. Each of them calls the function of the same name here, which makes the system call. During a recording, a
//! lock is held while a call is made and recorded, so operations are recorded in the order in which they happen.
//!
//! A test checks that no way to change a file was forgotten: a replay of the recording must produce the directory as it
//! is ([`assert_is_whole`](super::disk::assert_is_whole)).

#![allow(unsafe_code, reason = "functions of the C library are called")]
#![allow(clippy::missing_safety_doc, missing_docs, reason = "the functions are those of the C library")]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, off_t, size_t, ssize_t};
use parking_lot::Mutex;

use super::disk::{Inode, Operation};

/// Stands for the working directory, instead of the descriptor of a directory.
pub const WORKING_DIRECTORY: c_int = libc::AT_FDCWD;
/// Flags with which a name is removed.
pub const REMOVE_FILE: c_int = 0;
pub const REMOVE_DIRECTORY: c_int = libc::AT_REMOVEDIR;

/// Number of descriptors that can be recorded.
const DESCRIPTORS_MAX: usize = 1 << 16;

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);
/// True for descriptors of recorded files. Calls for other files wait for no lock.
static IS_RECORDED: [AtomicBool; DESCRIPTORS_MAX] = [const { AtomicBool::new(false) }; DESCRIPTORS_MAX];
/// Folder with the files to record, and the folder with files whose syncs can be held, if there is one.
static FOLDERS: Mutex<Option<(PathBuf, Option<PathBuf>)>> = Mutex::new(None);
/// True while syncs are held.
static IS_HELD: AtomicBool = AtomicBool::new(false);
/// Interval of checks if a sync is still held.
const HELD_INTERVAL: Duration = Duration::from_micros(200);

/// Recorded operations, and the state that is needed to interpret further ones.
#[derive(Default)]
struct Recording {
    operations: Vec<Operation>,
    inodes: u64,
    /// Numbers of directories by path. Directories from before the recording get a number on first use.
    directories: HashMap<PathBuf, Inode>,
    names: HashMap<(Inode, OsString), Inode>,
    descriptors: HashMap<c_int, Inode>,
    /// Descriptors of files whose syncs can be held.
    holdable: HashSet<c_int>,
}

/// Starts to record the operations of the process on files below `folder`. The syncs of files below `holdable` can be
/// held.
pub fn start(folder: &Path, holdable: Option<&Path>) {
    *RECORDING.lock() = Some(Recording::default());
    *FOLDERS.lock() = Some((folder.to_owned(), holdable.map(Path::to_owned)));
    IS_RECORDING.store(true, Ordering::SeqCst);
}

/// Holds syncs, as a slow disk does, or lets them go on.
pub fn hold_syncs(is_held: bool) {
    IS_HELD.store(is_held, Ordering::SeqCst);
}

/// Returns the number of operations so far.
pub fn count() -> usize {
    RECORDING.lock().as_ref().map_or(0, |recording| recording.operations.len())
}

/// Returns the number that the recording gives to a directory.
pub fn directory(path: &Path) -> Inode {
    RECORDING.lock().get_or_insert_default().directory(path)
}

/// Ends the recording and returns its operations.
pub fn stop() -> Vec<Operation> {
    IS_RECORDING.store(false, Ordering::SeqCst);
    IS_RECORDED.iter().for_each(|is_recorded| is_recorded.store(false, Ordering::Relaxed));
    RECORDING.lock().take().unwrap_or_default().operations
}

impl Recording {
    fn directory(&mut self, path: &Path) -> Inode {
        let Self { directories, inodes, .. } = self;
        *directories.entry(path.components().collect()).or_insert_with(|| {
            *inodes += 1;
            *inodes
        })
    }

    /// Returns the path of an open directory.
    fn path_of(&self, descriptor: c_int) -> Option<PathBuf> {
        let inode = self.descriptors.get(&descriptor)?;
        self.directories.iter().find_map(|(path, other)| (inode == other).then(|| path.clone()))
    }

    /// Returns the directory and the name of a path.
    fn entry(&mut self, path: &Path) -> (Inode, OsString) {
        let directory = self.directory(path.parent().unwrap_or(path));
        (directory, path.file_name().unwrap_or_default().to_owned())
    }

    fn opened(&mut self, path: &Path, flags: c_int, descriptor: c_int) {
        if let Some(is_recorded) = IS_RECORDED.get(descriptor as usize) {
            is_recorded.store(true, Ordering::SeqCst);
        }
        let is_below = |holdable: &PathBuf| path.starts_with(holdable);
        if FOLDERS.lock().as_ref().is_some_and(|(_, holdable)| holdable.as_ref().is_some_and(is_below)) {
            self.holdable.insert(descriptor);
        }
        if is_directory(descriptor) {
            let inode = self.directory(path);
            self.descriptors.insert(descriptor, inode);
            return;
        }
        let entry = self.entry(path);
        match self.names.get(&entry) {
            Some(&inode) => {
                self.descriptors.insert(descriptor, inode);
                if flags & libc::O_TRUNC != 0 {
                    self.operations.push(Operation::Resize { inode, length: 0 });
                }
            }
            None if flags & libc::O_CREAT != 0 => {
                self.inodes += 1;
                let inode = self.inodes;
                self.names.insert(entry.clone(), inode);
                self.descriptors.insert(descriptor, inode);
                self.operations.push(Operation::Create { entry, inode, is_directory: false });
            }
            None => {}
        }
    }

    fn closed(&mut self, descriptor: c_int) {
        self.descriptors.remove(&descriptor);
        self.holdable.remove(&descriptor);
        if let Some(is_recorded) = IS_RECORDED.get(descriptor as usize) {
            is_recorded.store(false, Ordering::SeqCst);
        }
    }

    fn wrote(&mut self, descriptor: c_int, offset: u64, bytes: &[u8]) {
        if let Some(&inode) = self.descriptors.get(&descriptor) {
            self.operations.push(Operation::Write { inode, offset, bytes: bytes.to_vec() });
        }
    }

    fn synced(&mut self, descriptor: c_int) {
        if let Some(&inode) = self.descriptors.get(&descriptor) {
            self.operations.push(Operation::Sync(inode));
        }
    }

    fn moved(&mut self, from: &Path, to: &Path) {
        let from_entry = self.entry(from);
        let to_entry = self.entry(to);
        let Some(inode) = self.names.remove(&from_entry) else { return };
        self.names.insert(to_entry.clone(), inode);
        // Paths below a renamed directory change.
        let below: Vec<PathBuf> = self.directories.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in below {
            if let (Ok(rest), Some(directory)) = (path.strip_prefix(from), self.directories.remove(&path)) {
                self.directories.insert(to.join(rest).components().collect(), directory);
            }
        }
        self.operations.push(Operation::Rename { from: from_entry, to: to_entry, inode });
    }

    fn linked(&mut self, from: &Path, to: &Path) {
        let (from, to) = (self.entry(from), self.entry(to));
        if let Some(&inode) = self.names.get(&from) {
            self.names.insert(to.clone(), inode);
            self.operations.push(Operation::Create { entry: to, inode, is_directory: false });
        }
    }

    fn made(&mut self, path: &Path) {
        let entry = self.entry(path);
        let inode = self.directory(path);
        self.names.insert(entry.clone(), inode);
        self.operations.push(Operation::Create { entry, inode, is_directory: true });
    }

    fn removed(&mut self, path: &Path) {
        let entry = self.entry(path);
        if self.names.remove(&entry).is_some() {
            self.operations.push(Operation::Remove { entry });
        }
        self.directories.remove(path);
    }
}

fn is_directory(descriptor: c_int) -> bool {
    // SAFETY: `stat` is plain data, and fstat writes nothing else.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Makes a call and records it if it succeeds. No other recorded call is made meanwhile.
fn recorded(call: impl FnOnce() -> c_long, note: impl FnOnce(&mut Recording, c_long)) -> c_long {
    let mut recording = RECORDING.lock();
    let result = call();
    if let Some(recording) = recording.as_mut().filter(|_| result >= 0) {
        note(recording, result);
    }
    result
}

/// Does the same as [`recorded`] if the file is below the folder that is recorded.
fn recorded_path(path: &Path, call: impl FnOnce() -> c_long, note: impl FnOnce(&mut Recording, c_long)) -> c_long {
    let is_inside = || FOLDERS.lock().as_ref().is_some_and(|(folder, _)| path.starts_with(folder));
    if IS_RECORDING.load(Ordering::SeqCst) && is_inside() { recorded(call, note) } else { call() }
}

/// Does the same as [`recorded`] if the file is recorded.
fn recorded_file(
    descriptor: c_int,
    call: impl FnOnce() -> c_long,
    note: impl FnOnce(&mut Recording, c_long),
) -> c_long {
    let is_recorded =
        || IS_RECORDED.get(descriptor as usize).is_some_and(|is_recorded| is_recorded.load(Ordering::SeqCst));
    if IS_RECORDING.load(Ordering::SeqCst) && is_recorded() { recorded(call, note) } else { call() }
}

/// # Safety
/// `path` is a valid C string.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: callers of the C library pass a string that ends with a zero.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

/// Returns the path of a name in an open directory.
unsafe fn path_at(directory: c_int, name: *const c_char) -> PathBuf {
    // SAFETY: the caller passes a valid C string.
    let name = unsafe { path(name) };
    let of_directory = || RECORDING.lock().as_ref().and_then(|recording| recording.path_of(directory));
    if name.is_absolute() || directory == libc::AT_FDCWD || !IS_RECORDING.load(Ordering::SeqCst) {
        return name.to_owned();
    }
    of_directory().map_or_else(|| name.to_owned(), |directory| directory.join(name))
}

pub unsafe fn openat(directory: c_int, name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_openat, directory, name, flags, mode) };
    // SAFETY: the caller passes a valid C string.
    let path = unsafe { path_at(directory, name) };
    recorded_path(&path, call, |recording, result| recording.opened(&path, flags, result as c_int)) as c_int
}

pub unsafe fn close(descriptor: c_int) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_close, descriptor) };
    recorded_file(descriptor, call, |recording, _| recording.closed(descriptor)) as c_int
}

pub unsafe fn write(descriptor: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_write, descriptor, bytes, count) };
    recorded_file(descriptor, call, |recording, result| {
        // SAFETY: the descriptor was written to, and `bytes` holds the bytes that were written.
        let (end, bytes) = unsafe {
            let end = libc::lseek(descriptor, 0, libc::SEEK_CUR);
            (end, std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize))
        };
        recording.wrote(descriptor, (end - result).cast_unsigned(), bytes);
    }) as ssize_t
}

pub unsafe fn pwrite(descriptor: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, bytes, count, offset) };
    recorded_file(descriptor, call, |recording, result| {
        // SAFETY: `bytes` holds the bytes that were written.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize) };
        recording.wrote(descriptor, offset.cast_unsigned(), bytes);
    }) as ssize_t
}

pub unsafe fn ftruncate(descriptor: c_int, length: off_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, descriptor, length) };
    recorded_file(descriptor, call, |recording, _| {
        if let Some(&inode) = recording.descriptors.get(&descriptor) {
            recording.operations.push(Operation::Resize { inode, length: length.cast_unsigned() });
        }
    }) as c_int
}

pub unsafe fn fallocate(descriptor: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_fallocate, descriptor, mode, offset, length) };
    recorded_file(descriptor, call, |recording, _| {
        // RocksDB allocates space after the end of a file and releases it; neither changes the content.
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && recording.descriptors.contains_key(&descriptor) {
            recording.operations.push(Operation::Unknown);
        }
    }) as c_int
}

/// Syncs a file with one of two system calls.
fn sync(number: c_long, descriptor: c_int) -> c_int {
    let is_holdable = || RECORDING.lock().as_ref().is_some_and(|recording| recording.holdable.contains(&descriptor));
    while IS_RECORDING.load(Ordering::SeqCst) && IS_HELD.load(Ordering::SeqCst) && is_holdable() {
        std::thread::sleep(HELD_INTERVAL);
    }
    // SAFETY: the call has no other effect for a descriptor that is not open.
    let call = || unsafe { libc::syscall(number, descriptor) };
    recorded_file(descriptor, call, |recording, _| recording.synced(descriptor)) as c_int
}

pub fn fsync(descriptor: c_int) -> c_int {
    sync(libc::SYS_fsync, descriptor)
}

pub fn fdatasync(descriptor: c_int) -> c_int {
    sync(libc::SYS_fdatasync, descriptor)
}

// This function starts a write and promises nothing, so there is nothing to record.
pub fn sync_file_range(descriptor: c_int, offset: off_t, length: off_t, flags: c_uint) -> c_int {
    // SAFETY: the call has no other effect for a descriptor that is not open.
    unsafe { libc::syscall(libc::SYS_sync_file_range, descriptor, offset, length, flags) as c_int }
}

pub unsafe fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
    // SAFETY: the caller passes valid C strings.
    let (from, to) = unsafe { (path(from), path(to)) };
    recorded_path(to, call, |recording, _| recording.moved(from, to)) as c_int
}

pub unsafe fn linkat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_linkat, from_directory, from, to_directory, to, flags) };
    // SAFETY: the caller passes valid C strings.
    let (from, to) = unsafe { (path_at(from_directory, from), path_at(to_directory, to)) };
    recorded_path(&to, call, |recording, _| recording.linked(&from, &to)) as c_int
}

pub unsafe fn unlinkat(directory: c_int, name: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, directory, name, flags) };
    // SAFETY: the caller passes a valid C string.
    let path = unsafe { path_at(directory, name) };
    recorded_path(&path, call, |recording, _| recording.removed(&path)) as c_int
}

pub unsafe fn mkdir(name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, name, mode) };
    // SAFETY: the caller passes a valid C string.
    let path = unsafe { path(name) };
    recorded_path(path, call, |recording, _| recording.made(path)) as c_int
}
