//! Records what RocksDB does to files.
//!
//! The functions of the C library that change files are defined here, in the program itself: the linker takes these for everything
//! that is linked into it, RocksDB included, before those of the shared library. Each makes the system call, and while a recording
//! goes on it notes it under one lock, so the list of operations is in the order in which they happened.
//!
//! Whether any way to change a file was forgotten, the test finds out: played back, a recording has to give the directory as it is.

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
static TAPE: Mutex<Option<Tape>> = Mutex::new(None);

/// What was recorded so far, and what it is about.
#[derive(Default)]
struct Tape {
    operations: Vec<Operation>,
    inodes: u64,
    /// Of directories by path; those that were there before the recording get a number when they are first used.
    directories: HashMap<PathBuf, Inode>,
    names: HashMap<(Inode, OsString), Inode>,
    descriptors: HashMap<c_int, Inode>,
}

/// Records from now on, of the whole process.
pub(crate) fn start() {
    *TAPE.lock() = Some(Tape::default());
    IS_RECORDING.store(true, Ordering::SeqCst);
}

/// Notes something between the operations.
pub(crate) fn note(operation: Operation) {
    if let Some(tape) = TAPE.lock().as_mut() {
        tape.operations.push(operation);
    }
}

/// The number of a directory.
pub(crate) fn directory(path: &Path) -> Inode {
    TAPE.lock().get_or_insert_default().directory(path)
}

/// The recording, which ends.
pub(crate) fn stop() -> Vec<Operation> {
    IS_RECORDING.store(false, Ordering::SeqCst);
    TAPE.lock().take().unwrap_or_default().operations
}

impl Tape {
    fn directory(&mut self, path: &Path) -> Inode {
        let Self { directories, inodes, .. } = self;
        *directories.entry(path.components().collect()).or_insert_with(|| {
            *inodes += 1;
            *inodes
        })
    }

    /// The directory and the name of a path.
    fn place(&mut self, path: &Path) -> (Inode, OsString) {
        let directory = self.directory(path.parent().unwrap_or(path));
        (directory, path.file_name().unwrap_or_default().to_owned())
    }

    fn opened(&mut self, path: &Path, flags: c_int, descriptor: c_int) {
        if is_directory(descriptor) {
            let inode = self.directory(path);
            self.descriptors.insert(descriptor, inode);
            return;
        }
        let place = self.place(path);
        match self.names.get(&place) {
            Some(&inode) => {
                self.descriptors.insert(descriptor, inode);
                if flags & libc::O_TRUNC != 0 {
                    self.operations.push(Operation::Resize { inode, length: 0 });
                }
            }
            None if flags & libc::O_CREAT != 0 => {
                self.inodes += 1;
                let inode = self.inodes;
                self.names.insert(place.clone(), inode);
                self.descriptors.insert(descriptor, inode);
                self.operations.push(Operation::Enter { place, inode, is_directory: false });
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
        let (from_place, to_place) = (self.place(from), self.place(to));
        let Some(inode) = self.names.remove(&from_place) else { return };
        self.names.insert(to_place.clone(), inode);
        // Paths below a directory that is moved are others now.
        let below: Vec<PathBuf> = self.directories.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in below {
            if let (Ok(rest), Some(directory)) = (path.strip_prefix(from), self.directories.remove(&path)) {
                self.directories.insert(to.join(rest).components().collect(), directory);
            }
        }
        self.operations.push(Operation::Move { from: from_place, to: to_place, inode });
    }
}

fn is_directory(descriptor: c_int) -> bool {
    // SAFETY: `stat` is plain data, and fstat writes nothing but it.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(descriptor, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Makes a call, and tells the tape of one that succeeded; no other is made in between.
fn recorded(call: impl FnOnce() -> c_long, note: impl FnOnce(&mut Tape, c_long)) -> c_long {
    if !IS_RECORDING.load(Ordering::SeqCst) {
        return call();
    }
    let mut tape = TAPE.lock();
    let result = call();
    if let Some(tape) = tape.as_mut().filter(|_| result >= 0) {
        note(tape, result);
    }
    result
}

/// # Safety
/// A path as the C library takes it.
unsafe fn path<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: who calls the C library gives a string that ends with a zero.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
}

// The real ones are variadic; integers are passed in the same registers, and what is not given is not read.
#[unsafe(no_mangle)]
unsafe extern "C" fn open(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags, mode) };
    // SAFETY: as above.
    recorded(call, |tape, result| tape.opened(unsafe { path(name) }, flags, result as c_int)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(name: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the same function.
    unsafe { open(name, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_close, descriptor) };
    recorded(call, |tape, _| tape.closed(descriptor)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_write, descriptor, bytes, count) };
    recorded(call, |tape, result| {
        // SAFETY: a descriptor that was written to, and the bytes that were.
        let (end, bytes) = unsafe {
            let end = libc::lseek(descriptor, 0, libc::SEEK_CUR);
            (end, std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize))
        };
        tape.wrote(descriptor, (end - result).cast_unsigned(), bytes);
    }) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(descriptor: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, bytes, count, offset) };
    recorded(call, |tape, result| {
        // SAFETY: the bytes that were written.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), result as usize) };
        tape.wrote(descriptor, offset.cast_unsigned(), bytes);
    }) as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(descriptor: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the same function.
    unsafe { pwrite(descriptor, bytes, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate(descriptor: c_int, length: off_t) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_ftruncate, descriptor, length) };
    recorded(call, |tape, _| {
        if let Some(&inode) = tape.descriptors.get(&descriptor) {
            tape.operations.push(Operation::Resize { inode, length: length.cast_unsigned() });
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ftruncate64(descriptor: c_int, length: off_t) -> c_int {
    // SAFETY: the same function.
    unsafe { ftruncate(descriptor, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(descriptor: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_fallocate, descriptor, mode, offset, length) };
    recorded(call, |tape, _| {
        // RocksDB asks for space behind the end, and gives it back; neither changes what can be read.
        if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && tape.descriptors.contains_key(&descriptor) {
            tape.operations.push(Operation::Unknown);
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate64(descriptor: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    // SAFETY: the same function.
    unsafe { fallocate(descriptor, mode, offset, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(descriptor: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_fsync, descriptor) };
    recorded(call, |tape, _| tape.synced(descriptor)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_fdatasync, descriptor) };
    recorded(call, |tape, _| tape.synced(descriptor)) as c_int
}

// It begins to write and promises nothing: there is nothing to note.
#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(descriptor: c_int, offset: off_t, length: off_t, flags: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_sync_file_range, descriptor, offset, length, flags) as c_int }
}

impl Tape {
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
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
    // SAFETY: as above.
    recorded(call, |tape, _| tape.moved(unsafe { path(from) }, unsafe { path(to) })) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_linkat, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) };
    recorded(call, |tape, _| {
        // SAFETY: as above.
        let (from, to) = unsafe { (tape.place(path(from)), tape.place(path(to))) };
        if let Some(&inode) = tape.names.get(&from) {
            tape.names.insert(to.clone(), inode);
            tape.operations.push(Operation::Enter { place: to, inode, is_directory: false });
        }
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, name, 0) };
    // SAFETY: as above.
    recorded(call, |tape, _| tape.left(unsafe { path(name) })) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, name, libc::AT_REMOVEDIR) };
    recorded(call, |tape, _| {
        // SAFETY: as above.
        let path = unsafe { path(name) };
        tape.left(path);
        tape.directories.remove(path);
    }) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(name: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, name, mode) };
    recorded(call, |tape, _| {
        // SAFETY: as above.
        let path = unsafe { path(name) };
        let (place, inode) = (tape.place(path), tape.directory(path));
        tape.names.insert(place.clone(), inode);
        tape.operations.push(Operation::Enter { place, inode, is_directory: true });
    }) as c_int
}

impl Tape {
    fn left(&mut self, path: &Path) {
        let place = self.place(path);
        if self.names.remove(&place).is_some() {
            self.operations.push(Operation::Leave { place });
        }
    }
}
