//! What a converter gives up before it looks at its input.
//!
//! Invariant: when [`give_up`] returns, this process has no capability and can gain none, makes no system call but those
//! of [`system_calls`], and is nobody where it was root. It stays root without capabilities only where it has not the
//! right to become somebody else, or where the user namespace has nobody else.

#![allow(unsafe_code, reason = "rights are given up by system calls that have no safe form in std")]

use std::io;

use super::confine::check;
use super::system_calls;

/// The user and group that own nothing, on every distribution.
const NOBODY: u32 = 65_534;

/// What root needs to become nobody: `CAP_SETGID`, `CAP_SETUID`, and `CAP_KILL`, without which the parent, which has the
/// same capabilities, could not end what is no longer of its own user.
const TO_BECOME_NOBODY: u32 = 1 << 6 | 1 << 7 | 1 << 5;

/// `_LINUX_CAPABILITY_VERSION_3`: two halves of 32 bits.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    /// 0 is the calling thread.
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// See the module. An error means that a right is left that could have been given up: nothing may be read then.
pub(super) fn give_up() -> io::Result<()> {
    if is_root()? && held()?.effective & TO_BECOME_NOBODY == TO_BECOME_NOBODY {
        become_nobody()?;
    }
    drop_capabilities()?;
    // Another user or other capabilities, also those of an executed file, clear it.
    // SAFETY: takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
    if is_orphan()? {
        return Err(io::Error::other("the parent is gone"));
    }
    system_calls::allow_only_those_needed()
}

fn is_root() -> io::Result<bool> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: the three are valid for writing and outlive the call.
    check(unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) })?;
    Ok([real, effective, saved].contains(&0))
}

fn held() -> io::Result<Capabilities> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut halves = [Capabilities::default(); 2];
    // SAFETY: the header is valid, and of this version two halves are written, for which there is room.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw const header, halves.as_mut_ptr()) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(halves[0]) }
}

fn become_nobody() -> io::Result<()> {
    // The user last: the right to change the groups goes with root.
    // SAFETY: takes integers only.
    where_mapped(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) })?;
    // Whoever made a user namespace may have denied it; its groups are then of no more use than outside of it.
    let is_denied = std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|policy| policy.trim_end() == "deny");
    if !is_denied {
        // SAFETY: no group is read from the null pointer.
        check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    }
    // SAFETY: takes integers only.
    where_mapped(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) })
}

/// Takes it for success that a user namespace has no nobody, as that of a container without root.
fn where_mapped(result: libc::c_int) -> io::Result<()> {
    check(result).or_else(|error| if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) })
}

/// Empties the effective, permitted and inheritable set, and with them the ambient one.
fn drop_capabilities() -> io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let none = [Capabilities::default(); 2];
    // SAFETY: the header is valid, and of this version two halves are read.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether nobody reads standard output any more: the parent has ended, perhaps while its death had no signal.
fn is_orphan() -> io::Result<bool> {
    let mut output = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    // SAFETY: one structure, valid for reading and writing, that outlives the call.
    check(unsafe { libc::poll(&raw mut output, 1, 0) })?;
    Ok(output.revents & libc::POLLERR != 0)
}
