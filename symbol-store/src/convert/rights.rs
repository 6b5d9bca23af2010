//! Privileges that a converter drops before it reads its input.
//!
//! Invariant: when [`give_up`] returns, this process has no capabilities, cannot gain any, and can only make the system
//! calls of [`system_calls`]. If it was root, it has become the user nobody. It stays root, without capabilities, only
//! if it cannot change its user, or if the user namespace has no other user.

#![allow(unsafe_code, reason = "privileges are dropped by system calls that have no safe form in std")]

use std::io;

use super::confine::check;
use super::system_calls;

/// Number of the user nobody and of the group nobody, which own no files on any distribution.
const NOBODY: u32 = 65_534;

/// Capabilities that root needs to become nobody: `CAP_SETGID`, `CAP_SETUID` and `CAP_KILL`. `CAP_KILL` is required
/// because the parent, which has the same capabilities, must be able to kill a process of another user.
const TO_BECOME_NOBODY: u32 = 1 << 6 | 1 << 7 | 1 << 5;

/// `_LINUX_CAPABILITY_VERSION_3`: the version of capget(2) and capset(2) in which a set of capabilities has two halves
/// of 32 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct` of capget(2) and capset(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    /// ID of the thread; 0 stands for the calling thread.
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct` of capget(2) and capset(2): one half of each set of capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops the privileges of this process.
///
/// After an error, the process must not read its input: it may still have a privilege, or the parent has ended.
pub(super) fn give_up() -> io::Result<()> {
    if is_root()? && held()?.effective & TO_BECOME_NOBODY == TO_BECOME_NOBODY {
        become_nobody()?;
    }
    drop_capabilities()?;
    // A change of the user or the capabilities clears the death signal, so it is set again.
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    if is_orphan()? {
        return Err(io::Error::other("the parent has ended"));
    }
    system_calls::allow_only_those_needed()
}

fn is_root() -> io::Result<bool> {
    let mut real = 0;
    let mut effective = 0;
    let mut saved = 0;
    // SAFETY: the three are valid for writing and outlive the call.
    check(unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) })?;
    Ok([real, effective, saved].contains(&0))
}

fn held() -> io::Result<Capabilities> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut halves = [Capabilities::default(); 2];
    // SAFETY: the header is valid. This version writes two halves, which `halves` can hold.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, halves.as_mut_ptr()) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(halves[0]) }
}

fn become_nobody() -> io::Result<()> {
    // The user is changed last, because only root may change the groups.
    // SAFETY: takes integers only.
    where_mapped(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
    // The user namespace may deny a change of the groups. The process then keeps its groups. They are of little use to
    // it, because the system call filter lets it open no files.
    let is_denied = std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|policy| policy.trim_end() == "deny");
    if !is_denied {
        // SAFETY: no group is read from the null pointer.
        check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    }
    // SAFETY: takes integers only.
    where_mapped(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })
}

/// Checks the result of a system call that changes the user or the group. Ignores the error in a user namespace without
/// the user nobody, as in a rootless container.
fn where_mapped(result: libc::c_int) -> io::Result<()> {
    check(result).or_else(|error| if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) })
}

/// Empties the effective, permitted and inheritable sets, and thereby the ambient one.
fn drop_capabilities() -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let none = [Capabilities::default(); 2];
    // SAFETY: the header is valid. This version reads two halves.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns whether the parent has ended, so that nobody reads standard output any more. The parent may have ended while
/// no death signal was set.
fn is_orphan() -> io::Result<bool> {
    let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one structure, valid for reading and writing, that outlives the call.
    check(unsafe { libc::poll(&raw mut output, 1, 0) })?;
    Ok(output.revents & libc::POLLERR != 0)
}
