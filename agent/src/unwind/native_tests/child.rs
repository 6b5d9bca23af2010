//! A program that a test runs, and stops at an instruction of its choice: by ptrace(2), which any user may do to children.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use symbol_store::maps::each_line;

/// The registers as `struct registers` in C, and as ptrace begins with them: DWARF's order is another.
pub(super) type Registers = [u64; 21];

/// Where in [`Registers`].
pub(super) const BP: usize = 4;
pub(super) const CALL: usize = 15;
pub(super) const PC: usize = 16;
pub(super) const SP: usize = 19;

/// `syscall`.
const SYSCALL: u16 = 0x050f;
const SYSCALL_BYTES: u64 = 2;

/// Whether a thread is in a system call, or has just left one, with these registers.
pub(super) fn is_in_call(registers: &Registers) -> bool {
    registers[CALL] != u64::MAX
}

/// A line of /proc/<pid>/maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) inode: u64,
    pub(super) is_executable: bool,
    pub(super) path: String,
}

/// The mappings of a process, in order.
pub(super) fn mappings(pid: u32) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let lines = std::io::BufReader::new(File::open(format!("/proc/{pid}/maps")).unwrap());
    each_line(lines, u64::MAX, |line| {
        let line = line.unwrap();
        let path = String::from_utf8(line.path.to_vec()).unwrap();
        mappings.push(Mapping {
            start: line.start,
            end: line.end,
            offset: line.offset,
            inode: line.inode,
            is_executable: line.executable,
            path,
        });
    })
    .unwrap();
    // The kernel's own page is in no tree.
    mappings.retain(|mapping| mapping.path != "[vsyscall]");
    mappings
}

/// A child whose only thread stands still. It dies with this.
pub(super) struct Child {
    pub(super) pid: u32,
    pub(super) memory: File,
    /// To be delivered when it goes on.
    signal: i32,
}

impl Child {
    /// Starts a program, which stands before its first instruction. Only the thread that starts it may go on with it.
    pub(super) fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        // Go's runtime would interrupt a program again before it has been stepped out of the last interruption.
        command.stdin(Stdio::null()).stdout(Stdio::null()).env("GODEBUG", "asyncpreemptoff=1");
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(|| {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let pid = command.spawn().unwrap().id();
        let mut child = Self { pid, memory: File::open(format!("/proc/{pid}/mem")).unwrap(), signal: 0 };
        assert_eq!(child.wait(), Some(libc::SIGTRAP));
        child.memory = File::open(format!("/proc/{pid}/mem")).unwrap();
        child
    }

    /// Whether it is at an `int3`.
    pub(super) fn is_at_breakpoint(&self) -> bool {
        self.word(self.registers()[PC]).is_some_and(|code| code as u8 == 0xcc)
    }

    /// Goes on up to behind the next `int3` of the program.
    pub(super) fn run(&mut self) {
        loop {
            self.go_on(libc::PTRACE_CONT);
            match self.wait() {
                Some(libc::SIGTRAP) => return,
                Some(signal) => self.signal = signal,
                None => panic!("it ended"),
            }
        }
    }

    /// Goes on for some time.
    pub(super) fn run_for(&mut self, time: Duration) {
        self.go_on(libc::PTRACE_CONT);
        std::thread::sleep(time);
        // SAFETY: the child is ours, and has not been waited for.
        unsafe { libc::kill(self.pid as i32, libc::SIGSTOP) };
        loop {
            match self.wait() {
                Some(libc::SIGSTOP) => return,
                Some(libc::SIGTRAP) => {}
                Some(signal) => self.signal = signal,
                None => panic!("it ended"),
            }
            self.go_on(libc::PTRACE_CONT);
        }
    }

    /// Goes on by an instruction, or into a signal handler.
    pub(super) fn step(&mut self) {
        self.go_on(libc::PTRACE_SINGLESTEP);
        match self.wait() {
            Some(libc::SIGTRAP) => {}
            Some(signal) => self.signal = signal,
            None => panic!("it ended"),
        }
    }

    pub(super) fn registers(&self) -> Registers {
        // SAFETY: all bytes 0 is a valid value of it.
        let mut all: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let asked = self.ptrace(libc::PTRACE_GETREGS, (&raw mut all).cast());
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it is a struct of 27 words.
        let words = unsafe { std::mem::transmute::<libc::user_regs_struct, [u64; 27]>(all) };
        let mut registers: Registers = *words.first_chunk().unwrap();
        // Where a system call ends with a signal, the handler has not made the call. A clock would strike it in user mode.
        if self.word(registers[PC] - SYSCALL_BYTES).is_none_or(|code| code as u16 != SYSCALL) {
            registers[CALL] = u64::MAX;
        }
        registers
    }

    /// A word of its memory.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    fn go_on(&mut self, how: libc::c_uint) {
        let signal = std::mem::take(&mut self.signal);
        self.ptrace(how, signal as usize as *mut libc::c_void);
    }

    fn ptrace(&self, what: libc::c_uint, data: *mut libc::c_void) -> libc::c_long {
        // SAFETY: `data` is a signal's number, or what `what` asks for.
        unsafe { libc::ptrace(what, self.pid as i32, std::ptr::null_mut::<libc::c_void>(), data) }
    }

    /// The signal that it stopped for; `None`: it ended.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call.
        let waited = unsafe { libc::waitpid(self.pid as i32, &mut status, libc::__WALL) };
        assert_eq!(waited, self.pid as i32, "{}", std::io::Error::last_os_error());
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child is ours. Where it has ended and was waited for, its number is no child's.
        unsafe {
            let mut status = 0;
            if libc::waitpid(self.pid as i32, &mut status, libc::__WALL | libc::WNOHANG) == 0 {
                libc::kill(self.pid as i32, libc::SIGKILL);
                while libc::waitpid(self.pid as i32, &mut status, libc::__WALL) == self.pid as i32
                    && libc::WIFSTOPPED(status)
                {}
            }
        }
    }
}
