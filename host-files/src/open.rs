//! Opening of files whose paths are untrusted.
//!
//! Invariant: only regular files are opened for reading, and none of a file system whose content the kernel generates,
//! such as `/proc`. A file is first opened with `O_PATH`, which has no effect on the file, and then checked. The check
//! is necessary: opening a tape rewinds it, opening a watchdog arms it, opening a pipe may wait forever, and reading
//! `/proc/kmsg` consumes the kernel's log. Opening never waits, not even until another process gives up its lease on
//! the file, which can take 45 seconds.

#![allow(unsafe_code, reason = "openat2, fstatfs and memfd_create have no safe form in std")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;

/// A root directory: that of this process, or of a process in another mount namespace.
#[derive(Debug)]
pub struct Root {
    directory: File,
}

impl Root {
    /// Opens the root of this process.
    ///
    /// # Errors
    ///
    /// The error of open(2).
    pub fn host() -> io::Result<Self> {
        Self::at("/")
    }

    /// Opens the root of the process `pid`.
    ///
    /// # Errors
    ///
    /// The error of open(2): the process has ended, or may not be inspected.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::at(&format!("/proc/{pid}/root"))
    }

    pub(crate) fn at(path: &str) -> io::Result<Self> {
        let directory = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path)?;
        Ok(Self { directory })
    }

    /// Opens the regular file at `path` in this root. Symbolic links are followed as in a process with this root, so
    /// they never lead out of it. The special links in `/proc`, such as `/proc/<pid>/exe`, are not followed.
    ///
    /// # Errors
    ///
    /// - The error of openat2(2) or open(2).
    /// - [`io::ErrorKind::InvalidInput`] if the file is not a regular file, or if the kernel generates its content.
    /// - [`io::ErrorKind::WouldBlock`] if another process holds a lease on the file.
    pub fn open(&self, path: &str) -> io::Result<File> {
        let path = CString::new(path)?;
        // SAFETY: `open_how` holds integers only, of which all zero is valid.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = u64::from((libc::O_PATH | libc::O_CLOEXEC).cast_unsigned());
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let directory = self.directory.as_raw_fd();
        let size = size_of::<libc::open_how>();
        // SAFETY: `path` is terminated by zero and `how` is valid; both outlive the call, which writes to neither.
        let descriptor = unsafe { libc::syscall(libc::SYS_openat2, directory, path.as_ptr(), &raw const how, size) };
        match RawFd::try_from(descriptor) {
            // SAFETY: the call has just returned this descriptor, so that nothing else owns it.
            Ok(descriptor) if 0 <= descriptor => readable(&unsafe { File::from_raw_fd(descriptor) }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Opens the regular file to which a special link in `/proc` refers, such as `/proc/<pid>/exe`. The file may have been
/// deleted.
///
/// # Errors
///
/// The errors of [`Root::open`].
pub fn link(path: &str) -> io::Result<File> {
    readable(&OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?)
}

/// Opens for reading the file of `handle`, which was opened with `O_PATH`. Fails if it is not a regular file, or if the
/// kernel generates its content.
fn readable(handle: &File) -> io::Result<File> {
    if !handle.metadata()?.is_file() || is_kernel_made(handle)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// Returns whether the kernel generates the content of the file when it is read.
fn is_kernel_made(handle: &File) -> io::Result<bool> {
    let made = [libc::PROC_SUPER_MAGIC, libc::SYSFS_MAGIC, libc::DEBUGFS_MAGIC, libc::TRACEFS_MAGIC];
    Ok(made.contains(&statfs(handle)?.f_type))
}

/// Returns whether stat(2) and `/proc/<pid>/maps` may have different device numbers for the file. One of the two is the
/// number of a subvolume or layer, the other is that of the whole file system.
///
/// # Errors
///
/// The error of fstatfs(2).
pub fn has_two_devices(file: &File) -> io::Result<bool> {
    Ok([libc::BTRFS_SUPER_MAGIC, libc::OVERLAYFS_SUPER_MAGIC].contains(&statfs(file)?.f_type))
}

fn statfs(handle: &File) -> io::Result<libc::statfs> {
    // SAFETY: `statfs` holds integers only, of which all zero is valid.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `statfs` is valid for writing and outlives the call.
    match unsafe { libc::fstatfs(handle.as_raw_fd(), &raw mut statfs) } {
        0 => Ok(statfs),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates a file in memory with this content. `None` if the system refuses.
pub(crate) fn in_memory(content: &[u8]) -> Option<File> {
    use std::io::Write as _;
    // SAFETY: the name is a literal terminated by zero.
    let descriptor = unsafe { libc::memfd_create(c"varve".as_ptr(), libc::MFD_CLOEXEC) };
    (descriptor >= 0).then_some(())?;
    // SAFETY: the call has just returned this descriptor, so that nothing else owns it.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(content).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_regular_files_of_real_file_systems_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| format!("{}/{name}", directory.path().display());
        std::fs::write(path("file"), "content").unwrap();
        symlink(path("file"), path("link")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let host = Root::host().unwrap();
        for name in ["file", "link"] {
            let mut content = String::new();
            host.open(&path(name)).unwrap().read_to_string(&mut content).unwrap();
            assert_eq!(content, "content");
        }
        let none =
            [&path("pipe"), &path(""), &path("absent"), "/dev/null", "/proc/version", "/sys/kernel/notes", "a\0b"];
        for path in none {
            assert!(host.open(path).is_err(), "{path}");
        }
        assert!(link("/proc/self/exe").is_ok());
        assert!(link("/proc/self/fd/0").map_or(true, |file| file.metadata().unwrap().is_file()));
    }

    // Fails if a special file is opened and closed again at once. That is not enough, because opening a device may
    // already have an effect.
    #[test]
    fn special_files_are_not_opened_even_for_a_moment() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink(&pipe, directory.path().join("link")).unwrap();
        // This thread ends as soon as the pipe is opened for reading, even for a moment.
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || OpenOptions::new().write(true).open(pipe).map(drop)
        });
        std::thread::sleep(Duration::from_millis(100));
        let host = Root::host().unwrap();
        for name in ["pipe", "link"] {
            let path = directory.path().join(name);
            let path = path.to_str().unwrap();
            assert_eq!(host.open(path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(link(path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(!writer.is_finished());
        let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(pipe).unwrap();
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn opening_a_file_with_a_lease_does_not_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "content").unwrap();
        // The crate libc does not have this constant.
        const F_SETSIG: libc::c_int = 10;
        let holder = OpenOptions::new().write(true).open(&path).unwrap();
        // The kernel sends a signal to the holder of the lease when the file is opened. The signal is set to SIGURG,
        // which does nothing by default.
        // SAFETY: fcntl with these commands takes an integer and touches no memory.
        let is_held = unsafe {
            libc::fcntl(holder.as_raw_fd(), F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(holder.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(is_held, "{}", io::Error::last_os_error());
        let started = Instant::now();
        let opened = Root::host().unwrap().open(path.to_str().unwrap());
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }

    #[test]
    fn a_link_does_not_lead_out_of_its_root() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("root/etc")).unwrap();
        std::fs::write(directory.path().join("secret"), "outside").unwrap();
        std::fs::write(directory.path().join("root/etc/name"), "inside").unwrap();
        let root = Root::at(directory.path().join("root").to_str().unwrap()).unwrap();
        let outside = format!("{}/secret", directory.path().display());
        symlink("../../secret", directory.path().join("root/relative")).unwrap();
        symlink(&outside, directory.path().join("root/absolute")).unwrap();
        symlink("/etc/name", directory.path().join("root/inside")).unwrap();
        for path in ["relative", "absolute", "../secret", "/../secret", outside.as_str()] {
            assert!(root.open(path).is_err(), "{path}");
        }
        let mut content = String::new();
        root.open("/inside").unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "inside");
    }
}
