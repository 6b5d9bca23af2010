//! Recorder of the file operations of RocksDB.
//!
//! This program defines the C library's functions that change files. The linker resolves all calls of these functions,
//! including those of RocksDB, to this program instead of the shared library. Each function makes the system call.
//! During a recording, it holds a lock while it makes and records the call, so operations are recorded in the order in
//! which they happen.
//!
//! The test checks that no way to change a file was forgotten: a replay of the recording must produce the directory as
//! it is.

#![allow(unsafe_code, reason = "functions of the C library are defined, and called")]

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, off_t, size_t, ssize_t};
use parking_lot::Mutex;

use super::disk::{Inode, Operation};

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);

/// Recorded operations, and the state that is needed to interpret further ones.
#[derive(Default)]
struct Recording {
    operations: Vec<Operation>,
    inodes: u64,
    /// Numbers of directories by path. Directories from before the recording get a number on first use.
    directories: HashMap<PathBuf, Inode>,
    names: HashMap<(Inode, OsString), Inode>,
    descriptors: HashMap<c_int, Inode>,
}

/// Starts to record the operations of the whole process.
pub(crate) fn start() {
    *RECORDING.lock() = Some(Recording::default());
    IS_RECORDING.store(true, Ordering::SeqCst);
}

/// Adds a note about the engine to the recorded operations.
pub(crate) fn note(operation: Operation) {
    if let Some(recording) = RECORDING.lock().as_mut() {
        recording.operations.push(operation);
    }
}

/// Returns the number that the recording gives to a directory.
pub(crate) fn directory(path: &Path) -> Inode {
    RECORDING.lock().get_or_insert_default().directory(path)
}

/// Ends the recording and returns its operations.
pub(crate) fn stop() -> Vec<Operation> {
    IS_RECORDING.store(false, Ordering::SeqCst);
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

    /// Returns the directory and the name of a path.
    fn entry(&mut self, path: &Path) -> (Inode, OsString) {
        let directory = self.directory(path.parent().unwrap_or(path));
        (directory, path.file_name().unwrap_or_default().to_owned())
    }

    fn opened(&mut self, path: &Path, flags: c_int, descriptor: c_int) {
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

    fn wrote(&mut self, descriptor: c_int, offset: u64, bytes: &[u8]) {
        if let Some(&inode) = self.descriptors.get(&descriptor) {
            self.operations.push(Operation::Write { inode, offset, bytes: bytes.to_vec() });
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
    if !IS_RECORDING.load(Ordering::SeqCst) {
        return call();
    }
    let mut recording = RECORDING.lock();
    let result = call();
    if let Some(recording) = recording.as_mut().filter(|_| result >= 0) {
        note(recording, result);
    }
    result
}

/// # Safety
/// `path` is a valid C string.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: callers of the C library pass a string that ends with a zero.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

// The C library's functions are variadic. Integers are passed in the same registers, and the system ignores a mode that
// the caller did not pass.
#[unsafe(no_mangle)]
unsafe extern "C" fn open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags, mode) };
    // SAFETY: the caller passes valid C strings.
    recorded(call, |recording, result| recording.opened(unsafe { path(name) }, flags, result as c_int)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are passed on unchanged.
    unsafe { open(name, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_close, descriptor) };
    recorded(call, |recording, _| recording.closed(descriptor)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_write, descriptor, bytes, count) };
    recorded(call, |recording, result| {
        // SAFETY: the descriptor was written to, and `bytes` holds the bytes that were written.
        let (end, bytes) = unsafe {
            let end = libc::lseek(descriptor, 0, libc::SEEK_CUR);
            (end, std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize))
        };
        recording.wrote(descriptor, (end - result).cast_unsigned(), bytes);
    }) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(descriptor: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, bytes, count, offset) };
    recorded(call, |recording, result| {
        // SAFETY: `bytes` holds the bytes that were written.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize) };
        recording.wrote(descriptor, offset.cast_unsigned(), bytes);
    }) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(descriptor: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the arguments are passed on unchanged.
    unsafe { pwrite(descriptor, bytes, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(descriptor: c_int, length: off_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, descriptor, length) };
    recorded(call, |recording, _| {
        if let Some(&inode) = recording.descriptors.get(&descriptor) {
            recording.operations.push(Operation::Resize { inode, length: length.cast_unsigned() });
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(descriptor: c_int, length: off_t) -> c_int {
    // SAFETY: the arguments are passed on unchanged.
    unsafe { ftruncate(descriptor, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(descriptor: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_fallocate, descriptor, mode, offset, length) };
    recorded(call, |recording, _| {
        // RocksDB allocates space after the end of a file and releases it; neither changes the content.
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && recording.descriptors.contains_key(&descriptor) {
            recording.operations.push(Operation::Unknown);
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(descriptor: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    // SAFETY: the arguments are passed on unchanged.
    unsafe { fallocate(descriptor, mode, offset, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(descriptor: c_int) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_fsync, descriptor) };
    recorded(call, |recording, _| recording.synced(descriptor)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_fdatasync, descriptor) };
    recorded(call, |recording, _| recording.synced(descriptor)) as c_int
}

// This function starts a write and promises nothing, so there is nothing to record.
#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(descriptor: c_int, offset: off_t, length: off_t, flags: c_uint) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    unsafe { libc::syscall(libc::SYS_sync_file_range, descriptor, offset, length, flags) as c_int }
}

impl Recording {
    fn closed(&mut self, descriptor: c_int) {
        self.descriptors.remove(&descriptor);
    }

    fn synced(&mut self, descriptor: c_int) {
        if let Some(&inode) = self.descriptors.get(&descriptor) {
            self.operations.push(Operation::Sync(inode));
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
    // SAFETY: the caller passes valid C strings.
    recorded(call, |recording, _| recording.moved(unsafe { path(from) }, unsafe { path(to) })) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_linkat, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
    recorded(call, |recording, _| {
        // SAFETY: the caller passes valid C strings.
        let (from, to) = unsafe { (recording.entry(path(from)), recording.entry(path(to))) };
        if let Some(&inode) = recording.names.get(&from) {
            recording.names.insert(to.clone(), inode);
            recording.operations.push(Operation::Create { entry: to, inode, is_directory: false });
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(name: *const c_char) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, name, 0) };
    // SAFETY: the caller passes valid C strings.
    recorded(call, |recording, _| recording.left(unsafe { path(name) })) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(name: *const c_char) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, name, libc::AT_REMOVEDIR) };
    recorded(call, |recording, _| {
        // SAFETY: the caller passes valid C strings.
        let path = unsafe { path(name) };
        recording.left(path);
        recording.directories.remove(path);
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller passes the arguments of a valid call.
    let call = || unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, name, mode) };
    recorded(call, |recording, _| {
        // SAFETY: the caller passes valid C strings.
        let path = unsafe { path(name) };
        let entry = recording.entry(path);
        let inode = recording.directory(path);
        recording.names.insert(entry.clone(), inode);
        recording.operations.push(Operation::Create { entry, inode, is_directory: true });
    }) as c_int
}

impl Recording {
    fn left(&mut self, path: &Path) {
        let entry = self.entry(path);
        if self.names.remove(&entry).is_some() {
            self.operations.push(Operation::Remove { entry });
        }
    }
}
