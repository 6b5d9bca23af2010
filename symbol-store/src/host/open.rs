//! Opening files whose names come from outside.
//!
//! Invariant: nothing but a regular file of a real file system is ever opened for reading. It is first opened as a
//! mere path, which has no effect on whatever it names, and looked at: opening a tape rewinds it, opening a watchdog
//! arms it, opening a pipe may wait for ever, and reading `/proc/kmsg` eats the kernel's log.

#![allow(unsafe_code, reason = "openat2, fstatfs and memfd_create have no safe form in std")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;

/// A root directory: our own, or that of a process in another mount namespace.
#[derive(Debug)]
pub(super) struct Root {
    directory: File,
}

impl Root {
    pub(super) fn host() -> Option<Self> {
        Self::at("/")
    }

    pub(super) fn of_process(pid: u32) -> Option<Self> {
        Self::at(&format!("/proc/{pid}/root"))
    }

    fn at(path: &str) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
        options.open(path).ok().map(|directory| Self { directory })
    }

    /// The regular file at `path` below this root. Links are followed as a process in this root would: never out of
    /// it, nor through `/proc`.
    pub(super) fn open(&self, path: &str) -> Option<File> {
        let path = CString::new(path).ok()?;
        // SAFETY: `open_how` holds integers only, of which all zero is valid.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = u64::try_from(libc::O_PATH | libc::O_CLOEXEC).ok()?;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let (directory, size) = (self.directory.as_raw_fd(), size_of::<libc::open_how>());
        // SAFETY: `path` is terminated by zero and `how` is valid; both outlive the call, which writes to neither.
        let descriptor = unsafe { libc::syscall(libc::SYS_openat2, directory, path.as_ptr(), &raw const how, size) };
        let descriptor = RawFd::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
        // SAFETY: the call has just returned this descriptor, so that nothing else owns it.
        readable(&unsafe { File::from_raw_fd(descriptor) })
    }
}

/// The regular file to which a link of `/proc` leads, which may have no name any more.
pub(super) fn link(path: &str) -> Option<File> {
    readable(&OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).ok()?)
}

/// Opens for reading what `handle` is the path of, if that is safe.
fn readable(handle: &File) -> Option<File> {
    let is_regular = handle.metadata().ok()?.is_file();
    if !is_regular || is_kernel_made(handle) != Some(false) {
        return None;
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(format!("/proc/self/fd/{}", handle.as_raw_fd())).ok()
}

/// Whether a file's content is made by the kernel when it is read.
fn is_kernel_made(handle: &File) -> Option<bool> {
    // SAFETY: `statfs` holds integers only, of which all zero is valid.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `statfs` is valid for writing and outlives the call.
    let failed = unsafe { libc::fstatfs(handle.as_raw_fd(), &raw mut statfs) } != 0;
    let made = [libc::PROC_SUPER_MAGIC, libc::SYSFS_MAGIC, libc::DEBUGFS_MAGIC, libc::TRACEFS_MAGIC];
    (!failed).then(|| made.contains(&statfs.f_type))
}

/// A file in memory with this content.
pub(super) fn in_memory(content: &[u8]) -> Option<File> {
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
            assert!(host.open(path).is_none(), "{path}");
        }
        assert!(link("/proc/self/exe").is_some());
        assert!(link("/proc/self/fd/0").is_none_or(|file| file.metadata().unwrap().is_file()));
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
            assert!(root.open(path).is_none(), "{path}");
        }
        let mut content = String::new();
        root.open("/inside").unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "inside");
    }
}
