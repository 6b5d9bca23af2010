//! The system calls that the child may make. With them, it can read, write and map the files that are open, and manage
//! its memory.
//!
//! Every other system call fails with `EPERM`. So a debug file that subverts the parser cannot open files, execute
//! programs, create processes or sockets, or send signals to other processes.

#![allow(unsafe_code, reason = "a seccomp filter is installed by a system call that has no safe form in std")]

use std::io;

use super::confine::check;

/// `AUDIT_ARCH_*` of this architecture. The numbers of system calls depend on the architecture.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

// Offsets in `struct seccomp_data` of the system call's number, the architecture, and the lower half of the first
// argument, in bytes.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENT_AT: u32 = 16;

const ALLOWED: [libc::c_long; 31] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Permanently forbids all system calls that the converter does not need. Has no effect if the kernel was built without
/// seccomp.
pub(super) fn allow_only_those_needed() -> io::Result<()> {
    let mut filter = filter();
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: `program` and the instructions that it points to outlive the call, which copies them.
    let set = check(unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &raw const program)
    });
    let is_unknown = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS));
    set.or_else(|error| if is_unknown(&error) { Ok(()) } else { Err(error) })
}

fn filter() -> Vec<libc::sock_filter> {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    // On another architecture, the same numbers mean other system calls. This program never makes system calls of
    // another architecture, so all of them are refused.
    let mut filter = vec![load(ARCHITECTURE_AT), skip_if(ARCHITECTURE, 1), finish(refuse), load(NUMBER_AT)];
    for call in ALLOWED {
        filter.extend([skip_unless(number(call), 1), finish(libc::SECCOMP_RET_ALLOW)]);
    }
    // `abort` uses tgkill to send a signal to its own process. Signals to other processes stay forbidden.
    filter.extend([
        skip_unless(number(libc::SYS_tgkill), 3),
        load(ARGUMENT_AT),
        skip_unless(std::process::id(), 1),
        finish(libc::SECCOMP_RET_ALLOW),
        finish(refuse),
    ]);
    filter
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Instruction that loads the four bytes at the offset `at` of `struct seccomp_data`.
fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0)
}

/// Instruction that skips `count` instructions if the loaded value is `value`.
fn skip_if(value: u32, count: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, count, 0)
}

/// Instruction that skips `count` instructions unless the loaded value is `value`.
fn skip_unless(value: u32, count: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, count)
}

fn finish(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn instruction(code: u32, value: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    // All instruction codes of classic BPF fit into eight bits.
    libc::sock_filter { code: code as u16, jt: if_true, jf: if_false, k: value }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::UdpSocket;
    use std::process::Command;

    use super::*;

    #[test]
    fn the_filter_forbids_files_sockets_programs_and_signals() {
        // The filter applies only to this thread.
        let confined = std::thread::spawn(|| {
            // SAFETY: takes integers only.
            check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).unwrap();
            allow_only_those_needed().unwrap();
            [
                ("open", File::open("/dev/null").map(drop)),
                ("socket", UdpSocket::bind("127.0.0.1:0").map(drop)),
                ("execute", Command::new("/bin/true").spawn().map(drop)),
                // SAFETY: take integers only; no signal is sent.
                ("signal", check(unsafe { libc::kill(libc::getppid(), 0) })),
                // SAFETY: takes integers only.
                ("user namespace", check(unsafe { libc::unshare(libc::CLONE_NEWUSER) })),
            ]
        });
        for (what, outcome) in confined.join().unwrap() {
            let refused = outcome.unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "{what}: {refused}");
        }
    }
}
